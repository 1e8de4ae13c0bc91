"""Datasets of all that default_collate knows, and batches compared."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Point(NamedTuple):
    x: torch.Tensor
    name: str


class Rich(Dataset[Any]):
    """All that default_collate knows."""

    def __init__(self, size: int = 50) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return {
            "image": torch.full((3, 20, 20), float(index)),
            "array": np.arange(index, index + 4, dtype=np.int16),
            "nested": [(index, float(index)), {"text": f"sample {index}", "bytes": bytes([index % 256])}],
            "point": Point(torch.tensor(index), str(index)),
            "worker": -1 if get_worker_info() is None else get_worker_info().id,
        }


class Stream(IterableDataset[Any]):
    def __init__(self, size: int = 47) -> None:
        self.size = size

    def __iter__(self) -> Any:
        info = get_worker_info()
        return iter(range(info.id, self.size, info.num_workers))


def same(ours: Any, stock: Any) -> bool:
    if type(ours) is not type(stock):
        return False
    if isinstance(ours, torch.Tensor):
        return ours.dtype == stock.dtype and torch.equal(ours, stock)
    if isinstance(ours, np.ndarray):
        return bool(np.array_equal(ours, stock))
    if isinstance(ours, dict):
        return list(ours) == list(stock) and all(same(ours[key], stock[key]) for key in ours)
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(stock) and all(map(same, ours, stock))
    return bool(ours == stock)


class Failing(Rich):
    def __getitem__(self, index: int) -> Any:
        if index in (6, 13):
            raise FileNotFoundError(2, "there is no such picture", f"/data/{index}.jpg")
        return index


class Deadly(Rich):
    """Kills the workers that load the wrong sample, ``times`` in all."""

    def __init__(self, size: int, times: int, end: Any = signal.SIGKILL) -> None:
        super().__init__(size)
        self.left = torch.tensor([times]).share_memory_()
        self.end = end

    def __getitem__(self, index: int) -> Any:
        if index == 13 and self.left > 0:
            self.left -= 1
            if isinstance(self.end, signal.Signals):
                os.kill(os.getpid(), self.end)
                time.sleep(10)
            os._exit(self.end)
        return index
