"""The loop's dataset has what loading makes when it is first needed, whoever loads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload.tune import choose as tune_choose
from foreload.tune import measure
from foreload.tune.choice import Choice
from foreload.tune.workload import Workload
from foreload.workers import selection


class Table(Dataset[Any]):
    """Reads a table, and what it has learned of it, when the first sample is loaded; a file too, if it is to."""

    def __init__(self, *, opens: bool = False) -> None:
        self.table: list[int] | None = None
        self.file: Any = None
        self.opens = opens

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if self.table is None:
            self.table = list(range(40))
            self.names = {number: f"row {number}" for number in self.table}
            if self.opens:
                self.file = open(__file__)  # noqa: SIM115
        return self.table[index]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": None}


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are chosen, whatever is measured but for what loading makes."""

    def choose_workers(work: Workload) -> Choice:
        if "processes" not in work.kinds:
            return Choice("threads", 0, "as the test says")
        fills = measure._in_fork(work, measure._make).fills
        return Choice("processes", 2, "as the test says", fills=fills)

    monkeypatch.setattr(selection, "_chosen", {})
    monkeypatch.setattr(tune_choose, "choose_workers", choose_workers)


def seen(kind: Any, dataset: Table, epochs: int = 2, **options: Any) -> tuple[list[Any], Any]:
    """Return the batches, and what the loop finds in the dataset at each."""
    loader = kind(dataset, batch_size=4, **options)
    found = [
        (batch.tolist(), dataset.table and list(dataset.table), getattr(dataset, "names", None))
        for _ in range(epochs)
        for batch in loader
    ]
    return found, loader


@pytest.mark.parametrize("options", [{}, {"cache": "1MiB"}, {"transform": torch.tensor}])
def test_the_loops_dataset_has_what_loading_makes(options: dict[str, Any]) -> None:
    found, loader = seen(fl.DataLoader, Table(), **options)
    assert found == seen(TorchDataLoader, Table())[0]
    assert loader.stats()["workers"]["kind"] == "processes"


def test_the_loop_may_change_what_loading_has_made() -> None:
    def doubled(kind: Any) -> list[Any]:
        dataset, found = Table(), []
        for number, batch in enumerate(kind(dataset, batch_size=4)):
            found.append(batch.tolist())
            if number == 3:
                assert dataset.table is not None
                dataset.table[:] = [2 * value for value in dataset.table]
        return found

    assert doubled(fl.DataLoader) == doubled(TorchDataLoader)


def test_no_file_is_opened_for_the_loop_which_later_copies_would_share() -> None:
    dataset = Table(opens=True)
    found, loader = seen(fl.DataLoader, dataset)
    assert [batch for batch, *_ in found] == [batch for batch, *_ in seen(TorchDataLoader, Table())[0]]
    assert (dataset.table, dataset.file) == (None, None)
    assert loader.stats()["workers"]["kind"] == "processes"
    dataset.opens = False  # seen by the loader: the calling thread loads, from what the first batch makes
    found, loader = seen(fl.DataLoader, dataset, epochs=1)
    assert [batch for batch, *_ in found] == [batch for batch, *_ in seen(TorchDataLoader, Table(), 1)[0]]


class Fails(Table):
    """Fails where the loop may skip it, in the first batch."""

    def __getitem__(self, index: int) -> int:
        value = super().__getitem__(index)
        if index == 2:
            raise ValueError("no such row")
        return value


def test_a_sample_that_fails_in_the_first_batch_is_told_of_once() -> None:
    loader = fl.DataLoader(Fails(), batch_size=4, on_error="skip")
    batches = [batch.tolist() for batch in loader]
    assert batches[0] == [0, 1, 3]
    assert [error.index for error in loader.errors] == [2]


class Odd(Table):
    """Its first batch makes more than what was seen when it was measured."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __getitem__(self, index: int) -> int:
        if index == 1:
            self.rows.append(index)
        return super().__getitem__(index) + len(self.rows)


def test_what_else_the_first_batch_changes_is_the_calling_threads() -> None:
    assert seen(fl.DataLoader, Odd(), 3)[0] == seen(TorchDataLoader, Odd(), 3)[0]
