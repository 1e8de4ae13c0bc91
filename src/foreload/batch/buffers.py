"""Memory for batches, reused once a batch is gone."""

from __future__ import annotations

import math
import mmap
import multiprocessing
import os
import threading
from typing import Any

import numpy as np
import torch

from foreload._torch import new_shared_tensor
from foreload.machine import round_up

__all__ = ["Buffers", "memory_for_a_batch"]

_PAGE = 4096
_HUGE = 2 << 20


class _Free(list[np.ndarray[Any, Any]]):
    """The free buffers of a size; ``made`` counts those that are lent, too."""

    made = 0


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
            many parts.

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
        return torch.from_numpy(self.take_bytes(size)).view(dtype).view(shape)

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
            memory = free.pop()
        return np.asarray(_BufferLease(memory, free))[:size]

    def _trim(self) -> None:
        num_free = sum(map(len, self._free.values()))
        num_lent = sum(free.made for free in self._free.values()) - num_free
        excess = num_free - max(self._keep, num_lent)
        while excess > 0:
            oldest = next(iter(self._free))
            if self._free[oldest]:
                self._free[oldest].pop()
                self._free[oldest].made -= 1
                excess -= 1
            else:
                del self._free[oldest]

    def clear(self) -> None:
        """Free the memory that is not lent."""
        with self._lock:
            self._free.clear()


class _SharedMemory(Buffers):
    """Memory that a worker process of torch's need not copy to hand a batch over."""

    is_shared = True

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return (
            new_shared_tensor(shape, dtype) if math.prod(shape) else torch.empty(shape, dtype=dtype, device="cpu")
        )


def memory_for_a_batch() -> Buffers:
    """Return memory for a batch that a dataset makes by itself, for any loader."""
    is_worker = torch.utils.data.get_worker_info() is not None and multiprocessing.parent_process() is not None
    return _SharedMemory() if is_worker else Buffers()


def _allocate(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if size < 16 * _PAGE:
        memory = np.empty(size + 64, np.uint8)
        start = -memory.ctypes.data % 64
        return memory[start : start + size]
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)
