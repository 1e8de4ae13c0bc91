"""A dataset, and torch's loader without workers, for tests of what follows the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

# Instead of a measurement: the calling thread, or processes.
COUNTS = [0, 2]

SIZE = 48


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return index * index


def plain(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, (torch.Tensor, np.ndarray)) else batch


def stock(dataset: Any, options: dict[str, Any]) -> Any:
    """Return torch's loader without workers, which takes no arguments for workers."""
    names = ("persistent_workers", "in_order", "prefetch_factor")
    return TorchDataLoader(dataset, **{name: value for name, value in options.items() if name not in names})
