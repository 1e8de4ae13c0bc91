"""A loader runs no property of a dataset's: it may open, for the loop, what each worker is to open for itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import foreload as fl


class OpenedLate(Dataset[int]):
    """Opens its file when it is first needed, at a position that forks of this process would share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: Any = None
        self.opened_by: list[int] = []

    @property
    def dataset(self) -> Any:
        if self.file is None:
            self.file = open(self.path, "rb", buffering=0)  # noqa: SIM115
            self.opened_by.append(os.getpid())
        return self.file

    datasets = transform = transforms = dataset

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        self.dataset.seek(8 * index)
        return int.from_bytes(self.dataset.read(8), "little")

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


@pytest.mark.parametrize(
    "options",
    [{"workers": "processes"}, {"num_workers": 2}, {"num_workers": 2, "cache": "1MiB"}],
    ids=["auto", "processes", "cache"],
)
def test_what_workers_open_is_not_opened_before_they_start(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "numbers"
    np.arange(64, dtype=np.int64).tofile(path)
    dataset = OpenedLate(path)
    with fl.DataLoader(dataset, batch_size=4, **options) as loader:
        loader.stats()
        assert torch.cat(list(loader)).tolist() == list(range(64))
        assert str(loader.report())
        assert dataset.opened_by == []


def test_a_dataset_that_has_any_attribute_is_loaded() -> None:
    dataset = MagicMock(__getitems__=None)
    dataset.__len__.return_value = 4
    dataset.__getitem__.side_effect = lambda index: 10 * index
    assert [batch.tolist() for batch in fl.DataLoader(dataset, batch_size=2)] == [[0, 10], [20, 30]]


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_a_sampler_that_has_any_attribute_is_asked(name: str) -> None:
    sampler = MagicMock()
    sampler.__len__.return_value = 2
    sampler.__iter__.side_effect = lambda: iter([[2, 0], [3]] if name == "batch_sampler" else [2, 0])
    batches: list[torch.Tensor] = list(fl.DataLoader([0, 10, 20, 30], **{name: sampler}))
    assert torch.cat(batches).tolist() == ([20, 0, 30] if name == "batch_sampler" else [20, 0])
