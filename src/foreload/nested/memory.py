"""The memory that several tensors lie in, and the parts of it that they overlap in."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

import torch

__all__ = ["Memory", "Part", "is_packed", "is_spread_out", "span_of"]

# A tensor that is spread over more memory than this, relative to its own, is mostly gaps.
_MAX_GAPS = 8
_MAX_GAP_BYTES = 1 << 20

# Of a complex number of double precision.
_MOST_ITEM_BYTES = 16


def span_of(tensor: torch.Tensor) -> int:
    """Return the number of elements from the first to the last one of a tensor, with those in gaps."""
    return 1 + sum((side - 1) * step for side, step in zip(tensor.shape, tensor.stride(), strict=True))


def is_spread_out(tensor: torch.Tensor) -> bool:
    """Whether nearly all that a tensor is spread over are gaps."""
    span = span_of(tensor)
    return span > _MAX_GAPS * tensor.numel() and span * tensor.element_size() > _MAX_GAP_BYTES


def is_packed(tensor: torch.Tensor) -> bool:
    """Whether strides are those of a new tensor, in sides of one too: memory formats are told by them."""
    step = 1
    for side, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != step:
            return False
        step *= side
    return True


class Part(NamedTuple):
    """A part of a memory.

    Attributes:
        begin: its first byte.
        end: the one after its last.
        tensor: its bytes.
    """

    begin: int
    end: int
    tensor: torch.Tensor


class Memory:
    """The parts of a memory that some tensors take up.

    Attributes:
        whole: a tensor that takes up all of it, if there is one.

    >>> wave = torch.arange(64)
    >>> memory = Memory(wave.untyped_storage())
    >>> for tensor in (wave[:8], wave[4:12], wave[20:30]): memory.add(tensor)
    >>> memory.part_around(0)[:2], memory.part_around(8 * 4)[:2], memory.part_around(8 * 20)
    ((0, 96), (0, 96), None)
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.whole: torch.Tensor | None = None
        self._storage = storage
        self._spans: list[tuple[int, int]] = []  # in bytes
        self._parts: list[Part] | None = None

    def add(self, tensor: torch.Tensor) -> None:
        """Take a tensor into account, unless it is spread out."""
        if self.whole is None and self._storage.nbytes() == tensor.nbytes and is_packed(tensor):
            self.whole = tensor
        if not is_spread_out(tensor):
            size = tensor.element_size()
            begin = int(tensor.storage_offset()) * size
            self._spans.append((begin, begin + span_of(tensor) * size))

    def part_around(self, position: int) -> Part | None:
        """Return the part around a byte that several tensors overlap in; None if only one lies there."""
        if self._parts is None:
            self._parts = list(self._shared())
        place = bisect.bisect_right(self._parts, position, key=attrgetter("begin")) - 1
        return self._parts[place] if place >= 0 and position < self._parts[place].end else None

    def _shared(self) -> Iterator[Part]:
        groups: list[list[int]] = []  # where each begins and ends, and the number of tensors
        for begin, end in sorted(self._spans):
            if groups and begin < groups[-1][1]:
                groups[-1][1:] = [max(end, groups[-1][1]), groups[-1][2] + 1]
            else:
                groups.append([begin, end, 1])
        for begin, end, count in groups:
            if count > 1:
                begin -= begin % _MOST_ITEM_BYTES
                memory = torch.empty(0, dtype=torch.uint8, device="cpu")
                memory.set_(self._storage, begin, (end - begin,))  # type: ignore[call-overload]
                yield Part(begin, end, memory)
