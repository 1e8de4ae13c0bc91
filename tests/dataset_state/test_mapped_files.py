"""Datasets over files that are mapped into memory: what is watched in them may not read the whole file."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import foreload as fl
from foreload.dataset_state.digest import digest
from tests.datasets.test_direct import cached_pages

SIZE = 1 << 30  # bytes; without any on the disk


class Tokens(Dataset[int]):
    """Reads a number of a file, at one of a few places."""

    def __init__(self, data: Any, seconds: float = 0) -> None:
        self.data = data
        self.seconds = seconds

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        return int(self.data[index % 10])


def opened(path: Path, access: int) -> mmap.mmap:
    with path.open("rb" if access == mmap.ACCESS_READ else "r+b") as file:
        return mmap.mmap(file.fileno(), 0, access=access)


FILES: dict[str, Callable[[Path], Any]] = {
    "memmap": lambda path: np.memmap(path, np.uint8, "r"),
    "memmap, private": lambda path: np.memmap(path, np.uint8, "c"),
    "memmap, shared": lambda path: np.memmap(path, np.uint8, "r+"),
    "memmap, strided": lambda path: np.memmap(path, np.uint8, "r", shape=(2, SIZE // 2))[:, ::2].T,
    "mmap": lambda path: opened(path, mmap.ACCESS_READ),
    "mmap, shared": lambda path: opened(path, mmap.ACCESS_WRITE),
    "array": lambda path: np.frombuffer(opened(path, mmap.ACCESS_READ), np.uint8),
    "tensor": lambda path: torch.from_file(str(path), shared=True, size=SIZE, dtype=torch.uint8),
}


@pytest.mark.parametrize("seconds", [0, 0.002])  # processes are chosen where samples wait
@pytest.mark.parametrize("kind", FILES)
def test_a_large_file_is_not_read_to_see_whether_it_changes(kind: str, seconds: float, tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    with path.open("wb") as file:
        file.truncate(SIZE)
    dataset = Tokens(FILES[kind](path), seconds)
    if kind == "memmap, strided":
        dataset.__class__ = type("Rows", (Tokens,), {"__getitem__": lambda self, index: int(self.data[index, 0])})
    loader = fl.DataLoader(dataset, batch_size=4, shuffle=True)
    for number, _ in enumerate(loader):
        if number == 20:
            break
    loader.close()
    # Some machines read 8 MiB for each page, also where a private copy is made of what is shared.
    assert cached_pages(path) * mmap.PAGESIZE < SIZE // 2
    os.unlink(path)


def test_many_files_that_are_only_read_are_not_read_at_all(tmp_path: Path) -> None:
    """Each of them is small enough to be compared as a whole."""
    path = tmp_path / "part.bin"
    with path.open("wb") as file:
        file.truncate(SIZE // 32)
    for kind in ("memmap", "array"):
        digest(FILES[kind](path)[5:])
        digest(FILES["mmap"](path))
    assert cached_pages(path) == 0


def test_a_change_of_what_is_mapped_is_seen_as_far_as_it_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(bytes(1 << 20))
    written = np.memmap(path, np.uint8, "r+")
    before = digest(written)
    written[12345] = 1
    assert digest(written) != before
    shared = opened(path, mmap.ACCESS_WRITE)
    before = digest(shared)
    shared[54321] = 1
    assert digest(shared) != before
