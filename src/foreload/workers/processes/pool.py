"""Worker processes as the loop sees them: the wait for their answers, and replacements of killed ones."""

from __future__ import annotations

import select
import sys
import time
import weakref
from typing import Any

from foreload.batch.generators.keyed import KeyedGenerators
from foreload.record.spans import Spans
from foreload.threads import SIGNAL_SECONDS
from foreload.workers import compute
from foreload.workers.pool import WorkerPool
from foreload.workers.processes.pipes import Alarm, check_not_within
from foreload.workers.processes.worker import END_SECONDS, ProcessWorker
from foreload.workers.worker import WorkerTask

__all__ = ["ProcessPool", "prepare_forks"]

# Without an order, any of the workers may be waited for.
_MOST_POLLS = 64


class ProcessPool(WorkerPool[ProcessWorker]):
    """Worker processes, and the wait for their answers.

    Args:
        task: the arguments that they are started with. Whoever uses the pool must hold them: the pool is held too
            by what ends it, and would keep a loader alive that its dataset or ``collate_fn`` refers to.
        context: the context of ``multiprocessing``.
        spans: where they record spans.
    """

    def __init__(self, task: WorkerTask, context: Any, spans: Spans) -> None:
        super().__init__(spans)
        self._task = weakref.ref(task)
        self._context = context
        self._alarm = Alarm()
        self._polls: dict[tuple[int | None, ...], tuple[select.poll, dict[int, ProcessWorker]]] = {}
        try:
            if context.get_start_method() == "fork":
                prepare_forks(is_keyed=task.spec.is_keyed)
            before = time.thread_time()
            for number in range(task.count):
                self.workers.append(self._start(number, task))
            spans.add_started(time.thread_time() - before)
        except BaseException:
            self.close()
            raise

    def _start(self, number: int, task: WorkerTask) -> ProcessWorker:
        (lane,) = self._spans.take("process")
        try:
            return ProcessWorker(number, task, self._context, self._spans, lane)
        except BaseException:
            self._spans.give_back([lane])
            raise

    def replace(self, worker: ProcessWorker) -> ProcessWorker:
        """Start another process in the place of one that is gone; it has no epoch and no jobs yet."""
        worker.end()
        worker.close()
        task = self._task()
        assert task is not None
        other = ProcessWorker(worker.number, task, self._context, self._spans, worker.lane)
        self.workers[worker.number] = other
        self._polls.clear()  # they know the descriptors of the one before
        return other

    def wake(self) -> None:
        """Let a thread that is in :meth:`wait` return."""
        self._alarm.ring()

    def wait(
        self, wanted: list[ProcessWorker], timeout: float | None, first: int, also: int | None = None
    ) -> bool | None:
        """Wait as every pool does, or until the descriptor ``also`` can be read from.

        Workers that were told to end may do so when they have answered.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        check_not_within(self._waiting)
        with self._waiting:
            while not self.closed and self.first == first:
                is_in_time = bool(self.found) or self._look(wanted, deadline, also)
                if self.closed or self.first != first:
                    break  # what was found may be for the epoch that has begun meanwhile
                if self.found or not is_in_time:
                    return True if self.found else None
                if self._alarm.has_rung() or also is not None:
                    break
            if self.first != first:
                self.wake()  # what has rung may be for a thread of the epoch that has begun
            return False

    def _look(self, wanted: list[ProcessWorker], deadline: float | None, also: int | None) -> bool:
        """Wait once; return whether anything came before the deadline."""
        wanted = [worker for worker in wanted if not worker.is_done]
        watched = [worker for worker in self.workers if not worker.is_done]
        poll, senders = self._poll(wanted, watched, also)
        is_known = any(worker.has_answered or worker.is_silent for worker in wanted)
        files = _readable(poll, 0 if is_known else deadline)
        if self.closed:  # by a signal's handler, meanwhile
            return True
        if not files and not is_known:
            return False
        some = (*wanted, *watched) if is_known else [each for file, each in senders.items() if file in files]
        for worker in dict.fromkeys(some):
            if self.found and worker not in wanted:
                break  # the batches that are there come before the end of another worker
            has_ended = worker.ended in files
            if has_ended or worker.has_answered or worker.fileno() in files:
                worker.receive(self.found, has_ended=has_ended)
            if (has_ended or worker.is_silent) and not worker.is_done:
                self.found.append((worker, None))
        return True

    def _poll(
        self, wanted: list[ProcessWorker], watched: list[ProcessWorker], also: int | None
    ) -> tuple[select.poll, dict[int, ProcessWorker]]:
        """Return what waits for answers of some workers and the end of others, and the worker of each descriptor.

        The same few are waited for time and again, and to register many descriptors takes longer than to wait.
        """
        key = (also, *[worker.number for worker in wanted], -1, *[worker.number for worker in watched])
        if key not in self._polls:
            if len(self._polls) >= _MOST_POLLS:
                self._polls.clear()
            senders = {worker.fileno(): worker for worker in wanted}
            senders |= {worker.ended: worker for worker in watched}
            poll = select.poll()
            for file in (*senders, self._alarm.fileno(), *([] if also is None else [also])):
                poll.register(file, select.POLLIN)
            self._polls[key] = poll, senders
        return self._polls[key]

    def close(self) -> None:
        """End the workers after their present batches; if one is late, kill them."""
        if self.closed:
            return
        self._has_ended = True
        self.wake()
        deadline = time.monotonic() + (0 if self.is_late else END_SECONDS)
        try:
            for worker in self.workers:
                worker.skip_to(sys.maxsize)
                try:
                    worker.tell(None, max(0.0, deadline - time.monotonic()))
                except RuntimeError:  # a signal's handler, while the loop sends: it is not told, but killed
                    deadline = 0.0
            for worker in self.workers:
                worker.end(deadline - time.monotonic())
        finally:  # an interrupt leaves none behind
            for worker in self.workers:
                worker.end(0)
            with self._waiting:  # another thread may just leave its wait for them
                for worker in self.workers:
                    if self.states is not None:
                        for result in worker.last_begun():
                            self.states.note(worker.number, result)
                    worker.close()
                    self._spans.give_back([worker.lane])
                self._alarm.close()


def prepare_forks(*, is_keyed: bool) -> None:
    """Do here, once, what each forked worker would do for itself in each epoch.

    Args:
        is_keyed: whether samples draw from generators keyed by their index.
    """
    import numpy.random  # noqa: F401 (NumPy imports it when it is first used: by a worker, to seed it)

    compute.find_blas()
    if is_keyed:
        KeyedGenerators((0, 0))  # finds where their states are


def _readable(poll: select.poll, deadline: float | None) -> set[int]:
    """Return what can be read from, once there is anything or the deadline is over."""
    while True:
        left = SIGNAL_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
        files = {file for file, _ in poll.poll(min(left, SIGNAL_SECONDS) * 1000)}
        if files or (deadline is not None and time.monotonic() >= deadline):
            return files
