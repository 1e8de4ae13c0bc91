"""Samples loaded by many threads at once, as worker threads load them, and compared with those loaded alone."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foreload._torch import compute_alone
from foreload.workers.surroundings import ThreadSurroundings
from foreload.workers.thread_check.alone import Alone
from foreload.workers.thread_check.fingerprint import sample_fingerprint
from foreload.workers.thread_check.loading import KEY, CurrentSamples, Loaded, Samples, global_states, load
from foreload.workers.worker_info import WorkerIdentity

__all__ = ["NUM_PATTERNS", "Threads", "load_by_threads", "patience"]

# Threads take turns this often, in seconds, instead of every 5 ms.
_SWITCH_SECONDS = 1e-6

# The orders in which threads load: all the same, apart from each other, at random.
NUM_PATTERNS = 3

# How often each thread loads all samples without waiting for the others.
_FREE_PASSES = 3

# The part of a stack, and the number of stacks, that are shown.
_MOST_FRAMES, _MOST_STACKS = 6, 2


def patience(slowest: float) -> float:
    """Return the seconds without a sample after which threads count as stuck, if one takes ``slowest`` alone.

    Time that is up does not show that: on a busy machine threads may be slow.

    >>> patience(0.001), patience(2.0)
    (1.0, 6.0)
    """
    return max(1.0, 3 * slowest)


@dataclass
class Threads:
    """The result of loading by several threads.

    Attributes:
        wrong: samples that differ from those loaded alone, and the fields in which they do.
        changed: samples that changed after they were loaded, while others were.
        errors: exceptions that did not come alone, by index.
        stuck: the sample that each thread loads that did not come back, and where it is.
        leaked: the global generators that were drawn from, although each thread has its own.
        loads: the number of samples that were loaded.
        seconds: the time for which none came back, if some did not.
    """

    wrong: dict[int, set[str]] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    errors: dict[int, str] = field(default_factory=dict)
    stuck: list[tuple[int, str]] = field(default_factory=list)
    leaked: set[str] = field(default_factory=set)
    loads: int = 0
    seconds: float = 0.0

    def add(self, other: Threads) -> None:
        """Add what another round gave."""
        for index, fields in other.wrong.items():
            self.wrong.setdefault(index, set()).update(fields)
        self.changed |= other.changed
        self.errors = {**other.errors, **self.errors}
        self.stuck += other.stuck
        self.leaked |= other.leaked
        self.loads += other.loads
        self.seconds = max(self.seconds, other.seconds)


def load_by_threads(
    samples: Samples,
    alone: Alone,
    pattern: int,
    count: int,
    progress: CurrentSamples,
    until: float,
    deadline: float,
) -> Threads:
    """Load samples by threads at once, and compare them with those loaded alone.

    Args:
        samples: what to load.
        alone: the samples loaded alone, all of which can be compared.
        pattern: the number of the order in which threads load.
        count: the number of threads.
        progress: notes what is being loaded.
        until: when (``time.monotonic()``) no other sample is begun.
        deadline: when threads that have not come back for some time are left to themselves.
    """
    compute_alone()
    before = global_states()
    trial = _Trial(samples, alone, count, progress, until)
    threads = [
        threading.Thread(
            target=trial.work, args=(worker, _order(list(alone.loaded), pattern, worker, count)), daemon=True
        )
        for worker in range(count)
    ]
    with _hostile_switching():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for thread in threads:
            while thread.is_alive() and (left := trial.last + patience(alone.slowest) - time.monotonic()) > 0:
                thread.join(left)
    found = trial.found
    if trial.failure is not None:
        raise trial.failure
    if any(thread.is_alive() for thread in threads):
        found.seconds = time.monotonic() - trial.last
        found.stuck = _stacks(threads, progress.now())
    after = global_states()
    found.leaked = {name for name in before if before[name] != after[name]}
    return found


@contextmanager
def _hostile_switching() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _order(indices: list[int], pattern: int, worker: int, count: int) -> list[int]:
    """Return the order in which a thread loads the samples."""
    if pattern == 1:
        at = worker * len(indices) // count
        apart = indices[at:] + indices[:at]
        return apart if worker % 2 == 0 else apart[::-1]
    if pattern == 2:
        return random.Random(worker).sample(indices, len(indices))
    return indices


class _Trial:
    """Threads that load the same samples, in orders of their own."""

    def __init__(self, samples: Samples, alone: Alone, count: int, progress: CurrentSamples, until: float) -> None:
        self.found = Threads()
        self.last = time.monotonic()  # when the last sample came
        self.failure: BaseException | None = None
        self._samples = samples
        self._alone = alone
        self._progress = progress
        self._until = until
        self._is_over = False
        self._identity = WorkerIdentity(count, 0, samples.dataset, None)
        self._surroundings = ThreadSurroundings(KEY)
        self._within = self._surroundings.enter()
        self._barrier = threading.Barrier(count, self._decide)
        self._lock = threading.Lock()

    def _decide(self) -> None:
        """Decide for all threads whether they go on."""
        self._is_over = self.found.loads > 0 and time.monotonic() > self._until

    def work(self, worker: int, order: list[int]) -> None:
        try:
            self._identity.assume(worker)
            self._within(self._work, worker, order)
        except threading.BrokenBarrierError:
            return
        except BaseException as error:  # not of a sample
            self.failure = error
            self._barrier.abort()

    def _work(self, worker: int, order: list[int]) -> None:
        for index in order:
            self._barrier.wait()
            if self._is_over:
                return
            sample, loaded = self._one(worker, index)
            self._barrier.wait()  # all have loaded one
            if loaded.sample is not None and loaded.sample.different(sample_fingerprint(sample)) is not None:
                with self._lock:
                    self.found.changed.add(index)
        for index in order * _FREE_PASSES:
            if time.monotonic() > self._until:
                return
            self._one(worker, index)

    def _one(self, worker: int, index: int) -> tuple[Any, Loaded]:
        def keyed(key: Any) -> tuple[Any, Loaded]:
            key(index)
            return load(self._samples, index)

        self._progress.begin(worker, index)
        sample, loaded = self._surroundings.generators().run(keyed)
        self._progress.end(worker)
        fields = self._alone.loaded[index].different(loaded)
        with self._lock:
            self.last = time.monotonic()
            self.found.loads += 1
            if fields is not None and loaded.error:
                self.found.errors[index] = loaded.error
            elif fields is not None and index not in self._alone.unequal:
                self.found.wrong.setdefault(index, set()).update(fields)
        return sample, loaded


def _stacks(threads: list[threading.Thread], now: dict[int, int]) -> list[tuple[int, str]]:
    """Return the samples that threads are loading, and where these are; each place once, and not all of them."""
    frames = sys._current_frames()
    folder = str(Path(__file__).parents[2]) + os.sep
    found: list[tuple[int, str]] = []
    shown: set[str] = set()
    for worker, index in now.items():
        frame = frames.get(threads[worker].ident or 0)
        stack = [] if frame is None else traceback.extract_stack(frame)
        ours = [at for at, part in enumerate(stack) if part.filename.startswith(folder)]
        own = stack[ours[-1] + 1 if ours else 0 :]
        text = "".join(traceback.format_list(own[-_MOST_FRAMES:])).rstrip()
        is_new = text not in shown and len(shown) < _MOST_STACKS
        shown.add(text)
        found.append((index, text if is_new else ""))
    return found
