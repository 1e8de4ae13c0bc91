"""Files whose position forked processes share are read as the calling thread reads them, whatever opened them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from tests.workers.followed import COUNTS, SIZE, Squares

BYTES = 8


class Descriptor(Squares):
    """Reads from a descriptor, which is a number."""

    def __init__(self, path: Path, *, is_lazy: bool = False, rarely: bool = False) -> None:
        self.path = path
        self.file: int | None = None
        self.rarely = rarely
        if not is_lazy:
            self.open()

    def open(self) -> None:
        self.file = os.open(self.path, os.O_RDONLY)

    def read(self, index: int) -> bytes:
        assert self.file is not None
        os.lseek(self.file, index * BYTES, os.SEEK_SET)
        return os.read(self.file, BYTES)

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.open()
        if self.rarely and index != 29:
            return index
        return int.from_bytes(self.read(index), "big")


class Foreign(Descriptor):
    """Reads with a library of C."""

    def open(self) -> None:
        self.library: Any = ctypes.CDLL(None)
        self.library.fopen.restype = ctypes.c_void_p
        self.handle = self.library.fopen(str(self.path).encode(), b"rb")
        self.file = -1

    def read(self, index: int) -> bytes:
        found = ctypes.create_string_buffer(BYTES)
        handle = ctypes.c_void_p(self.handle)
        self.library.fseek(handle, index * BYTES, 0)
        self.library.fread(found, 1, BYTES, handle)
        return found.raw


class AtAnyPlace(Descriptor):
    """Moves no position."""

    def read(self, index: int) -> bytes:
        assert self.file is not None
        return os.pread(self.file, BYTES, index * BYTES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "numbers"
    path.write_bytes(b"".join((number * number).to_bytes(BYTES, "big") for number in range(SIZE)))
    return path


@pytest.mark.sampled(6)
@pytest.mark.parametrize("options", [{}, {"is_lazy": True}, {"rarely": True}], ids=str)
@pytest.mark.parametrize("kind", [Descriptor, Foreign, AtAnyPlace])
@pytest.mark.parametrize("count", COUNTS)
def test_positions_are_the_loops(
    kind: type[Descriptor], options: dict[str, Any], path: Path, count: int, choose: Callable[[int], None]
) -> None:
    choose(count)
    found = []
    for loader in (TorchDataLoader, fl.DataLoader):
        dataset = kind(path, **options)
        each = loader(dataset, batch_size=4)
        batches = []
        for epoch in range(4):
            for step, batch in enumerate(each):
                batches.append(batch.tolist())
                if (epoch, step) == (0, 3):
                    dataset[5]  # it is open from now on
        is_number = kind is Descriptor
        found.append((batches, os.lseek(dataset.file or 0, 0, os.SEEK_CUR) if is_number else None))
    assert found[1][0] == found[0][0]
    if not options:
        assert found[1] == found[0]


@pytest.mark.parametrize("kind", [Descriptor, Foreign, AtAnyPlace])
def test_a_choice_allows_for_positions(kind: type[Descriptor], path: Path) -> None:
    class Slow(kind):  # type: ignore[misc, valid-type]
        def __getitem__(self, index: int) -> Any:
            sum(range(300_000))
            return torch.tensor(super().__getitem__(index % SIZE))

        def __len__(self) -> int:
            return 600

    loader = fl.DataLoader(Slow(path), batch_size=4)
    loader.choose_workers()
    why = loader.stats()["workers"]["why"]
    assert (str(path) in why) == (kind is not AtAnyPlace), why
