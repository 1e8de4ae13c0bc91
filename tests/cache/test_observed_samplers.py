"""Samplers that OPTCache observes draw what they draw without it, whatever their state."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, Subset

import foreload as fl
from tests.cache.stock_loaders import SAMPLERS, Half, N, is_best


class Eager(Sampler[int]):
    """Draws a whole epoch when it is asked for an iterator."""

    def __init__(self, source: Any, rng: torch.Generator) -> None:
        self.source, self.rng = source, rng

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randint(len(self.source), (2 * len(self.source),), generator=self.rng).tolist())


class Unsteady(Sampler[int]):
    """Draws what nobody can know."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        chance = random.SystemRandom()
        yield from (chance.randrange(N) for _ in range(3 * N))


@pytest.mark.parametrize("batch_size", [16, None])
def test_samplers_that_draw_at_once(batch_size: int | None) -> None:
    generator = torch.Generator().manual_seed(9)
    fl.OPTInit(Eager, generator, N)
    dataset = Half()
    loader: Any = DataLoader(dataset, batch_size, sampler=Eager(dataset, generator))
    accesses = [int(i) for _ in range(4) for _, y in loader for i in torch.as_tensor(y).reshape(-1)]
    other = torch.Generator().manual_seed(9)
    plain: Any = DataLoader(range(N), batch_size, sampler=Eager(dataset, other))  # type: ignore[arg-type]
    assert accesses == [int(i) for _ in range(4) for y in plain for i in torch.as_tensor(y).reshape(-1)]
    assert torch.equal(generator.get_state(), other.get_state())
    assert is_best(dataset, accesses)


class Endless(Sampler[int]):
    """Has one epoch, which does not end."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randint(N, (N,), generator=self.generator).tolist()


@pytest.mark.slow
def test_a_sampler_without_an_end() -> None:
    generator = torch.Generator().manual_seed(9)
    fl.OPTInit(Endless, generator, N)
    dataset = Half()
    accesses = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _, (x, y) in zip(
            range(20 * N // 16), DataLoader(dataset, 16, sampler=Endless(generator)), strict=False
        ):
            assert (x == y[:, None]).all()
            accesses += y.tolist()
    assert is_best(dataset, accesses)


def test_a_sampler_that_draws_something_else_is_noticed_at_once_and_changes_no_sample() -> None:
    generator = torch.Generator().manual_seed(10)
    fl.OPTInit(Unsteady, generator, N)
    dataset = Half()
    loader = DataLoader(dataset, 16, sampler=Unsteady(generator))
    with pytest.warns(UserWarning, match="not what OPTInit foresaw.*LRU") as warned:
        for _ in range(3):
            for x, y in loader:
                assert (x == y[:, None]).all()
    assert len([w for w in warned if "OPTInit" in str(w.message)]) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_requests_that_the_sampler_has_not_drawn_are_noticed(workers: int) -> None:
    generator = torch.Generator().manual_seed(11)
    fl.OPTInit(RandomSampler, generator, N)
    dataset = Half()
    part = Subset(dataset, list(range(N - 1, -1, -1)))
    sampler = SAMPLERS["three times"](generator)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for x, y in DataLoader(part, 16, sampler=sampler, num_workers=workers):
            assert (x == y[:, None]).all()
    assert sum("samples are requested that the sampler has not drawn" in str(w.message) for w in warned) == 1


def test_a_sampler_that_never_draws_is_noticed() -> None:
    fl.OPTInit(RandomSampler, torch.Generator().manual_seed(12), N)
    dataset = Half()
    with pytest.warns(UserWarning, match="has not drawn"):
        for _ in range(3):
            for x, y in DataLoader(dataset, 16, shuffle=True):
                assert (x == y[:, None]).all()


def test_drawing_ahead_leaves_all_generators_and_the_sampler_as_they_are() -> None:
    generator = torch.Generator().manual_seed(13)
    fl.OPTInit(RandomSampler, generator, N)
    dataset = Half()
    sampler = SAMPLERS["odd"](generator)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    seen = []
    for index in sampler:
        dataset[index]
        seen.append(torch.equal(torch.get_rng_state(), state))
    plain = torch.Generator().manual_seed(13)
    list(SAMPLERS["odd"](plain))
    assert all(seen)
    assert torch.equal(generator.get_state(), plain.get_state())


class WithRandom(Sampler[int]):
    def __init__(self, size: int) -> None:
        self.size, self.random = size, random.Random(0)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(self.random.sample(range(self.size), self.size))


class WithNumPy(WithRandom):
    def __init__(self, size: int) -> None:
        self.size, self.numbers = size, np.random.default_rng(0)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.permutation(self.size).tolist())


class WithSecondGenerator(WithRandom):
    def __init__(self, size: int) -> None:
        self.size = size
        self.generators = {"own": torch.Generator().manual_seed(1)}

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.size, generator=self.generators["own"]).tolist())


class InPlace(WithRandom):
    def __init__(self, size: int) -> None:
        self.size, self.order, self.epoch = size, list(range(size)), [0]

    def __iter__(self) -> Iterator[int]:
        self.epoch[0] += 1
        random.Random(self.epoch[0]).shuffle(self.order)
        return iter(list(self.order))


class OneIterator(WithRandom):
    def __init__(self, size: int) -> None:
        self.size, self.all = size, itertools.cycle(range(0, 7 * size, 7))

    def __iter__(self) -> Iterator[int]:
        return (next(self.all) % self.size for _ in range(self.size))


class OneGenerator(WithRandom):
    def __init__(self, size: int) -> None:
        self.size, self.all = size, (index * 3 % size for index in itertools.count())

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(self.all, self.size)


class OfItsClass(WithRandom):
    epochs: list[int] = []  # noqa: RUF012

    def __init__(self, size: int) -> None:
        self.size = size
        self.epochs.clear()

    def __iter__(self) -> Iterator[int]:
        self.epochs.append(len(self.epochs))
        return iter(range(len(self.epochs), self.size + len(self.epochs)))

    def __len__(self) -> int:
        return self.size


class Around(WithRandom):
    def __init__(self, size: int) -> None:
        self.size, self.inner = size, WithNumPy(size)

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)


class ByFunction(WithRandom):
    def __init__(self, size: int) -> None:
        numbers = random.Random(3)
        self.size, self.draw = size, lambda: numbers.sample(range(size), size)

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw())


STATEFUL = [
    WithRandom,
    WithNumPy,
    WithSecondGenerator,
    InPlace,
    OneIterator,
    OneGenerator,
    OfItsClass,
    Around,
    ByFunction,
]


@pytest.mark.filterwarnings("ignore:OPTCache")
@pytest.mark.parametrize("kind", STATEFUL)
@pytest.mark.parametrize("loader", [DataLoader, fl.DataLoader])
def test_samplers_with_a_state_of_their_own_draw_what_they_draw_unobserved(kind: Any, loader: Any) -> None:
    expected = kind(8)
    epochs = [[int(index) for index in expected] for _ in range(4)]

    class Known(kind):  # type: ignore[misc]
        pass

    fl.OPTInit(Known, torch.Generator(), 8)

    class Data(Dataset[int]):
        def __len__(self) -> int:
            return 8

        @fl.OPTCache(maxsize=3)
        def __getitem__(self, index: int) -> int:
            return index % 8

    sampler = Known(8)
    batches = loader(Data(), batch_size=2, sampler=sampler)
    found = [[int(index) for batch in batches for index in batch] for _ in range(4)]
    assert found == [[index % 8 for index in epoch] for epoch in epochs]
