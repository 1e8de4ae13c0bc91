"""The samples that workers are measured with, turns of workers that load them, and the workers that are chosen."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from foreload.cache.serialize import flatten
from foreload.tune.costs import WorkerKind

__all__ = [
    "MAX_THREADS",
    "STRIDE",
    "Candidate",
    "Choice",
    "NotWanted",
    "Turns",
    "Workload",
    "candidates_of",
    "never_pays",
    "seconds_by_processes",
]

# The kind and number of workers; none: the thread of the loop.
Candidate = tuple[WorkerKind, int]

# Threads that only wait take no core, so there may be many of them.
MAX_THREADS = 32

_PROCESSES_PER_CORE = 4  # at most, for samples that wait

# What handing a sample over takes of a core.
_HANDOVER_SECONDS, _HANDOVER_SECONDS_PER_BYTE = 2e-6, 1.5e-10

# Measured samples come from all over the dataset.
STRIDE = 7919

# The most different samples that turns load.
_MOST_INDICES = 1 << 16

# The time of a turn.
_TURN_SECONDS = 0.05

# The batches that are made to see what a sample takes in one.
_GLANCED_BATCHES = 3


@dataclass(frozen=True)
class Choice:
    """The workers that load the samples.

    Attributes:
        kind: threads or processes.
        count: their number; 0: the calling thread loads.
        why: the reason, in words.
        rates: samples per second that were measured.
        seconds: the time that measuring took.
        is_pure: whether loading was seen to change nothing in the dataset.
        made_of: the objects that the dataset, and what is applied to its samples, were made of then.
        is_open: whether other workers might be chosen at another time or place.
    """

    kind: WorkerKind
    count: int
    why: str
    rates: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    is_pure: bool = False
    made_of: dict[str, Any] = field(default_factory=dict, repr=False)
    is_open: bool = False


class NotWanted(BaseException):
    """Nobody waits for what is measured any more; no error of what is measured."""


@dataclass(frozen=True)
class Workload:
    """The samples to load.

    Attributes:
        view: the dataset as workers see it.
        batch_size: samples per batch; None without batching.
        prefetch_factor: batches made ahead per worker.
        memory_limit: bytes that unfinished batches and the cache may take; None: no limit.
        batches: begins to load: takes the kind and number of workers, and a sampler or a batch sampler.
        kinds: the kinds of workers that may be used.
        watched: the dataset and what is applied to samples, if copies must not depend on their state.
        collate: the user's collate function; None if it is torch's.
        is_over: whether nobody waits for what is measured any more.
    """

    view: Any
    batch_size: int | None
    prefetch_factor: int | None
    memory_limit: int | None
    batches: Callable[[WorkerKind, int, Sampler[Any], bool], Any]
    kinds: tuple[WorkerKind, ...] = ("threads", "processes")
    watched: tuple[Any, ...] = ()
    collate: Callable[[list[Any]], Any] | None = None
    is_over: Callable[[], bool] = lambda: False


class _Spread(Sampler[Any]):
    """Batches of indices from all over the dataset, without end, which take next to no time themselves."""

    def __init__(self, size: int, batch_size: int | None) -> None:
        self.batch_size = batch_size
        count = max(min(size, _MOST_INDICES), batch_size or 1)
        indices = (np.arange(1, count + 1) * STRIDE % size).tolist()
        self._items: list[Any] = indices
        if batch_size is not None:
            whole = range(0, count - count % batch_size, batch_size)
            self._items = [indices[begin : begin + batch_size] for begin in whole]

    def __iter__(self) -> Iterator[Any]:
        return itertools.cycle(self._items)


class Turns:
    """Workers of one candidate, loading.

    Args:
        work: what they load.
        kind: threads or processes.
        number: of workers; 0: the calling thread loads.
        batch: samples per batch.

    Attributes:
        best: samples per second of the best turn so far.
    """

    def __init__(self, work: Workload, kind: WorkerKind, number: int, batch: int) -> None:
        self.best = 0.0
        self._workers = number
        self._batch = batch
        self._ahead = 2 * number
        self._is_over = work.is_over
        size = None if work.batch_size is None else batch
        self._batches = work.batches(kind, number, _Spread(len(work.view), size), size is not None)

    def glance(self) -> float:
        """Return the rate of the quickest of a few batches, which a pause of the machine does not change."""
        self._load()
        times = [time.perf_counter()]
        for _ in range(_GLANCED_BATCHES):
            self._load()
            times.append(time.perf_counter())
        return self._batch / min(after - before for before, after in itertools.pairwise(times))

    def rate(self) -> float:
        """Take a turn; return the best rate so far."""
        # Batches made ahead come at once; counting starts after them.
        for _ in range(max(1, self._ahead)):
            self._load()
        started = time.perf_counter()
        given = 0
        # Workers that began together end together: only whole rounds of them count.
        while time.perf_counter() - started < _TURN_SECONDS or given < 2 or given % max(1, self._workers):
            self._load()
            given += 1
        self.best = max(self.best, given * self._batch / (time.perf_counter() - started))
        return self.best

    def _load(self) -> None:
        if self._is_over():
            raise NotWanted
        next(self._batches)

    def rest(self) -> None:
        """Wait until the batches ahead are made, which would take cores from the next candidate."""
        time.sleep(self._ahead * self._batch / self.best)

    def close(self) -> None:
        """End the workers."""
        self._batches.close()


def candidates_of(work: Workload, cores: int, seconds: float, busy: float) -> list[Candidate]:
    """Return the workers to try; a sample takes ``seconds``, and keeps a core busy for ``busy`` of them."""
    numbers = [cores]
    waits = busy < 0.5 * seconds
    if waits:
        most = MAX_THREADS if "threads" in work.kinds else cores * _PROCESSES_PER_CORE
        enough = max(cores, int(seconds / max(busy, 1e-7)) + 1)
        numbers = sorted({min(most, cores * 4), min(most, enough)})
    candidates: list[Candidate] = [("threads", number) for number in numbers if "threads" in work.kinds]
    if "processes" in work.kinds and (not waits or not candidates):
        candidates += [("processes", number) for number in (numbers[:1] if candidates else numbers)]
    return candidates


def never_pays(work: Workload, cores: int, seconds: float, busy: float) -> bool:
    """Whether processes take longer for a sample than the calling thread, however long the epoch."""
    if "threads" in work.kinds or "processes" not in work.kinds:
        return False
    return seconds_by_processes(work, cores, seconds, busy)[-1] >= seconds


def seconds_by_processes(
    work: Workload, cores: int, seconds: float, busy: float
) -> tuple[Candidate, float, float]:
    """Return which processes would load, the bytes of a sample, and an estimate of the seconds that one takes."""
    sample = float(sum(map(len, flatten(work.view[0]))))
    handover = _HANDOVER_SECONDS + sample * _HANDOVER_SECONDS_PER_BYTE
    candidate = candidates_of(work, cores, seconds, busy)[-1]
    return candidate, sample, max((seconds + handover) / candidate[1], (busy + handover) / cores)
