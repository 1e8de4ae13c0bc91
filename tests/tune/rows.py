"""Datasets that wait or fail, and the workers that are chosen for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

import foreload as fl


class Rows(Dataset[Any]):
    """A dataset of the user's."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), index)


class Waits(Rows):
    """Waits, as for a disk."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return index


class SharedWaits(Waits):
    """Its author says that threads may share it."""

    thread_safe = True


def chosen(dataset: Any, **options: Any) -> Any:
    loader = fl.DataLoader(dataset, batch_size=8, **options)
    loader.choose_workers()
    return loader.stats()["workers"]


def without_workers(make: Callable[[], Any]) -> Any:
    """Return what is chosen where workers are not worth it, which a busy moment may hide."""
    for _ in range(10):
        found = chosen(make())
        if found["count"] == 0:
            return found
    raise AssertionError(found)


class Breaks(Rows):
    """No sample can be loaded."""

    def __getitem__(self, index: int) -> Any:
        raise ValueError("nothing can be loaded here")
