"""The loop's dataset has what loading makes when it is first needed, whoever loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload.tune import choose as tune_choose
from foreload.tune.choice import Choice
from foreload.tune.workload import Workload
from foreload.workers import selection
from tests.tune.fills import fills_of


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
        return Choice("processes", 2, "as the test says", fills=fills_of(work))

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


class Forgets(Table):
    """A dataset whose table the loop sets to None, so that it is made again in each epoch."""


def test_it_is_made_in_each_epoch_in_which_it_is_needed() -> None:
    def found(kind: Any) -> list[Any]:
        dataset = Forgets()
        loader = kind(dataset, batch_size=4)
        held = []
        for _ in range(3):
            dataset.table = None
            held += [(batch.tolist(), dataset.table) for batch in loader]
        return held

    assert found(fl.DataLoader) == found(TorchDataLoader)


class Shards(Table):
    """Each sample but those of one kind needs a part that was not needed before."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Any] = [None] * 4

    def __getitem__(self, index: int) -> int:
        part = index % 4
        if self.parts[part] is None:
            self.parts[part] = {"number": part}
        return super().__getitem__(index) + int(self.parts[part]["number"])


def test_what_is_made_later_is_known_by_where_it_is() -> None:
    found, loader = seen(fl.DataLoader, Shards(), 3)
    assert found == seen(TorchDataLoader, Shards(), 3)[0]
    assert loader.stats()["workers"]["kind"] == "processes"


class Later(Table):
    """Only some samples need the table, and none of the first ones."""

    def __getitem__(self, index: int) -> int:
        return super().__getitem__(index) if index > 20 and index % 2 else index


@pytest.mark.parametrize("options", [{}, {"shuffle": True}])
def test_it_is_made_with_the_batch_that_needs_it(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    found, loader = seen(fl.DataLoader, Later(), 3, **options)
    torch.manual_seed(1)
    assert found == seen(TorchDataLoader, Later(), 3, **options)[0]
    assert loader.stats()["workers"]["kind"] == "processes"


class Reader:
    """Holds a file."""

    def __init__(self) -> None:
        self.file = open(__file__)  # noqa: SIM115

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Reads(Table):
    """Makes a reader when the first sample is loaded."""

    reader: Reader | None = None

    def __getitem__(self, index: int) -> int:
        if self.reader is None:
            self.reader = Reader()
        return index


def test_no_reader_with_a_file_is_made_for_the_loop() -> None:
    dataset = Reads()
    _, loader = seen(fl.DataLoader, dataset, 3)
    assert dataset.reader is None
    assert loader.stats()["workers"]["kind"] == "processes"


class Sets(Table):
    """Says in a variable which sample was the last."""

    def __getitem__(self, index: int) -> int:
        global last
        last = index
        return index


last = -1


def test_a_variable_that_samples_only_set_is_the_loops() -> None:
    def found(kind: Any) -> list[int]:
        global last
        last = -1
        return [last for _ in kind(Sets(), batch_size=4)]

    assert found(fl.DataLoader) == found(TorchDataLoader)


class Counts(Table):
    """Counts its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __getitem__(self, index: int) -> int:
        self.calls += 1
        return self.calls


class Behind(Table):
    """Takes its samples from a loader's dataset."""

    def __init__(self) -> None:
        super().__init__()
        self.loader = TorchDataLoader(Counts())

    def __getitem__(self, index: int) -> int:
        return int(self.loader.dataset[index])


def test_the_dataset_behind_a_loader_is_looked_at() -> None:
    found = [batch.tolist() for batch in fl.DataLoader(Behind(), batch_size=4)]
    assert found == [batch.tolist() for batch in TorchDataLoader(Behind(), batch_size=4)]


def test_the_first_batch_counts_once(tmp_path: Path) -> None:
    loader = fl.DataLoader(Table(), batch_size=4)
    assert sum(len(batch) for batch in loader) == 40
    assert loader.stats()["stages"]["sample"]["count"] in (40, 10)
