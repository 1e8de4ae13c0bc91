"""Caches of datasets in which the script sets attributes between epochs."""

from __future__ import annotations

import warnings
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Subset

import foreload as fl


class Scale:
    def __init__(self) -> None:
        self.factor = 1

    def __call__(self, value: int) -> int:
        return self.factor * value


class Numbers(Dataset[Any]):
    """It counts and logs what is loaded, and opens a file when it is first needed."""

    def __init__(self) -> None:
        self.epoch, self.steps, self.offset = 0, [Scale()], None
        self.loads, self.log, self.seen, self.file = 0, [], Counter(), None

    def __len__(self) -> int:
        return 24

    @cached_property
    def table(self) -> list[int]:
        return list(range(24))

    def _open(self) -> None:
        if self.file is None:
            self.file = Path(__file__).open("rb")  # noqa: SIM115

    def __getitem__(self, index: int) -> Any:
        self._open()
        self.loads += 1
        self.log.append(index)
        self.seen[index] += 1
        value = self.table[index] + 100 * self.epoch + (self.offset or 0)
        for step in self.steps:
            value = step(value)
        return torch.tensor(value)


def set_epoch(dataset: Numbers, epoch: int) -> None:
    dataset.epoch = epoch


def set_step(dataset: Numbers, epoch: int) -> None:
    dataset.steps[0].factor = epoch + 1


def set_offset(dataset: Numbers, epoch: int) -> None:
    dataset.offset = None if epoch % 2 else 7


def start_counting_anew(dataset: Numbers, epoch: int) -> None:
    dataset.loads, dataset.log, dataset.seen = 0, [], Counter()


def clear_counts(dataset: Numbers, epoch: int) -> None:
    dataset.loads = 0
    dataset.log.clear()
    dataset.seen.clear()


HOW: dict[str, dict[str, Any]] = {
    "auto": {},
    "alone": {"num_workers": 0},
    "seeded": {"seed": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2},
}


def epochs(loader: Any, dataset: Numbers, change: Any) -> list[list[int]]:
    found = []
    for epoch in range(3):
        change(dataset, epoch)
        found.append(sorted(torch.cat(list(loader)).tolist()))
    return found


@pytest.mark.parametrize("change", [set_epoch, set_step, set_offset])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_samples_are_what_the_dataset_gives_now(how: str, change: Any) -> None:
    wanted = epochs(TorchDataLoader(data := Numbers(), 8), data, change)
    data = Numbers()
    loader = fl.DataLoader(data, 8, cache="1MiB", **HOW[how])
    with pytest.warns(UserWarning, match="of the dataset was set since its last epoch, so the cache drops"):
        assert epochs(loader, data, change) == wanted


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dataset_within_a_subset_is_looked_at() -> None:
    data = Numbers()
    loader = fl.DataLoader(Subset(data, range(5, 13)), 8, cache="1MiB")
    with pytest.warns(UserWarning, match="'epoch' of the dataset"):
        assert epochs(loader, data, set_epoch) == [[100 * epoch + i for i in range(5, 13)] for epoch in range(3)]


@pytest.mark.parametrize("change", [start_counting_anew, clear_counts])
@pytest.mark.parametrize("how", ["auto", "alone", "seeded", "threads"])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_loading_sets_is_no_change(how: str, change: Any) -> None:
    data = Numbers()
    loader = fl.DataLoader(data, 8, cache="1MiB", **HOW[how])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert epochs(loader, data, change) == [list(range(24))] * 3
    assert loader.stats()["cache"]["hits"] == 48


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_workers_that_keep_their_copies_keep_the_cache() -> None:
    """As in torch, what is set in the dataset does not reach persistent workers."""
    data = Numbers()
    loader = fl.DataLoader(data, 8, num_workers=2, persistent_workers=True, cache="1MiB")
    assert epochs(loader, data, set_epoch) == [list(range(24))] * 3
    assert loader.stats()["cache"]["hits"] == 48
    loader.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_spill_folder_is_not_used_for_another_dataset(tmp_path: Path) -> None:
    data = Numbers()
    loader = fl.DataLoader(data, 8, num_workers=0, cache=fl.Cache("1KiB", spill=str(tmp_path / "spill")))
    with pytest.warns(UserWarning, match="dataset") as told:
        assert epochs(loader, data, set_epoch) == [[100 * epoch + i for i in range(24)] for epoch in range(3)]
    assert all("'epoch' of the dataset" in str(warning.message) for warning in told)
    assert list((tmp_path / "spill").glob("*.spill"))
