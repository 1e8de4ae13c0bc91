"""Datasets as people write them: right for one caller at a time, as torch's workers are, and wrong for threads."""

from __future__ import annotations

import decimal
import io
import logging
import sqlite3
import tarfile
import threading
import zipfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import Dataset

SIZE, RECORD = 60, 16

Pair = namedtuple("Pair", "x y")

_memo: dict[int, int] = {}


def record(index: int) -> bytes:
    """Return the bytes of a sample."""
    return bytes((index * 7 + k) % 256 for k in range(RECORD))


class Sized(Dataset[Any]):
    """Sixty samples in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return SIZE


def as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


class LazyFile(Sized):
    """Opens its file when it is first needed, and seeks."""

    file: Any = None

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.file is None:
            self.file = open(self.folder / "records.bin", "rb")  # noqa: SIM115
        self.file.seek(index * RECORD)
        return as_tensor(self.file.read(RECORD))


class RawFile(LazyFile):
    """The same without a buffer, so that each read moves the position that forks share."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.file is None:
            self.file = open(self.folder / "records.bin", "rb", buffering=0)  # noqa: SIM115
        self.file.seek(index * RECORD)
        return as_tensor(self.file.read(RECORD))


class Scratch(Sized):
    """Assembles each sample in a buffer of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.buffer = np.zeros(RECORD, np.int64)

    def __getitem__(self, index: int) -> torch.Tensor:
        for k in range(RECORD):
            self.buffer[k] = index * k
        return torch.from_numpy(self.buffer.copy())


class Current(Sized):
    """Passes the index from method to method on itself."""

    def __getitem__(self, index: int) -> int:
        self.index = index
        self.prepare()
        return self.value + self.index

    def prepare(self) -> None:
        self.value = sum(self.index for _ in range(50))


class Database(Sized):
    """Connects when it is first needed; a connection belongs to one thread."""

    connection: sqlite3.Connection | None = None

    def __getitem__(self, index: int) -> int:
        if self.connection is None:
            self.connection = sqlite3.connect(self.folder / "values.db")
        (value,) = self.connection.execute("select value from samples where id = ?", (index,)).fetchone()
        return int(value)


class Rows(Sized):
    """A lazily opened HDF5 file."""

    file: Any = None

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        if self.file is None:
            self.file = h5py.File(self.folder / "rows.h5", "r")
        rows: np.ndarray[Any, Any] = self.file["data"][index]
        return rows


class Zipped(Sized):
    """A lazily opened zip archive."""

    archive: zipfile.ZipFile | None = None

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.archive is None:
            self.archive = zipfile.ZipFile(self.folder / "records.zip")
        return as_tensor(self.archive.read(str(index)))


class Tarred(Sized):
    """A lazily opened tar archive."""

    archive: tarfile.TarFile | None = None

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.archive is None:
            self.archive = tarfile.open(self.folder / "records.tar")  # noqa: SIM115
        member = self.archive.extractfile(str(index))
        assert member is not None
        return as_tensor(member.read())


class Mapped(Sized):
    """A memory map."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rows = np.memmap(folder / "records.bin", np.uint8, "r", shape=(SIZE, RECORD))

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.array(self.rows[index]))


class Tokenizer:
    """Truncation is a state of it, set for each call."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {f"w{n}": n for n in range(SIZE * 3)}
        self.most = 0

    def __call__(self, text: str, most: int) -> list[int]:
        self.most = most
        ids = [self.words[word] for word in text.split()]
        return (ids + [0] * self.most)[: self.most]


class Tokenized(Sized):
    """A tokenizer with a state."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tokenizer = Tokenizer()

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.tokenizer(f"w{index} w{index + 1} w{2 * index}", 3 + index % 2)[:3])


class Memo(Sized):
    """A cache in the module."""

    def __getitem__(self, index: int) -> int:
        if index not in _memo:
            _memo[index] = index * index
        return _memo[index]


class OwnMemo(Sized):
    """A small cache on itself, from which the oldest goes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.kept: dict[int, int] = {}

    def __getitem__(self, index: int) -> int:
        if index not in self.kept:
            if len(self.kept) > 5:
                self.kept.pop(next(iter(self.kept)))
            self.kept[index] = index * 3
        return self.kept[index]


class Logged(Sized):
    """Writes to a log."""

    def __getitem__(self, index: int) -> int:
        logging.getLogger("ordinary").debug("sample %d", index)
        return index


class TextLog(Sized):
    """Writes to a text buffer and reads it back."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.text = io.StringIO()

    def __getitem__(self, index: int) -> int:
        self.text.seek(0)
        self.text.truncate()
        self.text.write(str(index))
        return int(self.text.getvalue())


class Decimals(Sized):
    """Computes with decimals."""

    def __getitem__(self, index: int) -> float:
        return float(decimal.Decimal(index) / decimal.Decimal(7))


class Named(Sized):
    """Gives named tuples and dicts."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pair": Pair(index, [float(index), index]), "name": f"n{index}", "bytes": b"x" * (index % 3)}


class ByBatch(LazyFile):
    """Loads whole batches."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class Locals(Sized):
    """Keeps its file in thread-local storage, as libraries do."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if not hasattr(_local, "file") or _local.file.closed:
            _local.file = open(self.folder / "records.bin", "rb")  # noqa: SIM115
        _local.file.seek(index * RECORD)
        return as_tensor(_local.file.read(RECORD))


_local = threading.local()


class Graded(Sized):
    """Computes with tensors that require gradients."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.weight = torch.nn.Parameter(torch.arange(4.0))

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.weight * index).detach()


DETERMINISTIC: list[Callable[[Path], Any]] = [
    LazyFile,
    RawFile,
    Scratch,
    Current,
    Database,
    Rows,
    Zipped,
    Tarred,
    Mapped,
    Tokenized,
    Memo,
    OwnMemo,
    Logged,
    TextLog,
    Decimals,
    Named,
    ByBatch,
    Locals,
    Graded,
]


def write_files(folder: Path) -> None:
    """Write the files that the datasets read."""
    (folder / "records.bin").write_bytes(b"".join(map(record, range(SIZE))))
    with sqlite3.connect(folder / "values.db") as connection:
        connection.execute("create table samples (id integer primary key, value integer)")
        connection.executemany("insert into samples values (?, ?)", [(index, index * 11) for index in range(SIZE)])
    connection.close()
    with h5py.File(folder / "rows.h5", "w") as file:
        file["data"] = np.arange(SIZE * 4).reshape(SIZE, 4)
    with zipfile.ZipFile(folder / "records.zip", "w") as archive:
        for index in range(SIZE):
            archive.writestr(str(index), record(index))
    with tarfile.open(folder / "records.tar", "w") as archive:
        for index in range(SIZE):
            member = tarfile.TarInfo(str(index))
            member.size = RECORD
            archive.addfile(member, io.BytesIO(record(index)))
