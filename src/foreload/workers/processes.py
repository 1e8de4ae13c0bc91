"""Worker processes as the loop sees them: the wait for their answers, and replacements of killed ones."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from typing import Any

from foreload.record.spans import Spans
from foreload.workers import blas
from foreload.workers.pipes import Alarm
from foreload.workers.process import END_SECONDS, Worker
from foreload.workers.worker import Result, WorkerTask

__all__ = ["ProcessPool"]


class ProcessPool:
    """Worker processes, and the wait for their answers.

    Args:
        task: the arguments that they are started with.
        context: the context of ``multiprocessing``.
        spans: where they record spans.

    Attributes:
        dealing: a lock for what follows: epochs of several threads may use the pool one after the other.
        next_number: the number of the next job.
        first: the first job of the present epoch.
    """

    def __init__(self, task: WorkerTask, context: Any, spans: Spans) -> None:
        self._task = task
        self._spans = spans
        self._context = context
        self._process = os.getpid()
        self._closed = False
        self._waiting = threading.RLock()
        self._found: list[tuple[Worker, Result | None]] = []  # by an epoch that they were not for
        self._alarm = Alarm()
        self.dealing = threading.RLock()
        self.next_number = 0
        self.first = 0
        self.workers: list[Worker] = []
        try:
            if context.get_start_method() == "fork":
                _prepare_forks()
            before = time.thread_time()
            for number in range(task.count):
                self.workers.append(self._start(number))
            spans.add_started(time.thread_time() - before)
        except BaseException:
            self.close()
            raise

    def _start(self, number: int) -> Worker:
        (lane,) = self._spans.take("process")
        try:
            return Worker(number, self._task, self._context, self._spans, lane)
        except BaseException:
            self._spans.give_back([lane])
            raise

    @property
    def closed(self) -> bool:
        """Whether the workers have been ended, or belong to the process that this one was forked from."""
        return self._closed or self._process != os.getpid()

    def replace(self, worker: Worker) -> Worker:
        """Start another process in the place of one that is gone; it has no epoch and no jobs yet."""
        worker.end()
        worker.close()
        other = Worker(worker.number, self._task, self._context, self._spans, worker.lane)
        self.workers[worker.number] = other
        return other

    def begin(self) -> int:
        """Begin an epoch; return the number of its first job."""
        with self.dealing:
            self.first = self.next_number
        self.wake()
        return self.first

    def wake(self) -> None:
        """Let a thread that is in :meth:`wait` return."""
        self._alarm.ring()

    def wait(
        self, wanted: list[Worker], timeout: float | None, first: int, also: int | None = None
    ) -> list[tuple[Worker, Result | None]] | None:
        """Wait for answers of ``wanted``, or the end of any worker; return the answers, and None for an end.

        Workers that were told to end may do so when they have answered. Nothing is waited for once another epoch
        has begun than the one with job ``first``, or once the descriptor ``also`` can be read from.

        Returns:
            None after ``timeout`` seconds. There may be nothing if another thread did anything with this pool.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._waiting:
            while not self.closed and self.first == first:
                found, self._found = self._found or self._look(wanted, deadline, also), []
                if found and self.first != first:
                    self._found = found  # answers for the epoch that has begun meanwhile may be among them
                    break
                if found is None or found:
                    return found
                if self._alarm.has_rung() or also is not None:
                    break
            return []

    def _look(
        self, wanted: list[Worker], deadline: float | None, also: int | None
    ) -> list[tuple[Worker, Result | None]] | None:
        poll = select.poll()
        if also is not None:
            poll.register(also, select.POLLIN)
        poll.register(self._alarm, select.POLLIN)
        wanted = [worker for worker in wanted if not worker.is_done]
        for worker in wanted:
            poll.register(worker.fileno(), select.POLLIN)
        watched = [worker for worker in self.workers if not worker.is_done]
        for worker in watched:
            poll.register(worker.ended, select.POLLIN)
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        files = {file for file, _ in poll.poll(0 if any(worker.has_answered for worker in wanted) else left)}
        if not files and not any(worker.has_answered for worker in wanted):
            return None
        found: list[tuple[Worker, Result | None]] = []
        for worker in dict.fromkeys([*wanted, *watched]):
            has_ended = worker.ended in files
            if has_ended or worker.has_answered or worker.fileno() in files:
                found += [(worker, answer) for answer in worker.answers(has_ended=has_ended)]
            if (has_ended or worker.is_silent) and not worker.is_done:
                found.append((worker, None))
        return found

    def close(self, *, wait: bool = True) -> None:
        """End the workers, after their present batches; ``wait=False`` kills them at once."""
        if self.closed:
            return
        self._closed = True
        self.wake()
        deadline = time.monotonic() + (END_SECONDS if wait else 0)
        for worker in self.workers:
            worker.skip_to(sys.maxsize)
            worker.tell(None, max(0.0, deadline - time.monotonic()))
        try:
            for worker in self.workers:
                worker.end(deadline - time.monotonic())
        finally:  # an interrupt leaves none behind
            for worker in self.workers:
                worker.end(0)
            with self._waiting:  # another thread may just leave its wait for them
                for worker in self.workers:
                    worker.close()
                    self._spans.give_back([worker.lane])
                self._alarm.close()


def _prepare_forks() -> None:
    """Do here, once, what each forked worker would do for itself in each epoch."""
    import numpy.random  # noqa: F401 (NumPy imports it when it is first used: by a worker, to seed it)

    blas.find_libraries()
