"""The recorder of a loader: counters and spans of its epochs, through a watch for each epoch."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from foreload import _native
from foreload.record.spans import Lane, Spans

__all__ = ["Recorder", "Watch", "ended_children", "null_loop"]


class Watch:
    """Watches one epoch, and the loop over it.

    Attributes:
        lane: the lane of the thread of the loop.
        loop: counts batches, and the time between them.
        depth: the number of batches made ahead.
        began: when the epoch began (``time.monotonic()``).
        number: of the epoch, from 0.
        progress: returns how many batches of the epoch are over, how many it has, and how many the one before it
            had; None instead of what is not known.
        lock: looks at the interpreter's lock while the loop waits for threads.
    """

    def __init__(self, recorder: Recorder, lane: Lane) -> None:
        self._recorder = recorder
        self.lane = lane
        self.loop = recorder.loop(lane)
        self.lock = recorder.lock
        self.depth = 0
        self._inner: _native.Loop | None = None
        self._passed = self._ahead_before = 0
        self.began = time.monotonic()
        self.number = 0
        self.progress: Callable[[], tuple[int, int | None, int | None]] | None = None
        self._epoch: weakref.ref[Any] | None = None
        self.loop.begin()

    def count_at_consumer(self) -> _native.Loop:
        """Return the counters of the epoch from here on; ``loop`` is left to a wrapper between epoch and loop."""
        self._inner = self._recorder.inner(self.lane)
        self._inner.begin()
        self._passed = self._inner.sums[2]
        self._ahead_before = self._inner.batches - self.loop.batches
        return self._inner

    @property
    def num_ahead(self) -> int:
        """The batches that a wrapper has taken from the epoch, and the loop has not taken from the wrapper."""
        return 0 if self._inner is None else self._inner.batches - self.loop.batches - self._ahead_before

    def passed(self) -> int:
        """Return the number of samples in the last batch that the wrapper took from the epoch."""
        before = self._passed
        self._passed = 0 if self._inner is None else self._inner.sums[2]
        return self._passed - before

    @property
    def is_open(self) -> bool:
        """Whether the epoch has neither ended nor been left."""
        return self._recorder.is_open(self)

    def begun(self, epoch: Any) -> None:
        """Mark the epoch as ready; when it is garbage-collected, the watch ends."""
        self.loop.begun()
        self._epoch = weakref.ref(epoch, self._left)

    def _left(self, _: Any, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_over():  # else modules may have been cleared, and nobody begins another epoch
            self.end()

    def end(self) -> None:
        """Free the lane for another epoch; nothing after that counts."""
        self._epoch = None
        self._recorder.end(self)


class Recorder:
    """Records the epochs of a loader.

    Attributes:
        spans: the spans of all workers.
        last: the watch of the latest epoch.
        since: when the first epoch began (``time.time()``); None before.
        children_before: CPU seconds of child processes that had ended by then.
        lock: looks at the interpreter's lock while loops wait for threads.
    """

    def __init__(self) -> None:
        self.spans = Spans()
        self.last: Watch | None = None
        self._loops: dict[str, _native.Loop] = {}  # by the name of the lane
        self._inner: dict[str, _native.Loop] = {}
        self._open: dict[str, Watch] = {}
        self._lock = threading.RLock()  # the garbage collector may end an epoch in the middle of anything
        self.since: float | None = None
        self.children_before = 0.0
        self.lock = _native.LockWatch()
        _all.add(self)

    def loop(self, lane: Lane) -> _native.Loop:
        """Return the counters of the loops that write to a lane."""
        loop = self._loops.get(lane.name)
        if loop is None:
            loop = self._loops[lane.name] = _native.Loop(lane.native)
        return loop

    def inner(self, lane: Lane) -> _native.Loop:
        """Return the counters of epochs that write to a lane, if a wrapper counts for the loop."""
        return self._inner.setdefault(lane.name, null_loop())

    def begin(self) -> Watch:
        """Return a watch for the epoch that begins now."""
        if self.since is None:
            self.since = time.time()
            self.children_before = ended_children()
        (lane,) = self.spans.take("consumer")
        with self._lock:
            watch = self.last = self._open[lane.name] = Watch(self, lane)
        return watch

    def end(self, watch: Watch) -> None:
        """Free the lane of a watch for another epoch."""
        with self._lock:
            if not self.is_open(watch):
                return
            del self._open[watch.lane.name]
        self.spans.give_back([watch.lane])

    def is_open(self, watch: Watch) -> bool:
        """Whether the epoch of a watch has neither ended nor been left."""
        return self._open.get(watch.lane.name) is watch

    @property
    def seconds(self) -> float:
        """Seconds of all loops so far."""
        with self._lock:
            return sum(loop.seconds for loop in self._loops.values())

    def sums(self) -> dict[str, Any]:
        """Return the sums of all epochs; times in nanoseconds."""
        names = ("epochs", "batches", "samples", "wait", "loop", "loop_cpu", "process_cpu")
        sums = dict.fromkeys(names, 0)
        first = (0, 0)
        with self._lock:
            for loop in self._loops.values():
                *counts, began, took = loop.sums
                for name, count in zip(names, counts, strict=True):
                    sums[name] += count
                first = max(first, (began, took))
        return {**sums, "first": first[1]}

    def __reduce__(self) -> Any:
        """Pickle without what was recorded."""
        return Recorder, ()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self.since = None
        self.lock = _native.LockWatch()
        self.spans.begin_anew()
        for loop in [*self._loops.values(), *self._inner.values()]:
            loop.clear()


def null_loop() -> _native.Loop:
    """Return counters that are never read."""
    return _native.Loop(_NULL_LANE)


_NULL_LANE = _native.Lane()


def ended_children() -> float:
    """Return the CPU seconds of child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


_all: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _forked() -> None:
    # The records are the parent's; an epoch that goes on in the child is recorded from here on.
    for recorder in list(_all):
        recorder._reset()


os.register_at_fork(after_in_child=_forked)
