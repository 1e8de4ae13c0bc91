"""What each worker did and when, in memory that all of them write to and anybody may read at any time."""

from __future__ import annotations

import enum
import heapq
import os
import threading
import weakref
from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np

from foreload import _native
from foreload.checks import Array
from foreload.machine import open_memory

__all__ = ["SPAN", "TOTAL", "Lane", "Spans", "Stage"]

LaneKind = Literal["consumer", "thread", "process"]

SPAN = np.dtype(
    [
        ("lane", "u2"),
        ("stage", "u1"),
        ("batch", "u4"),
        ("samples", "u4"),
        ("bytes", "u8"),
        ("begin", "u8"),
        ("end", "u8"),
    ]
)
TOTAL = np.dtype(
    [("count", "u8"), ("wall_ns", "u8"), ("cpu_ns", "u8"), ("samples", "u8"), ("bytes", "u8")],
)


class Stage(enum.IntEnum):
    """What a worker, or the loop, is at.

    Attributes:
        order: drawing and planning indices, for as many samples at a time as are drawn together.
        read: getting bytes from a disk or a network.
        decode: making pixels, rows or tokens of bytes.
        cache: looking a sample up, copying it from there, keeping it there.
        sample: the dataset's own ``__getitem__``, ``__getitems__`` or ``__iter__``, which cannot be looked into.
        transform: the loader's ``transform=``, and native transforms that are a step of their own.
        batch: putting samples together: ``collate_fn``, gathering rows, pinning.
        wait: the loop waits for a batch.
        device: copying a batch to the GPU.
    """

    order = 0
    read = 1
    decode = 2
    cache = 3
    sample = 4
    transform = 5
    batch = 6
    wait = 7
    device = 8


class Lane(NamedTuple):
    """What one worker wrote.

    Attributes:
        name: such as ``"thread 1"``.
        kind: ``"consumer"`` (whose loop it is), ``"thread"`` or ``"process"``.
        native: the lane itself, which one thread at a time may write to.
        offset: where it lies in the shared file; -1: it is on the heap.
    """

    name: str
    kind: LaneKind
    native: _native.Lane
    offset: int = -1


class Spans:
    """The spans of a loader, by lanes: one for the loop, and one for each worker.

    A lane is lent to one writer at a time. It has the sums of all its spans, and the last 4,096 of them. Lanes of
    worker processes lie in a file in memory: what a process wrote that was killed is still there, and the one that
    replaces it goes on in the same lane. In a process that is forked from this one, loops go on in
    lanes of their own.

    Attributes:
        lanes: all that there are, in the order of their numbers.

    >>> spans = Spans()
    >>> (lane,) = spans.take("thread")
    >>> lane.native.add(Stage.read, 1_000, 3_500, samples=2, bytes=600)
    >>> lane.name, spans.recent()[["begin", "end", "bytes"]].tolist()
    ('thread 0', [(1000, 3500, 600)])
    >>> int(spans.totals()[0, Stage.read]["wall_ns"])
    2500
    """

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self._free: dict[LaneKind, list[int]] = {"consumer": [], "thread": [], "process": []}
        self._counts = dict.fromkeys(self._free, 0)
        self._file = -1
        self._lock = threading.RLock()  # the garbage collector may give a lane back in the middle of anything

    def take(self, kind: LaneKind, count: int = 1) -> list[Lane]:
        """Lend lanes to writers: those that nobody writes to any more, or new ones."""
        with self._lock:
            return [self._take(kind) for _ in range(count)]

    def _take(self, kind: LaneKind) -> Lane:
        if self._free[kind]:
            return self.lanes[heapq.heappop(self._free[kind])]
        number = self._counts[kind]
        self._counts[kind] += 1
        if kind == "process":
            offset = number * _native.Lane.bytes
            lane = Lane(f"{kind} {number}", kind, self._shared(offset), offset)
        else:
            lane = Lane(f"{kind} {number}", kind, _native.Lane())
        self.lanes.append(lane)
        return lane

    def _shared(self, offset: int) -> _native.Lane:
        if self._file < 0:
            self._file = open_memory("spans")
            weakref.finalize(self, os.close, self._file)
        os.ftruncate(self._file, offset + _native.Lane.bytes)
        return _native.Lane(self._file, offset)

    @property
    def file(self) -> int:
        """The descriptor of the file that lanes of processes lie in; -1: there are none."""
        return self._file

    def give_back(self, lanes: Iterable[Lane]) -> None:
        """End a loan, when nobody writes to these lanes any more."""
        with self._lock:
            for lane in lanes:
                if lane in self.lanes:  # not after a fork
                    heapq.heappush(self._free[lane.kind], self.lanes.index(lane))

    def queued_seconds(self) -> float:
        """Give the time in which worker threads were ready to run, and others had the cores."""
        return sum(lane.native.queued_ns for lane in list(self.lanes)) * 1e-9

    def totals(self) -> Array:
        """Give the sums of all spans: an array of :data:`TOTAL`, lanes x stages.

        ``wall_ns`` is without spans within spans, except for ``wait``, which is all that the loop waited;
        ``cpu_ns`` is the part of it that the thread was on a core, measured now and then. Both are nanoseconds.
        """
        lanes = list(self.lanes)
        words = np.array([lane.native.totals() for lane in lanes], np.uint64).reshape(-1, len(Stage), 5)
        return np.ascontiguousarray(words).view(TOTAL)[:, :, 0]

    def recent(self) -> Array:
        """Give the last spans of each lane, by when they began: an array of :data:`SPAN`.

        ``lane`` is the number of a lane, ``batch`` of a batch in its epoch; ``begin`` and ``end`` are nanoseconds
        of ``time.monotonic_ns()``.
        """
        found = [np.zeros(0, SPAN)]
        for number, lane in enumerate(list(self.lanes)):
            words = lane.native.recent()
            spans = np.empty(len(words), SPAN)
            spans["lane"] = number
            for column, name in enumerate(("stage", "batch", "samples", "bytes", "begin", "end")):
                spans[name] = words[:, column]
            found.append(spans)
        spans = np.concatenate(found)
        return spans[np.argsort(spans["begin"], kind="stable")]

    def begin_anew(self) -> None:
        """Forget everything, in a process that was just forked: its loops may go on, workers stayed behind."""
        self._lock = threading.RLock()
        kept = [lane for lane in self.lanes if lane.kind == "consumer"]
        free = {self.lanes[number].name for number in self._free["consumer"]}
        self.lanes = kept
        self._free = {"consumer": [], "thread": [], "process": []}
        self._free["consumer"] = [number for number, lane in enumerate(kept) if lane.name in free]
        self._counts = {"consumer": len(kept), "thread": 0, "process": 0}
        self._file = -1
        for lane in kept:
            lane.native.clear()
