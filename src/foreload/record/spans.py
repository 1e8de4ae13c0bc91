"""Spans of work, one lane per worker, in memory that can be read at any time while workers write to it."""

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
    """A kind of work that a worker, or the loop, does.

    Attributes:
        order: drawing and planning indices; one span for all samples drawn together.
        read: reading bytes from a disk or a network.
        decode: turning bytes into pixels, rows or tokens.
        cache: looking samples up in the cache, copying them from there, storing them there.
        sample: the dataset's own ``__getitem__``, ``__getitems__`` or ``__iter__``, whose inside is not visible.
        transform: the loader's ``transform=``, and native transforms that are a separate step.
        batch: collating: ``collate_fn``, gathering rows, pinning.
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
    """The spans of one writer: a worker, or the loop.

    Attributes:
        name: such as ``"thread 1"``.
        kind: ``"consumer"`` (the loop), ``"thread"`` or ``"process"``.
        native: the lane itself; only one thread at a time may write to it.
        offset: its offset in the shared file; -1: it is on the heap.
    """

    name: str
    kind: LaneKind
    native: _native.Lane
    offset: int = -1


class Spans:
    """The spans of a loader, by lanes: one for the loop, and one for each worker.

    A lane is lent to one writer at a time. It has the sums of all its spans, and the last 4,096 of them. Lanes of
    worker processes are in a file in memory: the spans of a killed process are still there, and the process that
    replaces it continues in the same lane. In a forked process, loops continue in lanes of their own.

    Attributes:
        lanes: all lanes, by number.
        started_seconds: CPU seconds that starting worker processes took.

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
        self._queued_by_ended = 0.0
        self.started_seconds = 0.0
        self._lock = threading.RLock()  # the garbage collector may return a lane at any point

    def take(self, kind: LaneKind, count: int = 1) -> list[Lane]:
        """Lend lanes to writers: lanes that were given back, or new ones."""
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
            # Not at exit: functions that run later then may load, and the number would be another file's.
            weakref.finalize(self, os.close, self._file).atexit = False
        os.ftruncate(self._file, offset + _native.Lane.bytes)
        return _native.Lane(self._file, offset)

    @property
    def file(self) -> int:
        """The descriptor of the file with the lanes of processes; -1: there are none."""
        return self._file

    def give_back(self, lanes: Iterable[Lane]) -> None:
        """Take lanes back that their writers have finished with."""
        with self._lock:
            for lane in lanes:
                if lane in self.lanes:  # not after a fork
                    heapq.heappush(self._free[lane.kind], self.lanes.index(lane))

    def add_queued(self, seconds: float) -> None:
        """Add the time in which a worker process that has ended was ready to run, but had no core."""
        with self._lock:
            self._queued_by_ended += seconds

    def add_started(self, seconds: float) -> None:
        """Add to what starting worker processes took."""
        with self._lock:
            self.started_seconds += seconds

    def queued_seconds(self) -> float:
        """Return how long worker threads, and processes that have ended, were ready to run without a core."""
        return sum(lane.native.queued_ns for lane in list(self.lanes)) * 1e-9 + self._queued_by_ended

    def totals(self) -> Array:
        """Return the sums of all spans: an array of :data:`TOTAL`, lanes x stages.

        ``wall_ns`` excludes nested spans, except for ``wait``, which is all the time that the loop waited;
        ``cpu_ns`` is the part of it that the thread was on a core, which is sampled. Both are nanoseconds.
        """
        lanes = list(self.lanes)
        words = np.array([lane.native.totals() for lane in lanes], np.uint64).reshape(-1, len(Stage), 5)
        return np.ascontiguousarray(words).view(TOTAL)[:, :, 0]

    def recent(self) -> Array:
        """Return the last spans of each lane, by when they began: an array of :data:`SPAN`.

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
        """Clear everything in a process that was just forked: its loops may continue, but it has no workers."""
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
