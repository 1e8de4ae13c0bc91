"""Shared memory slots, through which batches pass from a worker process to the consumer.

A slot is a file in memory that both sides map. The worker takes slots and names them in its messages; the consumer
lends them to the batch and, when nothing holds the batch any more, sends them back with the next job. A slot's
descriptor passes through a socket once, and both sides close it as soon as they have mapped the file: the system
frees the memory when no process maps it any more, also when a worker is killed.

A slot is written again only if nobody can see that: neither the loop, nor the worker (a dataset or ``collate_fn``
may keep what it made), nor a child that was forked meanwhile, whose batches lie in the same memory.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from foreload import _native
from foreload.batch.buffers import Buffers
from foreload.checks import Array
from foreload.forks.count import fork_count, may_be_in_child
from foreload.machine import open_memory, round_up
from foreload.workers.processes.pipes import receive_files, send_files

__all__ = ["NOTHING_RETURNED", "ConsumerSlots", "Piece", "Returned", "Slots"]

_ALIGNMENT = 64

# Smaller parts travel in the message itself.
_INLINE_BYTES = 4096


# The place of a part of a batch: the number of its slot, where the part starts in that, and its length.
Piece = tuple[int, int, int]

# Slots that no batch of the loop holds any more: those to use again, and those to forget.
Returned = tuple[Sequence[int], Sequence[int]]
NOTHING_RETURNED: Returned = ((), ())


class _Slot:
    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.file = open_memory("batch")  # -1 once the consumer has it
        os.ftruncate(self.file, size)
        self.memory = _native.Mapping(self.file, 0, size).memory
        self.address: int = self.memory.ctypes.data
        self.forks = 0  # when it was taken

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.file >= 0:
            close(self.file)


class _WorkerLease:
    """Holds a slot for as long as anything in the worker that was made from it lives."""

    __slots__ = ("__array_interface__", "_ended", "_slot")

    def __init__(self, slot: _Slot, ended: deque[_Slot]) -> None:
        self._slot = slot
        self._ended = ended
        self.__array_interface__ = slot.memory.__array_interface__

    def __del__(self) -> None:
        self._ended.append(self._slot)


class Slots(Buffers):
    """The worker's side: buffers to assemble batches in, which the consumer sees.

    Args:
        channel: the socket that descriptors are sent through.
        keep: how many free slots to keep, or as many as the loop holds if that is more.

    >>> near, far = socket.socketpair()
    >>> slots, lent = Slots(near), ConsumerSlots(far)
    >>> memory = slots.take_bytes(10_000)
    >>> memory[:] = 7
    >>> parts = [memory.data]
    >>> del memory
    >>> pieces, unused = slots.send(parts)
    >>> (batch,) = lent.take(pieces)
    >>> int(batch.sum()), lent.returned()
    (70000, ([], []))
    >>> del batch
    >>> slots.give_back(lent.returned()); slots.take_bytes(10_000)[0]
    np.uint8(7)
    """

    def __init__(self, channel: socket.socket, keep: int = 8) -> None:
        super().__init__(keep=keep)
        self._channel = channel
        self._number = 0
        self._held: dict[int, _Slot] = {}  # by the present batch, or by code of the user's
        self._ended: deque[_Slot] = deque()  # of those, the ones that nothing holds any more
        self._sent: dict[int, _Slot] = {}
        self._idle: dict[int, list[_Slot]] = {}  # by size, the most recently used size last
        self._dropped: list[int] = []

    def take_bytes(self, size: int) -> Array:
        """Lend ``size`` bytes."""
        self._collect()
        slot = self._take(size)
        self._held[slot.number] = slot
        return np.asarray(_WorkerLease(slot, self._ended))[:size]

    def holds(self, address: int) -> bool:
        """Whether memory at an address is lent."""
        return any(0 <= address - slot.address < slot.memory.nbytes for slot in self._held.values())

    def _take(self, size: int) -> _Slot:
        rounded = -(-round_up(size) // mmap.PAGESIZE) * mmap.PAGESIZE
        idle = self._idle[rounded] = self._idle.pop(rounded, [])
        if idle:
            slot = idle.pop()
        else:
            slot = _Slot(self._number, rounded)
            self._number += 1
        slot.forks = fork_count()
        return slot

    def send(self, parts: list[memoryview]) -> tuple[list[Piece | bytes], list[int]]:
        """Return the parts of a batch as pieces of slots, or as bytes if they are small; and the slots to forget.

        Parts in memory of :meth:`take_bytes` stay where they are if nothing but ``parts`` holds that memory. The
        others are copied: those made elsewhere, and those that somebody may still change. ``parts`` is emptied.
        """
        arrays: list[Array] = [np.frombuffer(part, np.uint8) for part in parts]
        found = [_holder(self._held, array) for array in arrays]
        starts = [
            0 if slot is None else array.ctypes.data - slot.address
            for array, slot in zip(arrays, found, strict=True)
        ]
        # Views of the slots' own memory hold no lease.
        arrays = [
            array if slot is None else slot.memory[start : start + len(array)]
            for array, slot, start in zip(arrays, found, starts, strict=True)
        ]
        parts.clear()
        self._collect(keep=found)
        stays = [slot is not None and slot.number not in self._held for slot in found]
        copied = [
            -(-len(array) // _ALIGNMENT) * _ALIGNMENT if not stay and len(array) > _INLINE_BYTES else 0
            for array, stay in zip(arrays, stays, strict=True)
        ]
        common = self._take(sum(copied)) if any(copied) else None
        lent = [slot for slot, stay in zip(found, stays, strict=True) if stay and slot is not None]
        self._send_files([*lent, *([] if common is None else [common])])
        pieces: list[Piece | bytes] = []
        at = 0
        for array, slot, start, stay, room in zip(arrays, found, starts, stays, copied, strict=True):
            if stay and slot is not None:
                pieces.append(self._piece(slot, start, len(array)))
            elif room and common is not None:
                common.memory[at : at + len(array)] = array
                pieces.append(self._piece(common, at, len(array)))
                at += room
            else:
                pieces.append(array.tobytes())
        self._drop_excess()
        dropped, self._dropped = self._dropped, []
        return pieces, dropped

    def _send_files(self, slots: list[_Slot]) -> None:
        """Send the descriptors of slots that the consumer does not have yet, with their numbers."""
        new = list({slot.number: slot for slot in slots if slot.file >= 0}.values())
        send_files(self._channel, {slot.number: slot.file for slot in new})
        for slot in new:
            os.close(slot.file)
            slot.file = -1

    def _piece(self, slot: _Slot, start: int, length: int) -> Piece:
        self._sent[slot.number] = slot
        return slot.number, start, length

    def give_back(self, returned: Returned) -> None:
        """Take back slots that the loop does not hold any more."""
        free, retired = returned
        for number in free:
            self._reuse(self._sent.pop(number))
        for number in retired:
            del self._sent[number]

    def _collect(self, keep: Sequence[_Slot | None] = ()) -> None:
        """Take back slots that nothing in the worker holds any more, but for those to ``keep``."""
        kept = {slot.number for slot in keep if slot is not None}
        while self._ended:
            slot = self._ended.popleft()
            del self._held[slot.number]
            if slot.number not in kept:
                self._reuse(slot)

    def _reuse(self, slot: _Slot) -> None:
        if may_be_in_child(slot.forks):
            self._drop(slot)
        else:
            self._idle.setdefault(len(slot.memory), []).append(slot)

    def _drop(self, slot: _Slot) -> None:
        if slot.file < 0:
            self._dropped.append(slot.number)

    def _drop_excess(self) -> None:
        excess = sum(map(len, self._idle.values())) - max(self._keep, len(self._sent))
        while excess > 0:
            size, oldest = next(iter(self._idle.items()))
            if not oldest:
                del self._idle[size]
                continue
            self._drop(oldest.pop())
            excess -= 1


def _holder(slots: dict[int, _Slot], array: Array) -> _Slot | None:
    if len(array) == 0:
        return None
    address = array.ctypes.data
    for slot in slots.values():
        if slot.address <= address and address + len(array) <= slot.address + len(slot.memory):
            return slot
    return None


class _ConsumerLease:
    """Holds a slot for as long as anything made from it lives."""

    __slots__ = ("__array_interface__", "_forks", "_memory", "_slot", "_slots")

    def __init__(self, memory: Array, slot: int, slots: ConsumerSlots) -> None:
        self._memory = memory
        self._slot = slot
        self._slots = slots
        self._forks = fork_count()
        self.__array_interface__ = memory.__array_interface__

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_ending():  # when this module's functions may be gone before batches are
            return
        slots = self._slots
        (slots.retired if may_be_in_child(self._forks) else slots.freed).append(self._slot)


class ConsumerSlots:
    """The consumer's side: the same slots, as the memory of batches.

    Args:
        channel: the other end of the worker's socket.

    Attributes:
        freed: slots that no batch holds any more.
        retired: those among them that a child may hold, which was forked while they were lent.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._mapped: dict[int, Array] = {}
        self.freed: deque[int] = deque()
        self.retired: deque[int] = deque()

    def take(self, pieces: Sequence[Piece | bytes]) -> list[Any]:
        """Return the memory of a batch's parts."""
        leases: dict[int, Array] = {}
        parts: list[Any] = []
        for piece in pieces:
            if isinstance(piece, bytes):
                parts.append(bytearray(piece))
                continue
            slot, start, length = piece
            if slot not in leases:
                leases[slot] = np.asarray(_ConsumerLease(self._map(slot), slot, self))
            parts.append(leases[slot][start : start + length])
        return parts

    def _map(self, slot: int) -> Array:
        while slot not in self._mapped:  # descriptors were sent before the message that names their slots
            files = receive_files(self._channel)
            try:
                for number, file in files.items():
                    # Not Python's own mmap, which keeps a descriptor for each.
                    self._mapped[number] = _native.Mapping(file, 0, os.fstat(file).st_size).memory
            finally:
                for file in files.values():
                    os.close(file)
        return self._mapped[slot]

    def returned(self) -> Returned:
        """Return the slots that are not lent any more, for :meth:`Slots.give_back`."""
        retired = _drained(self.retired)
        self.forget(retired)
        return _drained(self.freed), retired

    def forget(self, slots: Iterable[int]) -> None:
        """Unmap slots that are not used any more."""
        for slot in slots:
            self._mapped.pop(slot, None)


def _drained(slots: deque[int]) -> list[int]:
    drained = []
    while slots:
        drained.append(slots.popleft())
    return drained
