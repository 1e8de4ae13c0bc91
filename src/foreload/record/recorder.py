"""Who records what a loader's epochs do: a watch for each of them."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any

from foreload import _native
from foreload.nested import count_samples
from foreload.record.spans import Lane, Spans

__all__ = ["Recorder", "Watch", "ended_children", "null_loop"]


class Watch:
    """Watches one epoch, and the loop over it.

    Attributes:
        lane: what the thread of the loop writes to.
        loop: counts batches, and the time between them.
        depth: how many batches are kept in the making.
        lock: looks at the interpreter's lock while the loop waits for threads.
    """

    def __init__(self, recorder: Recorder, lane: Lane) -> None:
        self._recorder = recorder
        self.lane = lane
        self.loop = recorder.loop(lane)
        self.lock = recorder.lock
        self.depth = 0
        self._ready: tuple[list[Any], int] = [], 0
        self._inner: _native.Loop | None = None
        self._passed = 0
        self.loop.begin()

    def make_ready(self, ready: list[Any], batches: int) -> None:
        """Take note of batches that are about to be counted together, and that the loop takes one by one."""
        self._ready = ready, self.loop.batches + batches

    def untaken(self, counted: int) -> tuple[int, int]:
        """Count the samples and batches that are among the ``counted`` ones, and were not taken by the loop."""
        batches, counted_then = self._ready
        ready = list(batches) if counted >= counted_then else []
        return sum(map(count_samples, ready)), len(ready)

    def count_at_consumer(self) -> _native.Loop:
        """Give what counts in the place of ``loop`` from here on: somebody is between the epoch and the loop."""
        self._inner = self._recorder.inner(self.lane)
        self._inner.begin()
        self._passed = self._inner.sums[2]
        return self._inner

    def passed(self) -> int:
        """Count the samples of the batch that the epoch gave last, to who is between it and the loop."""
        before = self._passed
        self._passed = 0 if self._inner is None else self._inner.sums[2]
        return self._passed - before

    def begun(self, epoch: Any) -> None:
        """Take note that the epoch is ready; when it is gone, the watch ends."""
        self.loop.begun()
        weakref.finalize(epoch, self._recorder.end, self).atexit = False

    def end(self) -> None:
        """Let another epoch have the lane; what comes after that does not count."""
        self._recorder.end(self)


class Recorder:
    """What is known of the epochs of a loader.

    Attributes:
        spans: what each worker did.
        last: the epoch begun last.
        since: when the first epoch began (``time.time()``); None before.
        children_before: CPU seconds of processes that had ended by then.
        lock: what was seen of the interpreter's lock while loops waited for threads.
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
        """Give what counts for the loops that write to a lane."""
        loop = self._loops.get(lane.name)
        if loop is None:
            loop = self._loops[lane.name] = _native.Loop(lane.native)
        return loop

    def inner(self, lane: Lane) -> _native.Loop:
        """Give what counts for an epoch that writes to a lane, where somebody is between it and the loop."""
        return self._inner.setdefault(lane.name, null_loop())

    def begin(self) -> Watch:
        """Watch the epoch that begins now."""
        if self.since is None:
            self.since = time.time()
            self.children_before = ended_children()
        (lane,) = self.spans.take("consumer")
        with self._lock:
            watch = self.last = self._open[lane.name] = Watch(self, lane)
        return watch

    def end(self, watch: Watch) -> None:
        """Let another epoch have the watch's lane."""
        with self._lock:
            if self._open.get(watch.lane.name) is not watch:
                return
            del self._open[watch.lane.name]
            watch.loop.take_back(*watch.untaken(watch.loop.batches))
        self.spans.give_back([watch.lane])

    @property
    def seconds(self) -> float:
        """Seconds of all loops so far."""
        with self._lock:
            return sum(loop.seconds for loop in self._loops.values())

    def sums(self) -> dict[str, Any]:
        """Give what was counted in all epochs; times in nanoseconds."""
        names = ("epochs", "batches", "samples", "wait", "loop", "loop_cpu", "process_cpu")
        sums = dict.fromkeys(names, 0)
        first = (0, 0)
        with self._lock:
            for lane, loop in self._loops.items():
                *counts, began, took = loop.sums
                watch = self._open.get(lane)
                samples, batches = (0, 0) if watch is None else watch.untaken(counts[1])
                for name, count in zip(names, counts, strict=True):
                    sums[name] += count
                sums["samples"] -= samples
                sums["batches"] -= batches
                first = max(first, (began, took))
        return {**sums, "first": first[1]}

    def __reduce__(self) -> Any:
        """Begin anew in another loader."""
        return Recorder, ()

    def _begin_anew(self) -> None:
        self._lock = threading.RLock()
        self.since = None
        self.lock = _native.LockWatch()
        self.spans.begin_anew()
        for loop in [*self._loops.values(), *self._inner.values()]:
            loop.clear()


def null_loop() -> _native.Loop:
    """Give what counts, and nobody reads."""
    return _native.Loop(_ASIDE)


_ASIDE = _native.Lane()


def ended_children() -> float:
    """Give the CPU seconds of processes that were children of this one and have ended."""
    times = os.times()
    return times.children_user + times.children_system


_all: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _forked() -> None:
    # What the parent has recorded is its own; an epoch that goes on here is recorded here.
    for recorder in list(_all):
        recorder._begin_anew()


os.register_at_fork(after_in_child=_forked)
