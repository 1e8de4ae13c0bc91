"""Loaders with every kind of worker, torch's among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import foreload as fl

KINDS: dict[str, Any] = {
    "stock": lambda data, workers=2, **more: TorchDataLoader(data, num_workers=workers, **more),
    "here": lambda data, workers=2, **more: fl.DataLoader(data, num_workers=0, **_without_workers(more)),
    "threads": lambda data, workers=2, **more: fl.DataLoader(data, num_workers=workers, workers="threads", **more),
    "processes": lambda data, workers=2, **more: fl.DataLoader(
        data, num_workers=workers, workers="processes", **more
    ),
    "auto": lambda data, workers=2, **more: fl.DataLoader(data, **more),
}

every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def _without_workers(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in arguments.items()
        if name not in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
    }


class Numbers(Dataset[Any]):
    def __init__(self, size: int = 20) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return index


class Count(IterableDataset[Any]):
    def __init__(self, size: int = 10, length: int | None = None) -> None:
        self.size = size
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        return iter(range(self.size) if info is None else range(info.id, self.size, info.num_workers))


def flat(loader: Any) -> list[Any]:
    return [item for batch in loader for item in (batch.tolist() if isinstance(batch, torch.Tensor) else batch)]


def as_list(samples: Any) -> Any:
    return samples
