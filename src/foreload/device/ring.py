"""Page-locked memory through which ordinary memory is copied to a device."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["HostRing"]

_LEAST = 4096


class HostRing:
    """Page-locked memory, lent for one copy to a device and again for another when that is over.

    The driver copies from ordinary memory too, but lets the caller wait meanwhile. Sizes are rounded up to powers
    of two, so that batches of different lengths share memory.

    Args:
        allocate: returns so many bytes (uint8) of page-locked memory.

    >>> ring = HostRing(lambda size: torch.empty(size, dtype=torch.uint8))
    >>> staged = ring.stage(torch.arange(3))
    >>> lent = ring.collect()
    >>> ring.give_back(lent)     # after the copy
    >>> ring.stage(torch.ones(2)).data_ptr() == staged.data_ptr()
    True
    """

    def __init__(self, allocate: Callable[[int], torch.Tensor]) -> None:
        self._allocate = allocate
        self._free: dict[int, list[torch.Tensor]] = {}
        self._new: list[torch.Tensor] = []  # lent since the last call of collect()
        self._num_lent = self._most_lent = 0

    def stage(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a plain, strided tensor on the CPU in page-locked memory.

        Its strides are those that ``tensor.to(device)`` gives its result.
        """
        like = torch.empty_like(tensor, device="meta")
        memory = self._take(like.nbytes)
        self._new.append(memory)
        staged = memory[: like.nbytes].view(tensor.dtype).as_strided(like.shape, like.stride())
        with torch.no_grad():
            return staged.copy_(tensor)

    def collect(self) -> list[torch.Tensor]:
        """Return the memory that was lent since the last call."""
        lent, self._new = self._new, []
        return lent

    def give_back(self, lent: list[torch.Tensor]) -> None:
        """Take back what :meth:`collect` returned, when nothing reads it any more."""
        for memory in lent:
            self._free.setdefault(memory.numel(), []).append(memory)
        self._num_lent -= len(lent)
        excess = sum(map(len, self._free.values())) - self._most_lent
        for _ in range(excess):
            oldest = next(size for size, free in self._free.items() if free)
            self._free[oldest].pop()

    def _take(self, size: int) -> torch.Tensor:
        rounded = max(_LEAST, 1 << (size - 1).bit_length())
        # The size in use moves to the end, so that memory of earlier sizes is freed first.
        free = self._free[rounded] = self._free.pop(rounded, [])
        memory = free.pop() if free else self._allocate(rounded)
        self._num_lent += 1
        self._most_lent = max(self._most_lent, self._num_lent)
        return memory
