"""HDF5 files, and what h5py reads from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

GZIP: dict[str, Any] = {"compression": "gzip", "shuffle": True}


def filled(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Values of small range, so that they compress."""
    values = np.random.default_rng(seed).integers(0, 2 if dtype == "?" else 100, shape)
    return values.astype(dtype)


def write(path: Path, rows: int = 300, *, targets: bool = True, **layout: Any) -> np.ndarray[Any, Any]:
    """A file with ``data`` (rows x 6 x 5) and ``labels``."""
    h5py = pytest.importorskip("h5py")
    data = filled((rows, 6, 5), "f4")
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=data, **layout)
        if targets:
            file["labels"] = np.arange(rows, dtype="i4")
    return data


class Rows(torch.utils.data.Dataset[Any]):
    """The rows that h5py gives, as samples."""

    def __init__(self, path: Path, name: str = "data", target: str | None = None) -> None:
        h5py = pytest.importorskip("h5py")
        with h5py.File(path) as file:
            self.data = file[name][...]
            self.targets = None if target is None else file[target][...]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        row = np.array(self.data[index])
        tensor = torch.from_numpy(row.astype(row.dtype.newbyteorder("=")))
        if self.targets is None:
            return tensor
        target = self.targets[index]
        target = target.astype(target.dtype.newbyteorder("="))
        return tensor, target.item() if target.ndim == 0 else torch.from_numpy(target)


def same(given: Any, expected: Any) -> None:
    assert type(given) is type(expected), (type(given), type(expected))
    if isinstance(given, torch.Tensor):
        assert given.dtype == expected.dtype
        assert given.shape == expected.shape
        assert given.contiguous().view(-1).numpy().tobytes() == expected.contiguous().view(-1).numpy().tobytes()
    elif isinstance(given, (list, tuple)):
        assert len(given) == len(expected)
        for one, other in zip(given, expected, strict=True):
            same(one, other)
    else:
        assert given == expected


def damage(path: Path, row: int, name: str = "data") -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path) as file:
        chunk = file[name].id.get_chunk_info_by_coord((row, *[0] * (file[name].ndim - 1)))
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset + 5)
        raw.write(b"\xff" * (chunk.size - 10))
