"""Writes to arrays that are too large to be compared are in the next batch, whoever writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from tests.writes import needs_writes

ROWS, WIDTH = 3072, 8192  # 24 MiB


class Images(Dataset[Any]):
    """Rows of an array, of which a sample may change one."""

    def __init__(self, rare: int = -1) -> None:
        self.rows = np.zeros((ROWS, WIDTH), np.uint8)
        self.rare = rare

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> Any:
        if index == self.rare:
            self.rows[200:, 4_003] = 9
        return index, int(self.rows[index].astype(np.int64).sum())


def sums(kind: Any, change: Callable[[Images, int], None], rare: int = -1, **arguments: Any) -> list[Any]:
    dataset = Images(rare)
    loader, come = kind(dataset, batch_size=8, **arguments), []
    for _ in range(2):
        for number, (_, values) in enumerate(loader):
            come.append(values.tolist())
            change(dataset, number)
    return come


def nothing(dataset: Images, number: int) -> None:
    pass


def in_the_middle(dataset: Images, number: int) -> None:
    if number % 9 == 4:
        dataset.rows[100 + 3 * number :, 4_001 + number] += 1


def by_torch(dataset: Images, number: int) -> None:
    if number == 7:
        torch.from_numpy(dataset.rows)[150:, 1_234] = 5


@needs_writes
@pytest.mark.parametrize("change", [nothing, in_the_middle, by_torch])
@pytest.mark.parametrize("count", [0, 2])
def test_what_the_loop_writes_is_in_the_next_batch(
    change: Callable[[Images, int], None], count: int, choose: Callable[..., None]
) -> None:
    expected = sums(TorchDataLoader, change)
    choose(count)
    assert sums(fl.DataLoader, change) == expected


@needs_writes
def test_what_a_sample_writes_is_in_all_later_ones(choose: Callable[..., None]) -> None:
    expected = sums(TorchDataLoader, nothing, rare=29)
    choose(2)
    assert sums(fl.DataLoader, nothing, rare=29) == expected
