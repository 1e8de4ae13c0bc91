"""A copy of a dataset that keeps its samples in memory is a dataset of its own."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

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


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint64, torch.bfloat16, torch.bool, torch.complex64])
def test_rows_of_any_type_can_be_copied(dtype: torch.dtype) -> None:
    rows = torch.arange(6).view(3, 2).to(dtype)
    dataset = fl.CachedDataset({"rows": rows, "column": rows[0][None].T[[0, 1, 0]]})
    for copied in COPIES.values():
        other = copied(dataset)
        assert [(name, field.dtype, field.tolist()) for name, field in other[1:].items()] == [
            (name, field.dtype, field.tolist()) for name, field in dataset[1:].items()
        ]


@pytest.mark.parametrize("kind", DATASETS)
def test_every_dataset_can_be_copied(tmp_path: Path, kind: str) -> None:
    write(tmp_path)
    made, make = DATASETS[kind]
    dataset = make(made, tmp_path)
    for copied in COPIES.values():
        other = copied(dataset)
        assert type(other) is type(dataset)
        assert len(other) == len(dataset)
        assert str(other[3]) == str(dataset[3])


def test_a_dataset_is_saved_with_a_tensor_that_shares_its_memory() -> None:
    rows = torch.arange(12.0).reshape(4, 3).share_memory_()  # type: ignore[no-untyped-call]
    dataset = fl.CachedDataset(rows)
    file = io.BytesIO()
    torch.save({"dataset": dataset, "rows": rows}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    assert torch.equal(saved["dataset"][2], rows[2])
    assert torch.equal(saved["rows"], rows)
