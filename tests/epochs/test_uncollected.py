"""Epochs are freed by themselves: many training scripts turn the garbage collector off, or run it now and then."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, RandomSampler, Sampler, SubsetRandomSampler, TensorDataset
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl

SIZE = 4000


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        return index * index


class Listed(Sampler[int]):
    """Keeps the epoch's indices in its iterator, as most samplers do."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(SIZE).tolist()

    def __len__(self) -> int:
        return SIZE


class Infinite(Sampler[int]):
    """One stream of indices for all epochs, which ends with the first iterator that is closed (MMEngine's)."""

    def __init__(self) -> None:
        self.indices = (position % SIZE for position in count())

    def __iter__(self) -> Iterator[int]:
        yield from self.indices

    def __len__(self) -> int:
        return SIZE


def rows() -> TensorDataset:
    return TensorDataset(torch.arange(SIZE))


def unchanged(batch: Any) -> Any:
    return batch


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: fl.DataLoader(rows(), 4, shuffle=True),
    "seeded": lambda: fl.DataLoader(rows(), 4, shuffle=True, seed=0),
    "generator": lambda: fl.DataLoader(Squares(), 4, shuffle=True, generator=torch.Generator()),
    "replacement": lambda: fl.DataLoader(rows(), 4, sampler=RandomSampler(rows(), replacement=True)),
    "subset": lambda: fl.DataLoader(rows(), 4, sampler=SubsetRandomSampler(range(SIZE))),
    "own sampler": lambda: fl.DataLoader(Squares(), 4, sampler=Listed()),
    "own batch sampler": lambda: fl.DataLoader(Squares(), batch_sampler=BatchSampler(Listed(), 4, False)),
    "no batches": lambda: fl.DataLoader(Squares(), None, sampler=Listed()),
    "threads": lambda: fl.DataLoader(rows(), 4, shuffle=True, num_workers=1, workers="threads"),
    "processes": lambda: fl.DataLoader(Squares(), 4, sampler=Listed(), num_workers=1, workers="processes"),
    "device": lambda: fl.DataLoader(Squares(), 4, device="cpu", device_transform=unchanged),
    "copied ahead": lambda: fl.DataLoader(rows(), 4, device="meta"),
}


def leave(loader: Any) -> None:
    for _ in loader:
        break


def finish(loader: Any) -> None:
    for _ in loader:
        pass


def leave_before_the_end(loader: Any) -> None:
    """As loops that count their steps do. The end may have been found ahead of them."""
    for _ in islice(loader, len(loader)):
        pass


def of_foreload() -> Counter[str]:
    kinds = map(type, gc.get_objects())
    return Counter(kind.__name__ for kind in kinds if str(kind.__module__).startswith("foreload."))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("run", [leave, leave_before_the_end, finish])
@pytest.mark.parametrize("name", LOADERS)
def test_nothing_of_an_epoch_waits_for_the_garbage_collector(name: str, run: Callable[[Any], None]) -> None:
    loader = LOADERS[name]()
    run(loader)
    gc.collect()
    gc.disable()
    try:
        run(loader)
        run(loader)
        before = of_foreload()
        gc.collect()
        assert not before - of_foreload()
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_of_indices_ends_as_with_torch_when_an_epoch_is_left(workers: int) -> None:
    """Not in the middle of a later epoch, when the garbage collector closes the iterator of the first."""
    seen = []
    for cls in (TorchDataLoader, fl.DataLoader):
        loader: Any = cls(Squares(), 4, sampler=Infinite(), num_workers=workers)
        seen.append([[batch.tolist() for batch in islice(loader, 3)] for _ in range(2)])
    assert seen[0] == seen[1]
    assert seen[0][1] == []
