"""Objects that the dataset goes on to hold are the loop's too, as in torch without workers."""

from __future__ import annotations

import functools
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import default_collate_fn_map

import foreload as fl


class Records(Dataset[Any]):
    """Gives what it holds, and takes long enough for processes to be worth it."""

    def __init__(self, size: int) -> None:
        self.records = [{"number": index, "loss": [0.0]} for index in range(size)]
        self.rows = torch.zeros(size, 2)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        sum(range(100_000))
        return self.records[index]


class OwnRows(Records):
    def __getitem__(self, index: int) -> Any:
        sum(range(100_000))
        return self.rows[index]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [8, 300])
def test_what_the_dataset_gives_of_its_own_is_the_loops_too(size: int) -> None:
    """A loop may note the loss of a sample in the sample, as it may in torch without workers."""
    found = []
    for kind in (fl.DataLoader, TorchDataLoader):
        records, rows = Records(size), OwnRows(size)
        for batch in kind(records, batch_size=4, collate_fn=list):
            for record in batch:
                record["seen"] = True
                record["loss"][0] += 1
        for row in kind(rows, batch_size=None):
            row += 1
        found.append((records.records, rows.rows.tolist()))
    assert found[0] == found[1]


def test_samples_of_which_copies_are_as_good_may_be_loaded_by_processes() -> None:
    loader: Any = fl.DataLoader(Records(2000), 4, collate_fn=lambda batch: [each["number"] for each in batch])
    assert next(iter(loader)) == [0, 1, 2, 3]
    assert "goes on to hold" not in loader.stats()["workers"]["why"]


SLOW = 0.004


class Given(Dataset[Any]):
    """Gives what it holds, or what is made anew, as ``is_new`` says."""

    def __init__(self, is_new: Callable[[int], bool], size: int = 300) -> None:
        self.records = [{"seen": 0} for _ in range(size)]
        self.is_new = is_new

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        time.sleep(SLOW)
        return {"seen": 0} if self.is_new(index) else self.records[index]


class Late(Given):
    """Takes long to load the first sample."""

    def __getitem__(self, index: int) -> Any:
        if not hasattr(self, "index"):
            time.sleep(0.6)
            self.index = True
        return super().__getitem__(index)


class Crops(Given):
    """Gives views of what it holds, each at another place."""

    def __init__(self, is_array: bool) -> None:
        super().__init__(bool)
        self.wave: Any = np.zeros(1000) if is_array else torch.zeros(1000)

    def __getitem__(self, index: int) -> Any:
        time.sleep(SLOW)
        begin = 3 * index
        return {"seen": self.wave[begin : begin + 3]}


class Hidden(Crops):
    """Gives tensors over arrays that are hard to find among what it holds, the first of them a copy."""

    def __init__(self, hide: Callable[[list[Any]], Callable[[int], Any]]) -> None:
        super().__init__(is_array=True)
        self.names = [str(index) for index in range(3000)]
        self.get = hide([np.zeros(3) for _ in range(300)])

    def __getitem__(self, index: int) -> Any:
        time.sleep(SLOW)
        array = self.get(index)
        return {"seen": torch.from_numpy(array if index else array.copy())}


class Scaled(Crops):
    """Gives tensors over the array that it holds."""

    def __getitem__(self, index: int) -> Any:
        return {"seen": torch.from_numpy(super().__getitem__(index)["seen"])}


CHANGING: dict[str, Callable[[], Given]] = {
    "all": lambda: Given(lambda index: False),
    "all but the first": lambda: Given(lambda index: index == 0),
    "rare ones": lambda: Given(lambda index: index % 50 != 49),
    "all of a slow one": lambda: Late(lambda index: False),
    "crops of a tensor": lambda: Crops(is_array=False),
    "crops of an array": lambda: Crops(is_array=True),
    "tensors over an array": lambda: Scaled(is_array=True),
    "tensors over arrays in a mapping": lambda: Hidden(
        lambda arrays: types.MappingProxyType(dict(enumerate(arrays))).__getitem__
    ),
    "tensors over arrays in a series": lambda: Hidden(lambda arrays: pandas.Series(arrays).__getitem__),
    "tensors over what a function keeps": lambda: Hidden(
        lambda arrays: functools.lru_cache(None)(lambda index: np.zeros(3))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGING)
def test_what_a_loop_writes_to_a_sample_is_in_the_next_epoch(name: str) -> None:
    found = []
    for kind in (fl.DataLoader, TorchDataLoader):
        loader, seen = kind(CHANGING[name](), 4, collate_fn=list), []
        for _ in range(2):
            for batch in loader:
                for sample in batch:
                    seen.append(torch.as_tensor(sample["seen"]).sum().item())
                    sample["seen"] += 1
        found.append(seen)
    assert found[0] == found[1]


@pytest.mark.slow
def test_what_a_loop_writes_to_a_file_by_way_of_a_sample_is_there(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    seen = []
    for kind in (fl.DataLoader, TorchDataLoader):
        np.ones((300, 3)).tofile(path)
        dataset = Hidden(lambda _: lambda index: np.memmap(path, np.float64, "r+", offset=24 * index, shape=(3,)))
        for number in range(2):
            for sample in kind(dataset, None):
                sample["seen"] += number + 1
        seen.append(np.fromfile(path).tolist())
    assert seen[0] == seen[1]


class Noted:
    """An object that a loop writes to."""

    seen = 0


@pytest.mark.slow
def test_objects_that_torchs_collation_passes_on_are_the_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(default_collate_fn_map, Noted, lambda batch, *, collate_fn_map=None: batch)
    dataset = Given(bool)
    dataset.records = [Noted() for _ in range(300)]  # type: ignore[misc]
    dataset.is_new = lambda index: False
    for batch in fl.DataLoader(dataset, 4):
        for noted in batch:
            noted.seen += 1
    assert [noted.seen for noted in dataset.records] == [1] * 300


@pytest.mark.slow
def test_what_the_loop_sets_between_epochs_may_change_whose_samples_are() -> None:
    dataset = Given(bool)
    dataset.is_new = bool
    loader = fl.DataLoader(dataset, 4, collate_fn=list)
    for is_new in (True, False, False):
        dataset.is_new = lambda index, is_new=is_new: is_new  # type: ignore[misc]
        for batch in loader:
            for sample in batch:
                sample["seen"] += 1
    assert [record["seen"] for record in dataset.records] == [2] * 300


class Computed(Dataset[Any]):
    """Samples of a model, slow enough for worker processes."""

    def __init__(self) -> None:
        self.weight = torch.ones(2, requires_grad=True)

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.004)
        return self.weight * index


def test_gradients_lead_back_from_samples_into_the_dataset() -> None:
    dataset = Computed()
    for batch in fl.DataLoader(dataset, batch_size=10, collate_fn=list):
        torch.stack(batch).sum().backward()
    assert dataset.weight.grad is not None
    assert dataset.weight.grad.tolist() == [sum(range(100))] * 2
