"""Batches that show if something else has written to their memory, from every kind of worker."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

SHAPE = (96, 128)  # large enough that a batch lies in a slot
KINDS: dict[str, dict[str, Any]] = {
    "here": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


class Filled(Dataset[Any]):
    def __init__(self, size: int = 48) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full(SHAPE, float(index)), index


def is_intact(x: torch.Tensor, y: torch.Tensor) -> bool:
    # By NumPy: torch's threads do not survive a fork.
    return bool((x.numpy() == y.numpy().reshape(-1, 1, 1)).all())
