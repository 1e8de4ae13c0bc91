"""OPTCache in stock DataLoaders, against Belady's algorithm."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler
from torch.utils.data._utils import signal_handling

import foreload as fl
from tests.cache import foretold
from tests.cache.belady import belady
from tests.cache.foretold import EPOCHS, Base, N


class Half(Base):
    @fl.OPTCache(maxsize=N // 2)
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.make(index)


def run(dataset: Any, generator: torch.Generator, epochs: int = EPOCHS, **arguments: Any) -> list[int]:
    return foretold.run(DataLoader, dataset, generator, epochs, **{"batch_size": 8, **arguments})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_workers": 1},
        {"num_workers": 2},
        {"num_workers": 4},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "batch_size": 1},
        {"num_workers": 2, "in_order": False},
        {"num_workers": 2, "multiprocessing_context": "forkserver", "persistent_workers": True},
    ],
    ids=str,
)
def test_no_cache_could_do_with_fewer_loads(arguments: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(3)
    fl.OPTInit(RandomSampler, generator, N, epochs=EPOCHS)
    dataset = Half()
    accesses = run(dataset, generator, **arguments)
    # The sequence is the user's own.
    expected = run(Plain(), torch.Generator().manual_seed(3))
    assert accesses == expected or not arguments.get("in_order", True)
    assert dataset.calls.sum() == belady(expected, N // 2)


class Plain(Base):
    def __init__(self) -> None: ...

    size, shift = N, 0

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((10,), float(index)), index


def test_in_our_loader_too() -> None:
    generator = torch.Generator().manual_seed(3)
    fl.OPTInit(RandomSampler, generator, N, epochs=EPOCHS)
    dataset = Half()
    accesses = []
    loader = fl.DataLoader(
        dataset,
        batch_size=8,
        num_workers=2,
        sampler=RandomSampler(dataset, replacement=True, generator=generator),
    )
    for _ in range(EPOCHS):
        accesses += [int(i) for _, y in loader for i in y]
    assert dataset.calls.sum() == belady(accesses, N // 2)


@pytest.mark.parametrize("maxsize", [0, 1, N, 10 * N, None])
def test_sizes_at_the_edges(maxsize: int | None) -> None:
    generator = torch.Generator().manual_seed(1)

    class Sized(Base):
        @fl.OPTCache(maxsize=maxsize)
        def __getitem__(self, index: int) -> Any:
            return self.make(index)

    fl.OPTInit(RandomSampler, generator, N, epochs=EPOCHS)
    dataset = Sized()
    accesses = run(dataset, generator)
    assert dataset.calls.sum() == belady(accesses, N if maxsize is None else maxsize)


def test_permutations_keep_a_fixed_set() -> None:
    generator = torch.Generator().manual_seed(1)
    fl.OPTInit(RandomSampler, generator, N, replacement=False, epochs=EPOCHS)
    dataset = Half()
    for _ in range(EPOCHS):
        loader = DataLoader(dataset, batch_size=8, shuffle=True, generator=generator)
        assert sorted(int(i) for _, y in loader for i in y) == list(range(N))
    assert dataset.calls.sum() == EPOCHS * N - (EPOCHS - 1) * (N // 2)


def test_sequential_order() -> None:
    fl.OPTInit(SequentialSampler, None, N, epochs=2)
    dataset = Half()
    for _ in range(2):
        list(DataLoader(dataset, batch_size=8))
    assert dataset.calls.sum() == 2 * N - N // 2


def test_each_class_follows_its_own_future() -> None:
    first, second = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    fl.OPTInit(RandomSampler, first, N, epochs=EPOCHS)

    class Train(Base):
        @fl.OPTCache(maxsize=N // 2)
        def __getitem__(self, index: int) -> Any:
            return self.make(index)

    fl.OPTInit(RandomSampler, second, N, epochs=EPOCHS)

    class Other(Base):
        @fl.OPTCache(maxsize=N // 3)
        def __getitem__(self, index: int) -> Any:
            return self.make(index)

    train, other = Train(), Other()
    assert train.calls.sum() + belady(run(train, first), N // 2) == train.calls.sum()
    assert belady(run(other, second), N // 3) == other.calls.sum()


def test_a_second_dataset_never_gets_the_firsts_samples() -> None:
    generator = torch.Generator().manual_seed(1)
    fl.OPTInit(RandomSampler, generator, N, epochs=EPOCHS)
    train, valid, small = Half(), Half(shift=1000), Half(20, shift=5)
    run(train, generator)
    for dataset in (valid, small):
        run(dataset, torch.Generator().manual_seed(7), num_workers=2)
        assert dataset.calls.sum() == EPOCHS * len(dataset)


def test_a_look_before_the_first_epoch_is_no_harm() -> None:
    generator = torch.Generator().manual_seed(1)
    fl.OPTInit(RandomSampler, generator, N, epochs=EPOCHS)
    dataset = Half()
    assert dataset[0][1] == dataset[0][1] == dataset[np.int64(0)][1] == dataset[torch.tensor(0)][1] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accesses = run(dataset, generator)
    assert dataset.calls.sum() <= belady(accesses, N // 2) + 8


def test_a_hit_may_be_changed() -> None:
    generator = torch.Generator().manual_seed(1)
    fl.OPTInit(RandomSampler, generator, N, epochs=EPOCHS)
    dataset = Half()
    for index in RandomSampler(dataset, True, EPOCHS * N, generator):
        x, _ = dataset[index]
        assert (x == index).all()
        x += 1


class Scaled(torch.utils.data.Dataset[Any]):
    factor = 1
    loads = 0

    def __len__(self) -> int:
        return 10

    @fl.OPTCache()
    def load(self, index: int) -> int:
        self.loads += 1
        return index * self.factor

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.load(index), self.load(index) * self.factor


def test_what_is_kept_is_not_loaded_again_whatever_an_attribute_is_set_to() -> None:
    """So what follows an attribute belongs behind the cache, as the documents say."""
    fl.OPTInit(SequentialSampler, None, 10)
    dataset = Scaled()
    for factor in (1, 3):
        dataset.factor = factor
        assert [dataset[index] for index in range(10)] == [(index, index * factor) for index in range(10)]
    assert dataset.loads == 10


class Dying(Half):
    @fl.OPTCache(maxsize=N // 2)
    def __getitem__(self, index: int) -> Any:
        if index == 7 and torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.make(index)


@pytest.fixture
def no_errors_from_signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's handler of ended children raises wherever the main thread is, pytest's own code included.

    Without it, the loader itself finds out, a few seconds later.
    """
    monkeypatch.setattr(signal_handling, "_SIGCHLD_handler_set", True)
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("no_errors_from_signals")
def test_a_killed_worker_leaves_a_good_cache() -> None:
    generator = torch.Generator().manual_seed(1)
    fl.OPTInit(RandomSampler, generator, N, epochs=EPOCHS)
    dataset = Dying()
    # Which of these it is in torch is chance: it may be receiving a batch from the worker at that moment.
    with pytest.raises((RuntimeError, ConnectionError, EOFError)):
        run(dataset, generator, num_workers=2)
    for index in range(N):
        assert (dataset[index][0] == index).all()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((RandomSampler, None, 5), ValueError, "generator is None"),
        ((RandomSampler, 3, 5), TypeError, "generator must be a torch.Generator"),
        ((RandomSampler, torch.Generator(), 0), ValueError, "n must be 1 or more"),
        ((RandomSampler, torch.Generator(), 1.5), TypeError, "n must be an int"),
        ((list, torch.Generator(), 5), TypeError, "sampler_class must be a class of samplers"),
        ((torch.utils.data.BatchSampler, torch.Generator(), 5), TypeError, "single indices, got BatchSampler"),
    ],
)
def test_wrong_futures_are_named(arguments: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        fl.OPTInit(*arguments)


def test_wrong_sizes_are_named() -> None:
    for maxsize, error in ((-1, ValueError), (1.5, TypeError), ("1GiB", TypeError), (True, TypeError)):
        with pytest.raises(error, match="maxsize must be"):
            fl.OPTCache(maxsize)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="with brackets"):
        fl.OPTCache(lambda self, index: index)  # type: ignore[arg-type]


def test_cached_methods_keep_instances_apart() -> None:
    class Squares(Base):
        @fl.cached(maxsize=None, policy="random")
        def __getitem__(self, index: int) -> Any:
            return self.make(index)

    one, other = Squares(), Squares(shift=3)
    for _ in range(3):
        assert (one[4][0] == 4).all()
        assert (other[4][0] == 7).all()
    assert one.calls.sum() == other.calls.sum() == 1
    for _ in range(2):
        assert sum(len(y) for _, y in DataLoader(one, batch_size=8, num_workers=2)) == N
