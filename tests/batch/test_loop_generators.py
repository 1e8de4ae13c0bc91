"""Draws from the loop's generators are noticed, also by way of their libraries' own functions."""

import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foreload.batch.generators.loops import LoopGenerators


def state() -> tuple[Any, ...]:
    drawn = np.random.get_state(legacy=False)
    return random.getstate(), pickle.dumps(drawn), torch.default_generator.get_state().numpy().tobytes()


@pytest.fixture(autouse=True)
def generators_as_they_were() -> Iterator[None]:
    python, numpy, generator = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
    kind: Any = np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(kind)
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(generator)


SEEDS: list[Callable[[], object]] = [
    lambda: random.seed(3),
    lambda: np.random.seed(3),
    lambda: torch.manual_seed(3),
]
OPERATIONS: list[Callable[[], object]] = [
    lambda: None,
    random.random,
    lambda: random.gauss(0, 1),
    lambda: random.setstate(random.getstate()),
    np.random.rand,
    np.random.standard_normal,
    lambda: torch.rand(1),
    lambda: torch.randn(()),
    lambda: torch.randperm(1000),
    lambda: torch.rand(3, generator=torch.Generator()),
    lambda: np.random.default_rng(0).random(),
]


operations = st.sampled_from(OPERATIONS + SEEDS)


@given(st.lists(operations, max_size=4), st.lists(operations, max_size=3))
def test_it_is_as_the_libraries_tell(before: Any, between: Any) -> None:
    generators = LoopGenerators()
    for _ in range(2):
        for operation in before:
            operation()
        generators.save()
        noted = state()
        for operation in between:
            operation()
        # (To be seeded counts, whatever the state was.)
        is_seeded = not set(SEEDS).isdisjoint(between)
        assert generators.have_drawn() == (state() != noted) or (generators.have_drawn() and is_seeded)


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937])
def test_numpys_generator_may_be_replaced(kind: Any) -> None:
    generators = LoopGenerators()
    generators.save()
    np.random.set_bit_generator(kind(5))
    assert generators.have_drawn()
    generators.save()
    assert not generators.have_drawn()
    np.random.rand()
    assert generators.have_drawn()
