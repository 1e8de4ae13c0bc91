"""OPTCache for the ranks of a job, whose DistributedSampler needs no generator, and for the parts of a dataset."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    random_split,
)

import foreload as fl
from tests.cache.belady import belady
from tests.cache.stock_loaders import CAPACITY, Half, N

RANKS = 2


class Own(DistributedSampler[Any]):
    """Keeps what a subclass may keep."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.drawn = [0]

    def __iter__(self) -> Any:
        self.drawn[0] += 1
        return super().__iter__()


def run(loader: Any, epochs: int = 1) -> list[int]:
    accesses = []
    for _ in range(epochs):
        for x, y in loader:
            assert (x == y[:, None]).all()
            accesses += y.tolist()
    return accesses


@pytest.fixture(autouse=True)
def _no_warning() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("make", [DataLoader, fl.DataLoader])
@pytest.mark.parametrize("kind", [DistributedSampler, Own])
@pytest.mark.sampled(6)
def test_each_rank_loads_as_rarely_as_can_be(workers: int, rank: int, make: Any, kind: Any) -> None:
    fl.OPTInit(kind, None, N)
    dataset = Half()
    sampler = kind(dataset, RANKS, rank, seed=7)
    loader = make(dataset, 16, sampler=sampler, num_workers=workers)
    accesses = []
    for epoch in range(3, 9):  # a run that is resumed
        sampler.set_epoch(epoch)
        accesses += run(loader)
    plain = kind(range(N), RANKS, rank, seed=7)
    expected = []
    for epoch in range(3, 9):
        plain.set_epoch(epoch)
        expected += list(plain)
    assert accesses == expected
    assert dataset.calls.sum() == belady(accesses, CAPACITY)
    assert kind is DistributedSampler or sampler.drawn == plain.drawn


def test_epochs_that_are_not_told_are_the_same_again() -> None:
    fl.OPTInit(DistributedSampler, None, N)
    dataset = Half()
    sampler = DistributedSampler(dataset, 1, 0)
    accesses = run(DataLoader(dataset, 16, sampler=sampler), 4)
    assert accesses[:N] == accesses[N : 2 * N]
    assert dataset.calls.sum() == belady(accesses, CAPACITY)


PARTS: dict[str, Callable[[Any], Any]] = {
    "even": lambda dataset: Subset(dataset, range(0, N, 2)),
    "with repeats": lambda dataset: Subset(dataset, [*range(N // 2, N), *range(N // 4, N - 1)]),
    "within another": lambda dataset: Subset(Subset(dataset, range(N - 1, 0, -1)), range(100, 399)),
    "split": lambda dataset: random_split(dataset, [0.75, 0.25], torch.Generator().manual_seed(1))[0],
}
SAMPLERS: dict[str, tuple[type[Sampler[int]], Callable[[Any, torch.Generator], Any]]] = {
    "replacement": (
        RandomSampler,
        lambda part, g: RandomSampler(part, replacement=True, num_samples=N, generator=g),
    ),
    "shuffled": (RandomSampler, lambda part, g: RandomSampler(part, generator=g)),
    "in order": (SequentialSampler, lambda part, g: SequentialSampler(part)),
    "of a rank": (DistributedSampler, lambda part, g: DistributedSampler(part, RANKS, 1)),
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.sampled(8)
def test_parts_of_a_dataset_are_loaded_as_rarely_as_can_be(sampler: str, part: str, workers: int) -> None:
    kind, make = SAMPLERS[sampler]
    generator = torch.Generator().manual_seed(4)
    fl.OPTInit(kind, None if sampler in ("in order", "of a rank") else generator, N)
    dataset = Half()
    of = PARTS[part](dataset)
    loader = DataLoader(of, 16, sampler=make(of, generator), num_workers=workers)
    accesses = []
    for epoch in range(3):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        accesses += run(loader)
    assert dataset.calls.sum() == belady(accesses, CAPACITY)


def test_a_part_that_lies_behind_another_dataset_is_its_own() -> None:
    class Wrapped(Half):
        def __init__(self, part: Any) -> None:
            super().__init__()
            self.part = part

        def __len__(self) -> int:
            return len(self.part)

        @fl.OPTCache(maxsize=50)
        def __getitem__(self, index: int) -> Any:
            return self.make(self.part[index])

    generator = torch.Generator().manual_seed(4)
    fl.OPTInit(RandomSampler, generator, 100)
    dataset = Wrapped(Subset(range(N), range(300, 400)))  # type: ignore[arg-type]
    sampler = RandomSampler(dataset, replacement=True, num_samples=400, generator=generator)
    accesses = run(DataLoader(dataset, 16, sampler=sampler), 2)
    assert dataset.calls.sum() == belady(accesses, 50)


def test_a_sampler_may_draw_what_a_part_has_not() -> None:
    class Beyond(RandomSampler):
        def __iter__(self) -> Any:
            return iter([0, 1, 5000, -1])

    generator = torch.Generator().manual_seed(4)
    fl.OPTInit(Beyond, generator, N)
    dataset = Half()
    part = Subset(dataset, range(50))
    assert list(Beyond(part, generator=generator)) == [0, 1, 5000, -1]
    with pytest.raises(IndexError):
        list(DataLoader(part, sampler=Beyond(part, generator=generator)))
    assert [int(y) for _, y in ConcatDataset([part])] == list(range(50))
