"""The columns of samples in MDS shards, decoded for many samples at a time."""

from __future__ import annotations

import functools
import math
import struct
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from foreload.checks import Array

__all__ = ["Columns", "Sample"]

Sample = dict[str, Any]

# The types of numbers that columns have, besides "int".
_DTYPES = frozenset(
    f"{kind}{bits}"
    for kind, sizes in {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64)}.items()
    for bits in sizes
)

# Those of which torch makes tensors that can be computed with.
_TENSOR_DTYPES = _DTYPES - {"uint16", "uint32", "uint64"}


class _Fixed(NamedTuple):
    """A column of numbers of which each sample has as many: its place in a sample, dtype and shape."""

    name: str
    begin: int
    end: int
    dtype: str
    shape: tuple[int, ...]
    is_int: bool  # of Python, not a scalar of NumPy


class Columns:
    """The layout of samples in a shard.

    Args:
        names, encodings, sizes: as the index lists them; a size is in bytes, None if each sample has its own.

    Attributes:
        width: the bytes of a sample; None: they differ, or not all columns are numbers.
    """

    def __init__(self, names: tuple[str, ...], encodings: tuple[str, ...], sizes: tuple[int | None, ...]) -> None:
        self._columns = list(zip(names, encodings, sizes, strict=True))
        self._variable = struct.Struct(f"<{sum(not size for size in sizes)}I")
        self._length = self._variable.size + sum(size or 0 for size in sizes)  # without columns of other sizes
        fixed, begin = [], 0
        for name, encoding, size in self._columns:
            numbers = _numbers_of(encoding)
            if size and numbers is not None and size == np.dtype(numbers[0]).itemsize * math.prod(numbers[1]):
                fixed.append(_Fixed(name, begin, begin + size, *numbers, encoding == "int"))
            begin += size or 0
        self._fixed = fixed if len(fixed) == len(names) > 0 else None
        self.width = None if self._fixed is None else begin

    @staticmethod
    @functools.lru_cache(256)
    def of(names: tuple[str, ...], encodings: tuple[str, ...], sizes: tuple[int | None, ...]) -> Columns:
        """Return the same object for the same layout."""
        return Columns(names, encodings, sizes)

    def samples(self, memory: Array, starts: Array) -> list[Sample]:
        """Return samples as MosaicML's reader does.

        Args:
            memory: their bytes.
            starts: where each begins, and where the last one ends (int64).

        Raises:
            Exception: one of them cannot be decoded.
        """
        if self._fixed is None:
            return [self._decoded(memory[begin:end].tobytes()) for begin, end in pairwise(starts.tolist())]
        columns = []
        for field, values in zip(self._fixed, self._arrays(memory), strict=True):
            values.flags.writeable = False
            columns.append(values.tolist() if field.is_int else list(values))
        names = [field.name for field in self._fixed]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def batch(self, memory: Array) -> dict[str, torch.Tensor] | None:
        """Return what ``default_collate`` makes of samples of one width; None if they are not all numbers."""
        if self._fixed is None or any(field.dtype not in _TENSOR_DTYPES for field in self._fixed):
            return None
        arrays = self._arrays(memory)
        return {field.name: torch.from_numpy(values) for field, values in zip(self._fixed, arrays, strict=True)}

    def _arrays(self, memory: Array) -> list[Array]:
        assert self._fixed is not None
        assert self.width is not None
        rows = memory.reshape(-1, self.width)
        # Each in memory of its own: a column that is kept does not keep the others.
        columns = (rows[:, field.begin : field.end].copy() for field in self._fixed)
        return [
            column.view(f"<{np.dtype(field.dtype).str[1:]}").reshape(len(rows), *field.shape)
            for field, column in zip(self._fixed, columns, strict=True)
        ]

    def _decoded(self, data: bytes) -> Sample:
        if not data:
            raise ValueError("it has no bytes")
        own = self._variable.unpack_from(data)
        if self._length + sum(own) != len(data):
            raise ValueError(f"its columns take {self._length + sum(own)} bytes, but it has {len(data)}")
        sample, left, begin = {}, iter(own), self._variable.size
        for name, encoding, size in self._columns:
            end = begin + (size or next(left))
            sample[name] = _decode(encoding, data[begin:end])
            begin = end
        return sample


def _numbers_of(encoding: str) -> tuple[str, tuple[int, ...]] | None:
    """Return dtype and shape of a column of numbers, if its encoding says both."""
    if encoding == "int":
        return "int64", ()
    if encoding in _DTYPES:
        return encoding, ()
    kind, _, about = encoding.partition(":")
    dtype, _, sides = about.partition(":")
    if kind != "ndarray" or dtype not in _DTYPES:
        return None
    try:
        shape = tuple(map(int, sides.split(",")))
    except ValueError:
        return None
    return (dtype, shape) if min(shape) > 0 else None


def _decode(encoding: str, data: bytes) -> Any:
    from streaming.base.format.mds.encodings import mds_decode

    if encoding == "str":
        return data.decode("utf-8")
    return data if encoding == "bytes" else mds_decode(encoding, data)
