"""A loader like SpeechBrain's ``SaveableDataLoader``, against torch's with what SpeechBrain puts into that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import foreload as fl


class Numbers(Dataset[Any]):
    """Numbers, with what is drawn for each."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(1)


class Pairs(list[Any]):
    """A batch sampler of a user's own, of batches of different sizes."""

    def __init__(self) -> None:
        super().__init__([[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [0]])


class Saveable:
    """The addition of SpeechBrain 1.1 to a loader: it saves the number of batches that are over, and loads it."""

    _speechbrain_recovery_skip_to: int | None = None
    _speechbrain_iterator: Any = None

    def __iter__(self) -> Any:
        self._speechbrain_iterator = super().__iter__()  # type: ignore[misc]
        return self._speechbrain_iterator

    def save(self, path: Path) -> None:
        path.write_text(str(self._speechbrain_iterator._num_yielded))

    def load(self, path: Path) -> None:
        self._speechbrain_recovery_skip_to = int(path.read_text())


class Ours(Saveable, fl.DataLoader[Any]):
    """Derived from foreload's class, as SpeechBrain's is where that stands for torch's."""


class Stock(Saveable, TorchDataLoader[Any]):
    """Derived from torch's class."""


@pytest.fixture(autouse=True)
def _patched(monkeypatch: pytest.MonkeyPatch) -> None:
    construct: Any = _BaseDataLoaderIter.__init__
    reset: Any = _BaseDataLoaderIter._reset

    def passing_over(self: Any, loader: Any, *arguments: Any) -> None:
        construct(self, loader, *arguments)
        over = getattr(loader, "_speechbrain_recovery_skip_to", None)
        for number in range(over or 0):
            next(self._sampler_iter)
            self._num_yielded = number + 1
        if over is not None:
            loader._speechbrain_recovery_skip_to = None

    def later(self: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:  # that would begin with the first batch again
            reset(self, loader, first_iter)

    monkeypatch.setattr(_BaseDataLoaderIter, "__init__", passing_over)
    monkeypatch.setattr(_BaseDataLoaderIter, "_reset", later)


def rest(kind: Any, path: Path, **options: Any) -> list[str]:
    """Return what is left after two batches, and after two more, of a run each, and the epoch after that."""
    found: list[Any] = []
    for run in range(3):
        torch.manual_seed(5)
        loader = kind(Numbers(), **options)
        if run:
            loader.load(path)
        batches = iter(loader)
        found += [next(batches) for _ in range(2 if run < 2 else 0)]
        loader.save(path) if run < 2 else None
        found += [path.read_text(), list(batches)]
    return [repr(each) for each in [*found, list(loader)]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [{"batch_size": 4}, {"batch_size": 4, "shuffle": True}, {"batch_size": None}, {"batch_sampler": Pairs()}],
)
def test_a_recovered_loader_goes_on_after_the_batches_that_were_over(
    tmp_path: Path, options: dict[str, Any], workers: int
) -> None:
    options = {**options, "num_workers": workers}
    assert rest(Ours, tmp_path / "ours", **options) == rest(Stock, tmp_path / "stock", **options)


def test_what_is_left_out_for_good_stays_so(tmp_path: Path) -> None:
    (tmp_path / "place").write_text("2")
    loader = Ours(list(range(10)), batch_size=2, skip=fl.Skip(steps=3))
    loader.load(tmp_path / "place")
    assert [[batch.tolist() for batch in loader] for _ in range(2)] == [
        [[4, 5], [8, 9]],
        [[0, 1], [2, 3], [4, 5], [8, 9]],
    ]


class Counted(IterableDataset[int]):
    """Numbers that come one after another."""

    def __iter__(self) -> Any:
        return iter(range(6))


def test_an_iterable_dataset_is_read_from_its_beginning_as_with_torch(tmp_path: Path) -> None:
    (tmp_path / "place").write_text("2")
    found = []
    for kind in (Ours, Stock):
        loader = kind(Counted(), batch_size=2)
        loader.load(tmp_path / "place")
        found.append([[batch.tolist() for batch in loader] for _ in range(2)])
    assert found[0] == found[1] == [[[0, 1], [2, 3], [4, 5]]] * 2
