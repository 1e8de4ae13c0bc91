"""Shared memory slots, through which batches pass from a worker process to the consumer.

A slot is a part of one file in memory that both sides map. The worker takes slots and names them in its messages;
the consumer lends them to the batch and, when nothing holds the batch any more, sends them back with the next job.
There is one descriptor per worker, however many tensors a batch has; and when a worker is killed, whatever it was
writing is gone with its file.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from foreload import _native
from foreload.batch.buffers import Buffers
from foreload.checks import Array
from foreload.machine import round_up

__all__ = ["ConsumerSlots", "Piece", "SharedHeader", "Slots"]

_ALIGNMENT = 64

# Smaller parts travel in the message itself.
_INLINE_BYTES = 4096


class SharedHeader:
    """The first page of the file: two numbers that both sides see at once.

    Attributes:
        first: the first job whose answer is wanted; jobs before it need not be done.
        position: the position, in its batch, of the sample that the worker is loading.
    """

    def __init__(self, file: int) -> None:
        if os.fstat(file).st_size == 0:
            os.ftruncate(file, mmap.PAGESIZE)
        self._numbers = _native.Mapping(file, 0, mmap.PAGESIZE).memory.data.cast("q")

    @property
    def first(self) -> int:
        return self._numbers[0]

    @first.setter
    def first(self, number: int) -> None:
        self._numbers[0] = number

    @property
    def position(self) -> int:
        return self._numbers[1]

    @position.setter
    def position(self, number: int) -> None:
        self._numbers[1] = number


class Piece(NamedTuple):
    """The place of a part of a batch: its slot, where that slot is in the file, and where it is in the slot."""

    slot: int
    offset: int
    room: int
    start: int
    length: int


class _Slot:
    def __init__(self, number: int, offset: int, mapping: _native.Mapping) -> None:
        self.number = number
        self.offset = offset
        self.mapping = mapping
        self.memory = mapping.memory
        self.address: int = self.memory.ctypes.data


class Slots(Buffers):
    """The worker's side: buffers to assemble batches in, which the consumer sees.

    Args:
        file: from :func:`foreload.machine.open_memory`.
        keep: how many free slots to keep.

    >>> from foreload.machine import open_memory
    >>> file = open_memory("doctest")
    >>> slots, lent = Slots(file), ConsumerSlots(file)
    >>> memory = slots.take_bytes(10_000)
    >>> memory[:] = 7
    >>> pieces, unused = slots.send([memory.data])
    >>> (batch,) = lent.take(pieces)
    >>> int(batch.sum()), lent.freed
    (70000, deque([]))
    >>> del batch
    >>> slots.give_back(lent.freed); slots.take_bytes(10_000)[0]
    np.uint8(7)
    """

    def __init__(self, file: int, keep: int = 8) -> None:
        super().__init__(keep=keep)
        self._file = file
        self._end = mmap.PAGESIZE
        self._number = 0
        self._taken: list[_Slot] = []  # for the present batch
        self._sent: dict[int, _Slot] = {}
        self._idle: dict[int, list[_Slot]] = {}  # by size, the most recently used size last
        self._dropped: list[int] = []

    def take_bytes(self, size: int) -> Array:
        """Lend ``size`` bytes for the present batch."""
        rounded = -(-round_up(size) // mmap.PAGESIZE) * mmap.PAGESIZE
        idle = self._idle[rounded] = self._idle.pop(rounded, [])
        slot = idle.pop() if idle else self._allocate(rounded)
        self._taken.append(slot)
        return slot.memory[:size]

    def _allocate(self, size: int) -> _Slot:
        os.ftruncate(self._file, self._end + size)
        slot = _Slot(self._number, self._end, _native.Mapping(self._file, self._end, size))
        self._number += 1
        self._end += size
        return slot

    def send(self, parts: Sequence[memoryview]) -> tuple[list[Piece | bytes], list[int]]:
        """Return the parts of a batch as pieces of slots, or as bytes if they are small; and the slots to forget.

        Parts in memory of :meth:`take_bytes` stay where they are, the others are copied to a slot.
        """
        taken, self._taken = self._taken, []
        arrays = [np.frombuffer(part, np.uint8) for part in parts]
        found: list[_Slot | None] = [_holder(taken, array) for array in arrays]
        copied = [
            -(-len(array) // _ALIGNMENT) * _ALIGNMENT if slot is None and len(array) > _INLINE_BYTES else 0
            for array, slot in zip(arrays, found, strict=True)
        ]
        if any(copied):
            self.take_bytes(sum(copied))
            (common,) = self._taken
            self._taken = []
        pieces: list[Piece | bytes] = []
        at = 0
        for array, slot, room in zip(arrays, found, copied, strict=True):
            if slot is None and room == 0:
                pieces.append(array.tobytes())
                continue
            start = at if slot is None else array.ctypes.data - slot.address
            if slot is None:
                slot = common
                slot.memory[at : at + len(array)] = array
                at += room
            self._sent[slot.number] = slot
            pieces.append(Piece(slot.number, slot.offset, len(slot.memory), start, len(array)))
        for slot in taken:
            if slot.number not in self._sent:
                self._idle.setdefault(len(slot.memory), []).append(slot)
        self._drop_excess()
        dropped, self._dropped = self._dropped, []
        return pieces, dropped

    def give_back(self, slots: Iterable[int]) -> None:
        """Take back slots, to be used again."""
        for number in slots:
            slot = self._sent.pop(number)
            self._idle.setdefault(len(slot.memory), []).append(slot)

    def _drop_excess(self) -> None:
        excess = sum(map(len, self._idle.values())) - self._keep
        while excess > 0:
            size, oldest = next(iter(self._idle.items()))
            if not oldest:
                del self._idle[size]
                continue
            slot = oldest.pop()
            slot.mapping.clear()
            self._dropped.append(slot.number)
            excess -= 1


def _holder(slots: Sequence[_Slot], array: Array) -> _Slot | None:
    if len(array) == 0:
        return None
    address = array.ctypes.data
    for slot in slots:
        if slot.address <= address and address + len(array) <= slot.address + len(slot.memory):
            return slot
    return None


class _SlotLease:
    """Holds a slot for as long as anything made from it lives."""

    __slots__ = ("__array_interface__", "_freed", "_memory", "_slot")

    def __init__(self, memory: Array, slot: int, freed: deque[int]) -> None:
        self._memory = memory
        self._slot = slot
        self._freed = freed
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._freed.append(self._slot)


class ConsumerSlots:
    """The consumer's side: the same slots, as the memory of batches.

    Attributes:
        freed: slots that no batch holds any more, for :meth:`Slots.give_back`.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._mapped: dict[int, Array] = {}
        self.freed: deque[int] = deque()

    def take(self, pieces: Sequence[Piece | bytes]) -> list[Any]:
        """Return the memory of a batch's parts."""
        leases: dict[int, Array] = {}
        parts: list[Any] = []
        for piece in pieces:
            if isinstance(piece, bytes):
                parts.append(bytearray(piece))
                continue
            slot, _, _, start, length = piece
            if slot not in leases:
                leases[slot] = np.asarray(_SlotLease(self._map(piece), slot, self.freed))
            parts.append(leases[slot][start : start + length])
        return parts

    def _map(self, piece: Piece) -> Array:
        memory = self._mapped.get(piece.slot)
        if memory is None:
            # Not Python's own mmap, which keeps a descriptor for each.
            memory = _native.Mapping(self._file, piece.offset, piece.room).memory
            self._mapped[piece.slot] = memory
        return memory

    def forget(self, slots: Iterable[int]) -> None:
        """Unmap slots that the worker does not use any more."""
        for slot in slots:
            self._mapped.pop(slot, None)
