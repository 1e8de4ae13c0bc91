"""Datasets that say what was loaded ahead, and by which thread."""

from __future__ import annotations

import threading

from torch.utils.data import Dataset

import foreload as fl


class Squares(Dataset[int]):
    """Says what was loaded, and by which thread; a gate holds up what runs in other threads."""

    def __init__(self, size: int = 100) -> None:
        self.size = size
        self.loaded: list[int] = []
        self.helped: set[int] = set()
        self.bad = -1
        self.classes = ["even", "odd"]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.loaded.append(index)
        if threading.current_thread().name.startswith("foreload-prefetch"):
            self.helped.add(index)
        if index == self.bad:
            raise KeyError(f"bad {index}")
        return int(index) ** 2


def settle(dataset: fl.AsyncPrefetchDataset) -> None:
    """Wait for what is being loaded ahead."""
    for future in list(dataset._reader._loaded.values()):
        future.exception()
