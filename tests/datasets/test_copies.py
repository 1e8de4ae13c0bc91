"""A copy of a dataset that keeps its samples in memory is a dataset of its own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from tests.datasets.every_dataset import DATASETS, write

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda dataset: pickle.loads(pickle.dumps(dataset)),
}


class Multiples(fl.BaseDataset):
    factor = 1

    def index(self) -> range:
        return range(10)

    def read(self, index: int) -> int:
        return index * self.factor


@pytest.mark.parametrize("make", COPIES)
@pytest.mark.parametrize("mode", fl.LoadingMode)
def test_a_changed_copy_reads_samples_of_its_own(make: str, mode: fl.LoadingMode) -> None:
    dataset = Multiples(".", loading_mode=mode)
    assert [dataset[index] for index in range(10)] == list(range(10))
    other = COPIES[make](dataset)
    other.factor = 5
    for _ in range(2):
        assert [other[index] for index in range(10)] == list(range(0, 50, 5))
        assert [dataset[index] for index in range(10)] == list(range(10))


@pytest.mark.parametrize("kind", DATASETS)
def test_every_dataset_can_be_copied(tmp_path: Path, kind: str) -> None:
    write(tmp_path)
    made, make = DATASETS[kind]
    dataset = make(made, tmp_path)
    other = copy.copy(dataset)
    assert type(other) is type(dataset)
    assert len(other) == len(dataset)
    assert str(other[3]) == str(dataset[3])
