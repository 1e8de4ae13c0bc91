"""Global functions of Python, NumPy and torch draw from a worker thread's own generators."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, get_worker_info

import foreload as fl
from foreload.batch.generators.keyed import KeyedGenerators
from foreload.batch.generators.threads import _OwnTorchGenerator, keyed_generators, with_own_generators
from foreload.batch.generators.twisters import Trio, _SlowStates, states_of


def draw_everything() -> list[Any]:
    """Draw by many functions of the three libraries."""
    template = torch.zeros(3)
    return [
        random.random(),
        random.gauss(0, 1),
        random.randint(0, 99),
        random.sample(range(100), 5),
        random.getrandbits(70),
        random.choices("abc", k=4),
        np.random.rand(3).tolist(),
        np.random.randn(1).tolist(),
        np.random.choice(9, 3).tolist(),
        np.random.permutation(5).tolist(),
        np.random.normal(size=3).tolist(),
        np.random.ranf(2).tolist(),
        np.random.sample(),
        np.random.seed(5),
        np.random.rand(),
        torch.rand(2).tolist(),
        torch.randn(1).tolist(),
        torch.randn(()).item(),
        torch.randint(0, 9, (3,)).tolist(),
        torch.randperm(5).tolist(),
        torch.rand_like(template).tolist(),
        torch.randn_like(template).tolist(),
        torch.randint_like(template, 5).tolist(),
        torch.randint_like(template, 2, 9).tolist(),
        template.clone().uniform_(2, 3).tolist(),
        torch.bernoulli(torch.full((4,), 0.5)).tolist(),
        torch.normal(0.0, 1.0, (2,)).tolist(),
        torch.empty(2).exponential_().tolist(),
        torch.distributions.Normal(0.0, 1.0).sample((2,)).tolist(),
        torch.multinomial(torch.ones(5), 2).tolist(),
    ]


def global_states() -> tuple[Any, ...]:
    return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()


def test_global_functions_draw_from_a_threads_own_generators() -> None:
    """A thread draws what the calling thread draws with the same key, and touches no global generator."""
    random.gauss(0, 1)
    np.random.randn(1)
    torch.randn(())  # each keeps the second of two normal numbers
    before = global_states()
    keyed = KeyedGenerators((5, 1))
    with keyed.kept():
        keyed.key(3)
        expected = draw_everything()
    found: list[Any] = []

    def work() -> None:
        own = keyed_generators((5, 1))
        with own.kept():
            own.key(3)
            found.append(with_own_generators(draw_everything))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [expected]
    assert global_states() == before
    assert pickle.loads(pickle.dumps(np.random.rand))(2).shape == (2,)


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.one_of(st.integers(-5, 2**63), st.text(), st.tuples(st.integers(), st.text())),
)
def test_keys_name_random_numbers(seed: int, epoch: int, index: Any) -> None:
    """The same key gives the same numbers; another one others; the loop's states are put back."""
    before = global_states()
    drawn = []
    for key, name in (((seed, epoch), index), ((seed, epoch), index), ((seed ^ 1, epoch), index)):
        keyed = KeyedGenerators(key)
        with keyed.kept():
            keyed.key(name)
            drawn.append((random.random(), np.random.rand(), torch.rand(()).item()))
    assert drawn[0] == drawn[1]
    assert all(one != other for one, other in zip(drawn[0], drawn[2], strict=True))
    assert global_states() == before


@pytest.mark.parametrize("bits", [np.random.MT19937, np.random.PCG64])
def test_states_by_the_libraries_functions(bits: Any) -> None:
    """If states are not found in memory, they are saved, compared, put back and keyed all the same."""
    trio = Trio(random.Random(1), np.random.RandomState(bits(2)), torch.Generator())
    states = states_of(trio) if bits is np.random.PCG64 else _SlowStates(trio)
    assert isinstance(states, _SlowStates)

    def draw() -> tuple[float, ...]:
        return (
            trio.python.random(),
            trio.numpy.rand(),
            trio.numpy.randn(),
            torch.rand((), generator=trio.torch).item(),
        )

    draw()
    states.save()
    assert not states.changed()
    expected = draw()
    assert states.changed()
    states.restore()
    assert draw() == expected
    states.key(1, 2, 3)
    assert not states.changed()
    keyed = draw()
    states.key(1, 2, 3)
    assert draw() == keyed
    others = states_of(trio.like()) if bits is np.random.PCG64 else _SlowStates(trio.like())
    others.key(1, 2, 4)
    states.key(1, 2, 3)
    states.exchange(others)
    assert draw() != keyed
    states.exchange(others)
    assert draw() == keyed


class Info(Dataset[Any]):
    """Samples drawn by torch's own way for worker threads."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        generator = torch.random.thread_safe_generator()
        info = get_worker_info()
        if info is not None and info.worker_method == "thread":
            assert info.rng is not None
            assert info.rng.torch_generator is generator
            assert 0 <= info.rng.random_generator.random() < 1
            assert 0 <= info.rng.numpy_generator.random() < 1
        return index, torch.rand((), generator=generator).item()


@pytest.mark.skipif(not hasattr(torch.random, "thread_safe_generator"), reason="torch is older than 2.13")
@pytest.mark.parametrize("count", [1, 2, 4])
def test_torchs_generators_of_worker_threads_are_keyed(count: int) -> None:
    """``thread_safe_generator()`` gives the thread's generator, keyed as the global one is elsewhere."""

    def drawn(**options: Any) -> list[Any]:
        return [
            sample for batch in fl.DataLoader(Info(), 3, seed=4, collate_fn=list, **options) for sample in batch
        ]

    assert drawn(num_workers=count, workers="threads") == drawn(num_workers=0)
    assert drawn(num_workers=count, workers="processes") == drawn(num_workers=0)


class Late(Mapping[str, Any]):
    """A sample whose values are computed, with random numbers, when it is collated."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __getitem__(self, name: str) -> Any:
        return torch.rand(2) + self.index if name == "noise" else np.random.rand(3)

    def __iter__(self) -> Iterator[str]:
        return iter(("noise", "numbers"))

    def __len__(self) -> int:
        return 2


class Samples(Dataset[Any]):
    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def test_samples_that_draw_when_they_are_collated_leave_the_loops_numbers_alone() -> None:
    def states_after(loader: Any) -> tuple[Any, ...]:
        torch.manual_seed(3)  # one number is drawn for each epoch, as by torch
        assert len(list(loader)) == 4
        return global_states()

    plain = states_after(TorchDataLoader(range(12), batch_size=3))  # type: ignore[arg-type]
    assert states_after(fl.DataLoader(Samples(Late), batch_size=3, num_workers=2, workers="threads")) == plain


@pytest.mark.parametrize("kind", [np.ndarray, torch.Tensor])
def test_plain_arrays_are_collated_without_python_code_for_each(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    passed = _OwnTorchGenerator.__torch_function__

    def counted(self: Any, func: Any, *args: Any) -> Any:
        called.append(func)
        return passed(self, func, *args)

    monkeypatch.setattr(_OwnTorchGenerator, "__torch_function__", counted)
    arrays = [np.full((2, 3), index) for index in range(12)]
    data = Samples((arrays if kind is np.ndarray else [torch.from_numpy(array) for array in arrays]).__getitem__)
    batches = list(fl.DataLoader(data, batch_size=4, num_workers=1, workers="threads"))
    assert torch.cat(batches).tolist() == np.stack(arrays).tolist()
    assert called == []
