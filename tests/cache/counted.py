"""A dataset that counts its calls over all processes, and the kinds of workers that load it."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.utils.data import Dataset

from foreload.cache.serialize import serialize

SIZE = 120


_counting = threading.Lock()


class Counted(Dataset[Any]):
    """Counts its calls, over all processes."""

    def __init__(self, size: int = SIZE, floats: int = 100) -> None:
        self.size = size
        self.floats = floats
        self.calls = torch.zeros(size, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with _counting:  # threads that load one sample at once would count one call
            self.calls[index] += 1
        return torch.full((self.floats,), float(index)), index


def block(sample: Any) -> int:
    """Return the bytes that a sample takes of the budget."""
    return -(-sum(map(len, serialize(sample))) // 64) * 64 + 64


def room_for(count: int, dataset: Dataset[Any] | None = None) -> int:
    return count * block((dataset or Counted())[0])


WORKERS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "persistent threads": {"num_workers": 2, "workers": "threads", "persistent_workers": True},
    "processes": {"num_workers": 2, "workers": "processes"},
    "persistent processes": {"num_workers": 2, "workers": "processes", "persistent_workers": True},
}
