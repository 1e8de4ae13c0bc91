"""The samples that workers are measured with, and turns of workers that load them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Sampler

from foreload.options import WorkerKind

__all__ = ["STRIDE", "NotWanted", "Sending", "Turns", "Workload"]

# Measured samples come from all over the dataset.
STRIDE = 7919

# The most different samples that turns load.
_MOST_INDICES = 1 << 16

# The time of a turn.
_TURN_SECONDS = 0.05

# The batches that are made to see what a sample takes in one.
_GLANCED_BATCHES = 3


class NotWanted(BaseException):
    """Nobody waits for what is measured any more; no error of what is measured."""


class Sending(NamedTuple):
    """The seconds for a sample, or a batch, of a collate function, which may leave each an object of its own.

    Attributes:
        sent: what a worker process takes to see whether it can be sent as it is, and to pickle it.
        checked: of these, what it takes to see that.
        taken: what the loop takes to put it together again.
    """

    sent: float
    checked: float
    taken: float


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
        sending: what handing over its batches takes; None: not measured.
        is_over: whether nobody waits for what is measured any more.
        meanwhile: called while a fork measures.
    """

    view: Any
    batch_size: int | None
    prefetch_factor: int | None
    memory_limit: int | None
    batches: Callable[[WorkerKind, int, Sampler[Any], bool], Any]
    kinds: tuple[WorkerKind, ...] = ("threads", "processes")
    watched: tuple[Any, ...] = ()
    collate: Callable[[list[Any]], Any] | None = None
    sending: Sending | None = None
    is_over: Callable[[], bool] = lambda: False
    meanwhile: Callable[[], None] = lambda: None


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
