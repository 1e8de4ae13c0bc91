"""Counters in files mapped into memory, which outlive a killed process."""

from __future__ import annotations

import mmap
import os
import threading
import time
from typing import Any

__all__ = [
    "COUNTERS",
    "EPOCHS",
    "SPAN_NUMBERS",
    "STAGES",
    "STAGE_COUNTERS",
    "Here",
    "ThreadLane",
    "size_of",
    "start_of",
]

STAGES = ("order", "read", "decode", "cache", "sample", "transform", "batch", "wait", "device")
STAGE_COUNTERS = ("count", "wall", "cpu", "samples", "bytes")
COUNTERS = (
    "epochs",
    "batches",
    "samples",
    "seconds",  # nanoseconds, as all times here; read and disk are bytes
    "loop",
    "loop_cpu",
    "first",
    "between",  # CPU time of a worker's thread between its batches
    "looked",  # the wall time of the fetches during which the next three were sampled
    "blocked",
    "read",
    "disk",
    "opened",
    "tensors",  # of an epoch's first batch
    "batch_bytes",  # of these tensors
    "pageable",  # bytes copied to a device from memory that is not page-locked
    "started",  # CPU time of a worker before its first batch, and of the loop for starting workers
    "first_cpu",  # of a worker's first batch, which is touched by nothing yet: memory, caches, modules
    "ending",  # after the last batches of epochs, while workers end
    "spans",
)
EPOCHS = 64  # begin and end are kept of the last ones
SPAN_NUMBERS = 5  # stage and batch, samples, bytes, begin, end

_PLACE = {name: i for i, name in enumerate(COUNTERS)}
_STAGE = {name: len(COUNTERS) + i * len(STAGE_COUNTERS) for i, name in enumerate(STAGES)}
_NUMBER = {name: i for i, name in enumerate(STAGES)}
_EPOCHS_AT = len(COUNTERS) + len(STAGES) * len(STAGE_COUNTERS)
_SPANS_AT = _EPOCHS_AT + 2 * EPOCHS

# Nanoseconds between two samples of what a thread has read; a sample takes about 5 microseconds.
_SAMPLE_EVERY = 1_000_000


def size_of(spans: int) -> int:
    """Return the size in bytes of a file with room for ``spans`` spans."""
    return 8 * (_SPANS_AT + SPAN_NUMBERS * spans)


def start_of(part: str) -> int:
    """Return the index of the first number of the counters, a stage, the epochs or the spans."""
    return {"counters": 0, "epochs": _EPOCHS_AT, "spans": _SPANS_AT, **_STAGE}[part]


class ThreadLane:
    """Counters and spans of one thread, in a file.

    Args:
        path: the file, which must not exist.
        spans: the number of spans kept.
        mark: called with the name of each stage when it begins, and with None when it ends.
    """

    def __init__(self, path: str, spans: int, mark: Any = None) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, size_of(spans))
            self.numbers = memoryview(mmap.mmap(file, size_of(spans))).cast("Q")
        finally:
            os.close(file)
        self.batch = 0  # the number of the present batch
        self._spans = spans
        self._mark = mark
        self._stack: list[list[Any]] = []
        self._looked = 0
        self._before: tuple[int, int, int] | None = None
        self._thread: _ThreadFiles | None = None

    def add(self, counter: str, amount: int) -> None:
        """Add to a counter."""
        self.numbers[_PLACE[counter]] += amount

    def total(self, counter: str) -> int:
        """Return a counter."""
        return self.numbers[_PLACE[counter]]

    def set(self, counter: str, amount: int) -> None:
        """Set a counter."""
        self.numbers[_PLACE[counter]] = amount

    @property
    def busy(self) -> bool:
        """Whether a stage is under way."""
        return bool(self._stack)

    def within(self, stage: str) -> bool:
        """Whether this is the innermost stage under way."""
        return bool(self._stack) and self._stack[-1][0] == stage

    def begin(self, stage: str) -> None:
        """Begin a stage; inside another stage, its time is not counted for that one."""
        if self._mark is not None:
            self._mark(stage)
        self._stack.append([stage, time.monotonic_ns(), time.thread_time_ns(), 0, 0])

    def end(self, samples: int = 0, size: int = 0) -> tuple[int, int]:
        """End the innermost stage; return its wall and CPU time, including nested stages."""
        cpu, now = time.thread_time_ns(), time.monotonic_ns()
        stage, began, cpu_before, inner, inner_cpu = self._stack.pop()
        wall, spent = now - began, cpu - cpu_before
        if self._stack:
            self._stack[-1][3] += wall
            self._stack[-1][4] += spent
        self.count(stage, wall - inner, spent - inner_cpu, samples, size)
        self.keep(stage, began, now, samples, size)
        if self._mark is not None:
            self._mark(None)
        return wall, spent

    def count(self, stage: str, wall: int, cpu: int, samples: int = 0, size: int = 0) -> None:
        """Add to a stage's counters."""
        numbers, place = self.numbers, _STAGE[stage]
        numbers[place] += 1
        numbers[place + 1] += max(0, wall)
        numbers[place + 2] += max(0, cpu)
        numbers[place + 3] += samples
        numbers[place + 4] += size

    def keep(self, stage: str, began: int, ended: int, samples: int = 0, size: int = 0) -> None:
        """Store a span in place of the oldest."""
        if not self._spans:
            return
        numbers = self.numbers
        kept = numbers[_PLACE["spans"]]
        place = _SPANS_AT + SPAN_NUMBERS * (kept % self._spans)
        numbers[place] = _NUMBER[stage] | self.batch << 8
        numbers[place + 1] = samples
        numbers[place + 2] = size
        numbers[place + 3] = began
        numbers[place + 4] = ended
        numbers[_PLACE["spans"]] = kept + 1

    def epoch(self, number: int, began: int, last: int) -> None:
        """Store when an epoch began and when it delivered its latest batch."""
        place = _EPOCHS_AT + 2 * (number % EPOCHS)
        self.numbers[place] = began
        self.numbers[place + 1] = last

    def look(self) -> None:
        """Begin to sample what the thread reads and waits for, unless that was done just now."""
        now = time.monotonic_ns()
        if now - self._looked >= _SAMPLE_EVERY:
            self._looked = now
            if self._thread is None or self._thread.thread != threading.get_native_id():
                self._thread = _ThreadFiles()
            self._before = self._thread.look()

    def looked(self, wall: int, cpu: int) -> None:
        """Count what was read and waited for since :meth:`look`, in this much wall and CPU time."""
        before, self._before = self._before, None
        if before is None or self._thread is None:
            return
        read, disk, queued = (a - b for a, b in zip(self._thread.look(), before, strict=True))
        if not self.numbers[_PLACE["looked"]]:
            disk = min(disk, read)  # at first, the code itself may be read from the disk
        self.add("looked", wall)
        self.add("blocked", max(0, wall - cpu - queued))
        self.add("read", read)
        self.add("disk", disk)


class _ThreadFiles:
    """The kernel's counters of what this thread has read, and of its wait for a core (proc(5))."""

    def __init__(self) -> None:
        self.thread = threading.get_native_id()
        self._io = _opened("/proc/thread-self/io")
        self._schedule = _opened("/proc/thread-self/schedstat")

    def look(self) -> tuple[int, int, int]:
        """Return the bytes read by system calls, those read from a disk, and the wait for a core in ns."""
        read = disk = queued = 0
        if self._io is not None:
            words = os.pread(self._io, 512, 0).split()
            read, disk = int(words[1]), int(words[9])
        if self._schedule is not None:
            queued = int(os.pread(self._schedule, 128, 0).split()[1])
        return read, disk, queued

    def __del__(self, close: Any = os.close) -> None:
        for file in (self._io, self._schedule):
            if file is not None:
                close(file)


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a kernel without it
        return None


class Here(threading.local):
    """State of the present thread.

    Attributes:
        lane: the lane that it records to while it loads; otherwise None.
        own: its own lane, for loading outside any loop, as in a worker.
        last: the lane of the loop whose batch it works on.
    """

    lane: ThreadLane | None = None
    own: ThreadLane | None = None
    last: ThreadLane | None = None

    def forget(self) -> None:
        """Reset the state, in a fork."""
        self.lane = self.own = self.last = None
