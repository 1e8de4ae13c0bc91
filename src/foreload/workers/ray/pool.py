"""The workers of a loader on a Ray cluster: the wait for their answers, and replacements of lost ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any

from foreload.errors import warn_user
from foreload.record.spans import Spans
from foreload.workers.messages import Result
from foreload.workers.pool import WorkerPool
from foreload.workers.ray.caches import NodeCaches
from foreload.workers.ray.calls import RayCalls
from foreload.workers.ray.cluster import connected, current_job
from foreload.workers.ray.memory import lease_parts
from foreload.workers.ray.worker import Message, RayWorker
from foreload.workers.worker import WorkerTask

__all__ = ["RayPool"]

# Seconds without any worker after which a warning says why there may be none.
_START_SECONDS = 20.0


class RayPool(WorkerPool[RayWorker]):
    """Actors on a Ray cluster that make batches.

    Each takes one CPU. Ray starts those that its nodes have CPUs for; the others start when there are more.

    Args:
        task: the arguments that they are started with.
        spans: where they record spans.
        caches: the caches of the nodes, if the loader has one.
    """

    def __init__(self, task: WorkerTask, spans: Spans, caches: NodeCaches | None) -> None:
        from foreload.workers.ray.actor import LoadingActor
        from foreload.workers.ray.shipping import pickle_task

        super().__init__(spans)
        self._ray = connected()
        self._job = current_job()
        self._caches = caches
        self._signals: SimpleQueue[RayWorker | None] = SimpleQueue()  # None: somebody rang
        self._calls = RayCalls()
        self._has_warned = False
        self._actors = self._ray.remote(LoadingActor).options(
            # Not in the placement group of a trainer, which may have no CPU to spare.
            num_cpus=1,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        self._task = self._ray.put(pickle_task(task))
        try:
            for _ in range(task.count):
                self.grow()
        except BaseException:
            self.close()
            raise

    def grow(self) -> RayWorker:
        """Start one more worker, which has no epoch and no jobs yet."""
        (lane,) = self._spans.take("process")
        worker = self._start(len(self.workers), lane)
        self.workers.append(worker)
        return worker

    def _start(self, number: int, lane: Any) -> RayWorker:
        return RayWorker(number, self._actors.remote(number, self._task), lane, self._signals, self._calls)

    @property
    def closed(self) -> bool:
        """Whether the workers have been ended, or are another process's, or another cluster's."""
        return super().closed or self._job != current_job()

    def replace(self, worker: RayWorker) -> RayWorker:
        """Start another actor in the place of one that is gone; it has no epoch and no jobs yet."""
        worker.end()
        other = self._start(worker.number, worker.lane)
        self.workers[worker.number] = other
        return other

    def wake(self) -> None:
        """Let a thread that is in :meth:`wait` return."""
        self._signals.put(None)

    def wait(self, wanted: list[RayWorker], timeout: float | None, first: int) -> bool | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._waiting:
            while not self.closed and self.first == first:
                if any(worker in wanted or answer is None for worker, answer in self.found):
                    return True
                answering = self._signal(deadline)
                if answering is None and deadline is not None and time.monotonic() >= deadline:
                    return None
                if answering is None and self.first == first:
                    return bool(self.found)
                if answering is None:
                    break
                for message in answering.read():  # none if it has been replaced
                    self.found += self._read(message)
            self.wake()
            return False  # what was found may be for the epoch that has begun meanwhile

    def _signal(self, deadline: float | None) -> RayWorker | None:
        """Wait for a worker that answers; None: somebody rang, or the deadline has passed."""
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            is_starting = not self._has_warned and not any(worker.node for worker in self.workers)
            try:
                if not is_starting:
                    return self._signals.get(timeout=left)
                return self._signals.get(timeout=_START_SECONDS if left is None else min(left, _START_SECONDS))
            except Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    return None
                self._warn_of_cpus()

    def _warn_of_cpus(self) -> None:
        self._has_warned = True
        has, left = (resources.get("CPU", 0) for resources in self._resources())
        warn_user(
            f"no worker has been started on the Ray cluster for {_START_SECONDS:g} s: each takes one of its "
            f"{has:g} CPUs, of which {left:g} are free; add nodes, or end what has the others (other loaders with "
            "persistent_workers=True, trainers that reserve more CPUs than they use)"
        )

    def _resources(self) -> Iterator[dict[str, float]]:
        yield self._ray.cluster_resources()
        yield self._ray.available_resources()

    def _read(self, message: Message) -> list[tuple[RayWorker, Result | None]]:
        worker, job = message.worker, message.job
        error = message.future.exception()
        if error is not None:
            return self._failed(worker, job, error)
        answer = message.future.result()
        if not hasattr(answer, "result"):
            worker.placed(answer.address, answer.pid, self._caches and self._caches.place_of(answer.node))
            return []
        shift = answer.clock - (time.time_ns() - time.monotonic_ns())
        worker.lane.native.absorb(answer.totals, answer.spans, shift)
        result: Result = answer.result
        if result.begun is not None:
            worker.is_ready = worker.is_ready or result.begun == self.first
            return [(worker, result)]
        if job not in worker.asked:
            return []  # of an epoch that has ended
        worker.answered(result.number)
        if result.parts is not None:
            result.parts = lease_parts(result.parts)
        return [(worker, result)]

    def _failed(
        self, worker: RayWorker, job: int | None, error: BaseException
    ) -> list[tuple[RayWorker, Result | None]]:
        exceptions = self._ray.exceptions
        if isinstance(error, exceptions.TaskCancelledError) and job is not None and job not in worker.asked:
            return []  # of an epoch that has ended
        if isinstance(error, exceptions.RayTaskError):  # foreload's own code has failed there
            self.close()
            raise error
        if self._caches is not None:
            self._caches.forget_lost()
        worker.reason = str(error).strip().partition("\n")[0]
        # Also if only an object is lost, with the node that it was on: what else its actor has made may be, too.
        worker.end()
        return [(worker, None)]

    def close(self) -> None:
        """End the workers at once."""
        if self.closed:
            self._calls.close()  # if it is another cluster's
            return
        self._has_ended = True
        self.wake()
        for worker in self.workers:
            worker.end()
        self._calls.close()
        self._spans.give_back([worker.lane for worker in self.workers])
