"""Epochs whose batches are made on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from foreload.batch.assembly import count, shown
from foreload.epochs.base import EpochSpec
from foreload.epochs.pooled import PooledEpoch
from foreload.workers.crew import Crew, PoolOwner
from foreload.workers.messages import Begin, Result
from foreload.workers.ray.pool import RayPool
from foreload.workers.ray.worker import RayWorker

__all__ = ["RayEpoch"]


@dataclass
class _Job:
    """A batch that has been drawn and not delivered.

    Attributes:
        indices: of its samples.
        samples: their number.
        worker: the worker that makes it; None: it has yet to be given to one.
        result: the answer.
        num_lost: how often the worker that was making it has ended.
        is_alone: whether its worker may have no other job: one that had it has ended. The answer to the job before
            it may have been lost on the way, so which of them ended the worker is known only if there is one.
    """

    indices: Any
    samples: int
    worker: RayWorker | None = None
    result: Result | None = None
    num_lost: int = 0
    is_alone: bool = False


class RayEpoch(PooledEpoch[RayWorker]):
    """Gives batches to those workers of a Ray cluster that are there, ``prefetch_factor`` each.

    Any worker can make any batch, so those that a lost worker had go to others. Where workers have a state, or
    parts of a stream, :class:`~foreload.epochs.processes.ProcessEpoch` deals with them as with processes.

    Args:
        spec: the loader as the epoch sees it.
        crew: the loader's workers.
        pool: the actors.
        owner: ends persistent workers; if there is none, they end with the epoch.
        grows: whether workers are added as long as the loop waits for data.
    """

    _pool: RayPool

    def __init__(
        self,
        spec: EpochSpec,
        crew: Crew,
        pool: RayPool,
        *,
        owner: PoolOwner | None,
        grows: bool,
    ) -> None:
        super().__init__(spec, pool, owner)
        self._crew = crew
        self._num_lost_at_start = 0
        self._grows = grows
        self._each = spec.prefetch_factor or 1
        self._begin = Begin(spec.cursor.key, self._order.is_array, self._first)
        self._jobs: dict[int, _Job] = {}  # in order
        self._is_drawn = False  # whether there are no more
        self._begin_workers()
        self._fill()

    def _tell_begin(self, worker: RayWorker, *, is_new: bool) -> None:
        worker.tell(self._begin)

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        while self._jobs:
            number = self._next_answered()
            if number is None:
                self._receive(next(iter(self._jobs.values())))
                continue
            job = self._jobs.pop(number)
            self._fill()
            assert job.result is not None
            return number - self._first, job.samples, partial(self._take, job.result)
        raise self._finish()

    def _next_answered(self) -> int | None:
        """Return the next job that has been answered, or any if order does not matter; None: there is none."""
        for number, job in self._jobs.items():
            if job.result is not None:
                return number
            if self._spec.in_order:
                return None
        return None

    def _fill(self) -> None:
        """Draw as many batches as may be in the making, and give them to workers that have begun the epoch."""
        with self._pool.assigning:
            if not self._is_current:
                return
            ready = [worker for worker in self._pool.workers if worker.is_ready]
            self._watch.depth = depth = max(1, self._memory.depth(self._each * max(1, len(ready))))
            while not self._is_drawn and len(self._jobs) < depth:
                self._draw_one()
            taken = {job.worker for job in self._jobs.values() if job.is_alone and job.result is None}
            ready = [worker for worker in ready if worker not in taken]
            for number, job in self._jobs.items():
                if job.worker is not None or job.result is not None:
                    continue
                worker = min(ready, key=lambda worker: len(worker.asked), default=None)
                if worker is None or len(worker.asked) >= (1 if job.is_alone else self._each):
                    break
                job.worker = worker
                worker.ask(number, job.indices)
                if job.is_alone:
                    ready.remove(worker)

    def _draw_one(self) -> None:
        try:
            indices = self._draw()
        except StopIteration:
            self._is_drawn = True
            return
        indices = list(indices) if isinstance(indices, Iterator) else indices
        self._jobs[self._pool.next_number] = _Job(indices, count(indices))
        self._pool.next_number += 1

    def _receive(self, job: _Job) -> None:
        """Wait until something happens that may bring on this batch."""
        self._check_open()  # the thread that has closed it may have woken another one
        self._check_pool()
        pool = self._pool
        self._grow()
        is_given = job.worker is not None and self._spec.in_order
        wanted = [job.worker] if is_given and job.worker is not None else list(pool.workers)
        starting = [worker for worker in pool.workers if not worker.is_ready]
        is_found = pool.wait([*wanted, *starting], self._spec.timeout, self._first)
        self._check_open()
        if is_found is None:
            raise RuntimeError(self._note_late(wanted))
        self._pool.is_late = False
        with pool.assigning:
            while pool.found and self._is_current:
                message = pool.found[0]
                self._take_in(*message)
                # Only now, so that after an interrupt it is taken in again. A signal's handler may have done this.
                if pool.found and pool.found[0] is message:
                    pool.found.popleft()
        self._fill()

    def _take_in(self, worker: RayWorker, result: Result | None) -> None:
        """Take a message of a worker; None: it has ended."""
        if self._pool.workers[worker.number] is not worker:
            return
        if result is None:
            self._replace(worker)
        elif result.begun is not None:
            self._num_lost_at_start = 0
        elif result.number in self._jobs and self._jobs[result.number].worker is worker:
            self._jobs[result.number].result = result

    def _grow(self) -> None:
        """Start one more worker if all have something to do; it waits for its turn where the cluster is full."""
        with self._pool.assigning:
            if self._grows and all(worker.is_ready and worker.asked for worker in self._pool.workers):
                self._pool.grow().tell(self._begin)
                self._crew.set_count(len(self._pool.workers))

    def _replace(self, worker: RayWorker) -> None:
        lost = [self._jobs[number] for number in worker.asked if number in self._jobs]
        is_certain = len(lost) == 1 or (bool(lost) and lost[0].is_alone)
        for job in lost:
            job.worker, job.is_alone = None, True
        if lost:
            lost[0].num_lost += 1  # the others were not begun
            num_lost = lost[0].num_lost
        else:
            num_lost = self._num_lost_at_start = self._num_lost_at_start + 1
        indices = [job.indices for job in lost]
        if num_lost > self._max_restarts:
            times = self._times(num_lost, indices[:1] if is_certain else indices)
            raise self._fail(worker.death() + times)
        self._restart(worker, indices)

    def _times(self, num_lost: int, indices: list[Any]) -> str:
        limit = f"(max_restarts={self._max_restarts})"
        if not indices:
            return f"{num_lost} workers ended before they had begun {limit}."
        batches = ", or that of ".join(map(shown, indices))
        return f"{num_lost} workers ended while they were loading the batch of samples {batches} {limit}."

    def _forget_jobs(self) -> None:
        self._jobs.clear()
