"""Files that a tensor is mapped from."""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from foreload.checks import Array

__all__ = ["MappedFile", "mapping_of", "mapping_of_large", "read_only_file"]

_MAPS = Path("/proc/self/maps")  # which only Linux has

_LARGE = 1 << 26  # bytes


@dataclass(frozen=True)
class MappedFile:
    """A tensor's place in a file that is mapped into memory.

    Attributes:
        path: of the file.
        inode: its number, by which another file at this path is recognised.
        offset: bytes before the tensor.
        dtype, shape: of the tensor, which is contiguous.
    """

    path: str
    inode: int
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def open(self) -> torch.Tensor:
        """Map the file: processes share what they read of it, and what one writes, it alone sees.

        Raises:
            OSError: the file cannot be read, or is another one now.
        """
        count = math.prod(self.shape)
        begin = self.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        size = self.offset - begin + count * self.dtype.itemsize
        with open(self.path, "rb") as file:
            about = os.fstat(file.fileno())
            if about.st_ino != self.inode or about.st_size < begin + size:
                raise OSError(f"{self.path} has been replaced since it was mapped; map it again")
            view = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY, offset=begin)
        return torch.frombuffer(view, dtype=self.dtype, count=count, offset=self.offset - begin).view(self.shape)


@dataclass(frozen=True)
class _Mapping:
    begin: int
    end: int
    writable: bool
    offset: int
    inode: int
    path: str


def mapping_of(tensor: torch.Tensor) -> _Mapping | None:
    """Return the mapping of a file that a tensor lies in; None if it lies elsewhere, or that cannot be known."""
    return None if tensor.nbytes == 0 else _mapping_at(tensor.data_ptr(), tensor.nbytes)


def mapping_of_large(array: Array) -> _Mapping | None:
    """Return the mapping of a file that an array begins in; None also if reading all of it takes little time."""
    return _mapping_at(array.ctypes.data, array.itemsize) if array.nbytes > _LARGE else None


def _mapping_at(begin: int, size: int) -> _Mapping | None:
    if not _MAPS.exists():
        return None
    for line in _MAPS.read_text(errors="surrogateescape").splitlines():
        place, permissions, offset, _, inode, *path = line.split(maxsplit=5)
        first, last = (int(end, 16) for end in place.split("-"))
        if first <= begin < last:
            name = path[0] if path else ""
            is_whole = begin + size <= last and name.startswith("/") and int(inode) > 0
            found = _Mapping(first, last, "w" in permissions, int(offset, 16), int(inode), name)
            return found if is_whole else None
    return None


def read_only_file(tensor: torch.Tensor) -> MappedFile | None:
    """Return the file that a contiguous tensor is mapped from, if that memory cannot be written to; else None."""
    found = mapping_of(tensor)
    if found is None or found.writable:
        return None
    offset = found.offset + tensor.data_ptr() - found.begin
    return MappedFile(found.path, found.inode, offset, tensor.dtype, tuple(tensor.shape))
