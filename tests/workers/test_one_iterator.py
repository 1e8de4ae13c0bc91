"""Persistent workers have one iterator in torch, which each `iter(loader)` begins again."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

import foreload as fl


class Drawing(Dataset[Any]):
    """Samples that draw, and the process that loads them."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(()).item()


class Parts(IterableDataset[Any]):
    """The same, each worker a part."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        yield from ((index, torch.rand(()).item()) for index in range(info.id, 12, info.num_workers))


def wrapping(base: Any) -> Any:
    """Return a class of loaders whose iterator is within one of a user's, which torch asks to begin again."""

    class Wrapped:
        def __init__(self, batches: Any) -> None:
            self.batches = batches

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            return next(self.batches)

        def _reset(self, loader: Any, first_iter: bool = False) -> None:
            self.batches._reset(loader, first_iter)

    class Loader(base):  # type: ignore[misc]
        def _get_iterator(self) -> Any:
            return Wrapped(super()._get_iterator())

    return Loader


def beside_itself(loader: Any) -> Iterator[Any]:
    yield from zip(loader, loader)


def within_itself(loader: Any) -> Iterator[Any]:
    for outer in loader:
        yield outer
        yield from loader


def kept(loader: Any) -> Iterator[Any]:
    first = iter(loader)
    yield next(first)
    yield from loader
    iter(loader)
    yield from first


def one_after_the_other(loader: Any) -> Iterator[Any]:
    for _ in range(3):
        yield from loader


DATA: dict[str, Any] = {"samples": Drawing(), "parts": Parts(), "rows": TensorDataset(torch.arange(12))}


@pytest.mark.parametrize("loop", [beside_itself, within_itself, kept, one_after_the_other])
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
@pytest.mark.parametrize("made", [lambda base: base, wrapping], ids=["plain", "wrapped"])
def test_persistent_workers_have_one_iterator(made: Any, data: Any, loop: Any) -> None:
    seen = []
    for base in (TorchDataLoader, fl.DataLoader):
        torch.manual_seed(4)
        shuffle = not isinstance(data, IterableDataset)
        loader = made(base)(data, 2, shuffle=shuffle, num_workers=2, persistent_workers=True)
        before = {*multiprocessing.active_children()}
        batches = [repr(batch) for batch in loop(loader)]
        assert len({*multiprocessing.active_children()} - before) in (0, 2)
        seen.append([*batches, torch.rand(()).item()])
        del loader
    assert seen[0] == seen[1]
