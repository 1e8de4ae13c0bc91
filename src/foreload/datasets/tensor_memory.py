"""Where the memory of tensors lies: shared between processes, mapped from a file, page-locked."""

from __future__ import annotations

import math
import mmap
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["MappedFile", "page_lock", "read_only_file", "shared"]

_MAPS = Path("/proc/self/maps")  # which only Linux has


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


def _mapping_of(tensor: torch.Tensor) -> _Mapping | None:
    """Return the mapping of a file that a tensor lies in; None if it lies elsewhere, or that cannot be known."""
    if tensor.nbytes == 0 or not _MAPS.exists():
        return None
    begin = tensor.data_ptr()
    for line in _MAPS.read_text(errors="surrogateescape").splitlines():
        place, permissions, offset, _, inode, *path = line.split(maxsplit=5)
        first, last = (int(end, 16) for end in place.split("-"))
        if first <= begin < last:
            name = path[0] if path else ""
            is_whole = begin + tensor.nbytes <= last and name.startswith("/") and int(inode) > 0
            found = _Mapping(first, last, "w" in permissions, int(offset, 16), int(inode), name)
            return found if is_whole else None
    return None


def read_only_file(tensor: torch.Tensor) -> MappedFile | None:
    """Return the file that a contiguous tensor is mapped from, if that memory cannot be written to; else None."""
    found = _mapping_of(tensor)
    if found is None or found.writable:
        return None
    offset = found.offset + tensor.data_ptr() - found.begin
    return MappedFile(found.path, found.inode, offset, tensor.dtype, tuple(tensor.shape))


def shared(tensor: torch.Tensor, *, move: bool) -> torch.Tensor:
    """Return a tensor in memory that processes share: itself if it lies there already, otherwise a copy.

    Memory that is mapped from a file counts as shared unless it can only be read: a write would kill the process.

    Args:
        tensor: contiguous.
        move: move its own memory there instead; whoever else has the tensor sees that memory too.
    """
    mapping = _mapping_of(tensor)
    if tensor.is_shared() or (mapping is not None and mapping.writable):  # type: ignore[no-untyped-call]
        return tensor
    try:
        return (tensor if move else tensor.clone()).share_memory_()  # type: ignore[no-untyped-call,no-any-return]
    except (RuntimeError, OSError) as error:
        warnings.warn(
            f"CachedDataset: no shared memory for {tensor.nbytes} bytes ({error}); using private memory, which "
            "worker processes started by 'spawn' copy. A larger /dev/shm (docker run --shm-size) avoids this.",
            stacklevel=4,
        )
        return tensor


def page_lock(tensor: torch.Tensor) -> None:
    """Page-lock a tensor's memory, or warn if CUDA cannot; raise RuntimeError if there is no CUDA."""
    if not torch.cuda.is_available():
        raise RuntimeError("pin=True needs CUDA, and there is none; leave pin=None to pin only if it helps")
    code = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))  # type: ignore[no-untyped-call]
    if code != 0:
        warnings.warn(f"CachedDataset: memory could not be page-locked (CUDA error {code})", stacklevel=4)
