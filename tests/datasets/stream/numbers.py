"""Streams of numbers and of tar shards, for tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

import foreload as fl


class Numbers(Dataset[int]):
    """Notes what it is asked for."""

    def __init__(self, size: int, *, broken: Sequence[int] = ()) -> None:
        self.size, self.broken = size, broken
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.asked.append([index])
        if index in self.broken:
            raise OSError(f"no {index}")
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(list(indices))
        if set(indices) & set(self.broken):
            raise OSError("one of them")
        return list(indices)


class Rows(fl.BaseDataset):
    """Of a user's own, with blocks of its own."""

    def index(self) -> int:
        return 50

    def read(self, index: int) -> Any:
        if index == 13:
            raise OSError("no 13")
        return index, index % 3

    def storage_blocks(self, size: int) -> Any:
        return [0, 20, 21]


def write_tar(path: Path, keys: Sequence[int], mode: str = "w", size: int = 20) -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for key in keys:
            content = np.random.default_rng(key).bytes(size + key % 7)
            for field, data in (("bin", content), ("cls", str(key).encode())):
                member = tarfile.TarInfo(f"{key:06}.{field}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path
