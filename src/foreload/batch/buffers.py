"""Memory for batches, reused once a batch is gone."""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from foreload._torch import new_shared_tensor, tensor_over_file
from foreload.machine import round_up

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Buffers", "WorkerMemory", "memory_for_a_batch"]

_PAGE = 4096
_HUGE = 2 << 20

# Below this, making new shared memory takes no longer than finding out what is free.
_MIN_FILE_BYTES = 256 << 10

# The most files that a worker of torch's keeps open: as many batches, or parts of them, may be on their way to the
# loop, or kept there, before others are made in new memory.
_MOST_FILES = 16


class _Free(list[np.ndarray[Any, Any]]):
    """The free buffers of a size.

    Attributes:
        made: how many there are, those that are lent included.
        trimmed: how many were freed and have not been missed since.
    """

    made = 0
    trimmed = 0


class _BufferLease:
    """Returns a buffer when the last tensor over it is gone; a tensor's storage keeps its source alive."""

    __slots__ = ("__array_interface__", "_free", "_memory")

    def __init__(self, memory: np.ndarray[Any, Any], free: list[np.ndarray[Any, Any]]) -> None:
        self._memory = memory
        self._free = free
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._memory)


class Buffers:
    """Lends memory to batches and takes it back when the last tensor, view or array over it is gone.

    Fresh memory costs a page fault per 4 KiB, more than filling it does; reused memory costs nothing.
    Page-locked memory comes from torch's own pinned allocator instead, which reuses it too and waits for copies
    to the GPU that are under way.

    Args:
        pin: lend page-locked memory (needs CUDA).
        keep: the number of free buffers that are kept, or as many as are lent if that is more: a batch may have
            many parts. It rises where one that was freed is needed again, up to as many as were ever lent at once:
            batches of ever different sizes would keep buffers of each size.

    Attributes:
        is_shared: whether other processes can map the memory.

    >>> buffers = Buffers()
    >>> first = buffers.take((2, 3), torch.float32)
    >>> address = first.data_ptr()
    >>> view = first[0]
    >>> del first
    >>> buffers.take((2, 3), torch.float32).data_ptr() == address   # `view` still holds it
    False
    >>> del view
    >>> buffers.take((2, 3), torch.float32).data_ptr() == address
    True
    """

    is_shared = False

    def __init__(self, *, pin: bool = False, keep: int = 8) -> None:
        self.process = os.getpid()
        self._pin = pin
        self._keep = keep
        self._most_lent = 0
        self._free: dict[int, _Free] = {}
        # Collating threads borrow at the same time; a lease that ends only appends, which needs no lock.
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Lend an uninitialised contiguous tensor."""
        if self._pin:
            return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
        count = 1
        for side in shape:
            count *= side
        size = count * dtype.itemsize
        if size == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        return _tensor_over(self.take_bytes(size), shape, dtype)

    def take_bytes(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Lend ``size`` bytes."""
        rounded = round_up(size)
        with self._lock:
            # The size in use moves to the end, so that excess buffers of earlier sizes are freed first.
            free = self._free[rounded] = self._free.pop(rounded, _Free())
            self._trim()
            if not free:
                free.append(_allocate(rounded))
                free.made += 1
                # How many are lent goes up and down, so more of them are worth keeping.
                if free.trimmed and self._keep < self._most_lent:
                    free.trimmed -= 1
                    self._keep += 1
            memory = free.pop()
        return np.asarray(_BufferLease(memory, free))[:size]

    def _trim(self) -> None:
        num_free = sum(map(len, self._free.values()))
        num_lent = sum(free.made for free in self._free.values()) - num_free
        self._most_lent = max(self._most_lent, num_lent + 1)  # with the one that is asked for
        excess = num_free - max(self._keep, num_lent)
        while excess > 0:
            oldest = next(iter(self._free))
            if self._free[oldest]:
                self._free[oldest].pop()
                self._free[oldest].made -= 1
                self._free[oldest].trimmed += 1
                excess -= 1
            else:
                del self._free[oldest]

    def handed_over(self, batch: torch.Tensor) -> torch.Tensor:
        """Return what a batch in this memory leaves the process as."""
        return batch

    def clear(self) -> None:
        """Free the memory that is not lent."""
        with self._lock:
            self._free.clear()


class _SharedFile:
    """A file in memory, which this process keeps mapped: what is written there costs no page faults.

    A batch is sent as an opening of the file of its own. The system grants a lease for writing only if the file is
    open nowhere else: neither mapped, nor inherited by a child, nor on its way between processes.
    """

    def __init__(self, size: int) -> None:
        fresh = os.memfd_create("foreload-batch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fresh, size)
            self._file = _open_again(fresh)  # leases count what was opened by name only
        finally:
            os.close(fresh)
        # Somebody who opens the file while it is asked for a lease is not to end this process.
        fcntl.fcntl(self._file, fcntl.F_SETSIG, signal.SIGURG)
        memory = np.frombuffer(mmap.mmap(self._file, size), np.uint8)
        self.size = size
        self.address = memory.ctypes.data
        self._idle = [memory]

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "_file"):
            close(self._file)

    def is_free(self) -> bool:
        """Whether no tensor in any process is over this file."""
        if not self._idle:
            return False
        try:
            fcntl.fcntl(self._file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            return False
        fcntl.fcntl(self._file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True

    def lend(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Return the first bytes, for this process to write to; not free before they are gone."""
        memory: np.ndarray[tuple[int], np.dtype[np.uint8]] = np.asarray(_BufferLease(self._idle.pop(), self._idle))
        return memory[:size]

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Open the file once more."""
        file = _open_again(self._file)
        try:
            yield file
        finally:
            os.close(file)


class WorkerMemory(Buffers):
    """Memory that a worker process of torch's need not copy to hand a batch over.

    Making shared memory takes most of the time of a batch of cached images, so that of batches that no process has
    any more is used again, if the system can tell (Linux, with torch's ``file_descriptor`` sharing strategy).
    """

    is_shared = True

    def __init__(self) -> None:
        super().__init__()
        self._files: list[_SharedFile] = []

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Lend an uninitialised contiguous tensor."""
        size = math.prod(shape) * dtype.itemsize
        if size == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        file = self._find(size) if size >= _MIN_FILE_BYTES and _leases_tell() else None
        if file is None:
            return new_shared_tensor(shape, dtype)
        return _tensor_over(file, shape, dtype)

    def _find(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]] | None:
        with self._lock:
            fitting = [file for file in self._files if size <= file.size <= 2 * round_up(size)]
            found = next((file for file in fitting if file.is_free()), None)
            if found is None:
                if len(self._files) == _MOST_FILES:
                    others = [file for file in self._files if file not in fitting]
                    if not others:
                        return None
                    self._files.remove(others[0])
                try:
                    found = _SharedFile(round_up(size))
                except OSError:
                    return None
            else:
                self._files.remove(found)
            self._files.append(found)  # sizes that are no longer asked for come first
            return found.lend(size)

    def handed_over(self, batch: torch.Tensor) -> torch.Tensor:
        """Return a tensor over the same memory, as ordinary as one that torch's workers collate."""
        address = batch.untyped_storage().data_ptr()
        with self._lock:
            file = next((file for file in self._files if file.address == address), None)
        if file is None:
            return batch
        with file.opened() as opened:
            return tensor_over_file(opened, batch)


def memory_for_a_batch() -> Buffers:
    """Return memory for a batch that a dataset makes by itself, for any loader."""
    is_worker = torch.utils.data.get_worker_info() is not None and multiprocessing.parent_process() is not None
    return _memory_of(os.getpid()) if is_worker else Buffers()


@functools.lru_cache(maxsize=1)
def _memory_of(process: int) -> WorkerMemory:
    """Return the memory of a process; a child that was forked has its own."""
    return WorkerMemory()


def _leases_tell() -> bool:
    """Whether batches are sent as files, and leases tell who has these open."""
    strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    return strategy == "file_descriptor" and _has_leases()


@functools.cache
def _has_leases() -> bool:
    if not hasattr(os, "memfd_create") or not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        file = _SharedFile(mmap.PAGESIZE)
        found = [file.is_free()]
        with file.opened():
            found.append(file.is_free())
    except OSError:
        return False
    return [*found, file.is_free()] == [True, False, True]


def _open_again(file: int) -> int:
    return os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC)


def _tensor_over(
    memory: np.ndarray[Any, np.dtype[np.uint8]], shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Return a contiguous tensor over memory.

    It is a view of no other tensor: torch refuses some operations in place on those, ``detach_()`` for one.
    """
    storage = torch.from_numpy(memory).untyped_storage()
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape)  # type: ignore[call-overload,no-any-return]


def _allocate(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if size < 16 * _PAGE:
        memory = np.empty(size + 64, np.uint8)
        start = -memory.ctypes.data % 64
        return memory[start : start + size]
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)
