"""Datasets that threads may share, and samples of every kind."""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import foreload as fl
from tests.workers.unsafe_datasets import SIZE, Computed, LazyFile, Samples, pause

_TABLE = {index: index * index for index in range(SIZE)}
_LOGGER = logging.getLogger("tests.check_threads")


class Positionless(Samples):
    """``os.pread`` takes the position as an argument."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY)

    def __getitem__(self, index: int) -> bytes:
        return os.pread(self.fd, 8, 8 * index)


class PerThread(Samples):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.local = threading.local()

    def __getitem__(self, index: int) -> bytes:
        if not hasattr(self.local, "file"):
            self.local.file = self.path.open("rb")
        self.local.file.seek(8 * index)
        pause()
        return self.local.file.read(8)


class PerThreadId(PerThread):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: dict[int, Any] = {}

    def __getitem__(self, index: int) -> bytes:
        file = self.files.get(threading.get_ident())
        if file is None:
            file = self.files[threading.get_ident()] = self.path.open("rb")
        file.seek(8 * index)
        pause()
        return file.read(8)


class Locked(LazyFile):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lock = threading.RLock()

    def __getitem__(self, index: int) -> bytes:
        with self.lock, self.path.open("rb") as file:
            file.seek(8 * index)
            return file.read(8)


class Mapped(Samples):
    def __init__(self, path: Path, *, lazy: bool) -> None:
        self.path = path
        self.rows = None if lazy else self.map()

    def map(self) -> Any:
        return np.memmap(self.path, np.uint8, "r", shape=(SIZE, 8))

    def __getitem__(self, index: int) -> Any:
        if self.rows is None:
            self.rows = self.map()
        return torch.from_numpy(self.rows[index].copy())


class Logging(Samples):
    def __init__(self) -> None:
        self.logger = logging.getLogger("tests.check_threads.dataset")
        self.logger.addHandler(logging.StreamHandler(io.StringIO()))
        self.logger.propagate = False

    def __getitem__(self, index: int) -> int:
        self.logger.warning("loading %d", index)
        _LOGGER.debug("loading %d", index)
        return index


class Unequal:
    """An object without a pickle."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.lock = threading.Lock()


@dataclasses.dataclass
class Record:
    name: str
    image: Any
    score: float
    tags: frozenset[str]


def records(index: int) -> Record:
    pixels = np.full((4, 4, 3), index, np.uint8)
    return Record(f"name {index}", Image.fromarray(pixels), float("nan"), frozenset("abc"))


def nested(index: int) -> Any:
    return {"x": [torch.full((2,), float("nan")), (np.float32(index), None)], "y": {"z": f"{index}", "w": b"\0"}}


SAFE: dict[str, Callable[[Path], Any]] = {
    "a list": lambda _: list(range(SIZE)),
    "an array": lambda _: np.arange(SIZE),
    "tensors": lambda _: TensorDataset(torch.randn(SIZE, 3), torch.arange(SIZE)),
    "a subset of several": lambda _: Subset(ConcatDataset([TensorDataset(torch.arange(9))] * 2), [3, 1, 17]),
    "a memmap": lambda rows: Mapped(rows, lazy=False),
    "a memmap opened when needed": lambda rows: Mapped(rows, lazy=True),
    "a file opened for each sample": Locked,
    "a file read by position": Positionless,
    "a file for each thread": PerThread,
    "a file for each thread's number": PerThreadId,
    "a logger": lambda _: Logging(),
    "dataclasses with images, NaNs and sets": lambda _: Computed(records),
    "nested samples": lambda _: Computed(nested),
    "samples without a pickle": lambda _: Computed(Unequal),
    "functions as samples": lambda _: Computed(lambda index: lambda: index),
    "sparse tensors": lambda _: Computed(lambda index: torch.eye(3).mul(index + 1).to_sparse()),
    "nested tensors": lambda _: Computed(lambda n: torch.nested.nested_tensor([torch.ones(n + 1), torch.ones(2)])),
    "a table of the module": lambda _: Computed(lambda index: _TABLE[index]),
    "one sample": lambda _: [torch.ones(3)],
    "slow samples": lambda _: Computed(lambda index: time.sleep(0.02) or index),
    "foreload's own": lambda _: fl.CachedDataset(torch.arange(SIZE)),
}
