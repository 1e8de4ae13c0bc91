"""Persistent workers have one iterator in torch, which each `iter(loader)` begins again."""

from __future__ import annotations

import multiprocessing
import threading
import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

import foreload as fl
from foreload.epochs.base import Epoch


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


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_it_outlives_the_loader(data: Any) -> None:
    seen = []
    for base in (TorchDataLoader, fl.DataLoader):
        torch.manual_seed(4)
        loader = base(data, 2, num_workers=2, persistent_workers=True)
        batches = iter(loader)
        next(iter(loader))
        iter(loader)
        first = next(iter(loader))
        del loader
        seen.append([repr(batch) for batch in (first, *batches)])
    assert seen[0] == seen[1]
    assert len(seen[0]) == 6


def test_earlier_epochs_are_freed() -> None:
    loader = fl.DataLoader(Drawing(), 2, num_workers=2, persistent_workers=True)
    first = iter(loader)
    gone = [weakref.ref(iter(loader)) for _ in range(4)]
    assert [reference() is None for reference in gone] == [True, True, True, False]
    del first, loader
    assert gone[-1]() is None


def test_its_number_of_batches_is_that_of_the_present_epoch() -> None:
    seen = []
    for base in (TorchDataLoader, fl.DataLoader):
        loader = base(Drawing(), 2, num_workers=2, persistent_workers=True)
        batches: Any = iter(loader)
        for _ in range(4):
            next(batches)
        again: Any = iter(loader)
        numbers = [batches._num_yielded]
        for iterator in (again, batches):
            next(iterator)
            numbers.append(batches._num_yielded)
        seen.append(numbers)
    assert seen[0] == seen[1] == [0, 1, 2]


@pytest.mark.parametrize(("data", "workers"), [("samples", 0), ("rows", 0), ("rows", None)])
@pytest.mark.parametrize("taken", [0, 2, 7])
def test_one_without_workers_can_be_begun_again(taken: int, data: str, workers: int | None) -> None:
    """With ``_reset()``, as libraries do whose loaders have only one."""
    seen = []
    for make in (TorchDataLoader, fl.DataLoader):
        how: Any = {} if workers is None else {"num_workers": workers}
        torch.manual_seed(4)
        loader = make(DATA[data], 2, shuffle=True, **how)
        batches: Any = iter(loader)
        before = [*islice(batches, taken)]
        for _ in range(2):
            batches._reset(loader)
            before += islice(batches, 5)
        seen.append([*map(repr, [*before, *batches, *loader]), torch.rand(()).item()])
    assert seen[0] == seen[1]
    assert len(seen[0]) == min(taken, 6) + 5 + 6 + 6 + 1


def test_threads_that_begin_it_at_once_leave_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = fl.DataLoader(Drawing(), 2, num_workers=1, persistent_workers=True)
    first = iter(loader)
    go_on_with, is_open, is_overtaken = Epoch.go_on_with, threading.Event(), threading.Event()

    def go_on_later(self: Epoch, epoch: Epoch) -> None:
        if threading.current_thread() is other:
            is_open.set()
            is_overtaken.wait(0.5)
        go_on_with(self, epoch)

    monkeypatch.setattr(Epoch, "go_on_with", go_on_later)
    other = threading.Thread(target=lambda: iter(loader))
    other.start()
    is_open.wait()
    latest = iter(loader)
    is_overtaken.set()
    other.join()
    assert len([next(first), next(latest), *first]) == 6


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_epoch_goes_on_with_its_workers_when_the_loop_sets_another_number(count: int) -> None:
    def loaded(make: Any) -> list[Any]:
        torch.manual_seed(5)
        loader = make(Drawing(), batch_size=2, shuffle=True, num_workers=2, persistent_workers=True)
        batches = []
        for batch in loader:
            batches.append([values.tolist() for values in batch])
            loader.num_workers = count
        return batches

    before = set(multiprocessing.active_children())
    assert loaded(fl.DataLoader) == loaded(TorchDataLoader)
    assert set(multiprocessing.active_children()) <= before
