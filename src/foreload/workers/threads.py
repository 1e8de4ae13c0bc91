"""Threads that run the jobs of a native pool."""

from __future__ import annotations

import os
import sys
import threading
import traceback

from foreload import _native
from foreload.record.spans import Lane, Spans
from foreload.threads import join
from foreload.workers.worker_info import WorkerIdentity

__all__ = ["ThreadPool", "no_job"]


class ThreadPool:
    """``count`` threads that take runs of samples from the oldest unfinished batch.

    They are Python threads (visible in ``threading.enumerate()``, with lasting thread-local state). They wait and
    do native work without the GIL.

    Args:
        count: the number of threads.
        identity: sets the answer of ``get_worker_info()`` in each thread.
        spans: where they record spans.
    """

    def __init__(self, count: int, identity: WorkerIdentity, spans: Spans) -> None:
        self.failure: BaseException | None = None
        self.is_late = False
        self._closed = False
        self._process = os.getpid()
        self._native = _native.Pool()
        self._watchers: list[_native.Completions] = []
        # The garbage collector may close an epoch in the middle of anything, here too.
        self._lock = threading.RLock()
        self._spans = spans
        self._identity = identity
        self._lanes: list[Lane] = []
        self._threads: list[threading.Thread] = []
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        worker = len(self._threads)
        (lane,) = self._spans.take("thread")
        thread = threading.Thread(
            target=self._work,
            args=(worker, self._identity, lane.native),
            name=f"foreload-worker-{worker}",
            daemon=True,
        )
        try:
            thread.start()
        except BaseException:
            self._spans.give_back([lane])
            raise
        self._lanes.append(lane)
        self._threads.append(thread)

    def resize(self, count: int) -> int:
        """Go on with ``count`` threads: missing ones are started, surplus ones rest after their present samples.

        Returns:
            The number of threads, less than ``count`` if the system allows no more.
        """
        with self._lock:
            if self.closed:
                return count
            self._identity.resize(count)
            try:
                while len(self._threads) < count:
                    self._start()
            except RuntimeError:  # there may be no more threads
                count = len(self._threads)
                self._identity.resize(count)
            self._native.limit(count)
        return count

    @property
    def closed(self) -> bool:
        """Whether there are no threads: they were ended, or did not survive a fork."""
        return self._closed or self._process != os.getpid()

    def _work(self, worker: int, identity: WorkerIdentity, lane: _native.Lane) -> None:
        try:
            identity.assume(worker)
        except BaseException as error:
            self._fail(error, "in worker_init_fn")
        else:
            try:
                self._native.work(worker, lane)
            except Exception as error:  # no memory: a batch is lost, for which somebody waits
                self._fail(error, "while it loaded samples")

    def _fail(self, error: BaseException, where: str) -> None:
        error.add_note(f"foreload: {where}, in {threading.current_thread().name}")
        self.failure = error
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher.push(no_job())

    def watch(self, completions: _native.Completions) -> None:
        """Push an unknown job to ``completions`` when a worker fails to start, or if one has."""
        with self._lock:
            self._watchers.append(completions)
            failed = self.failure is not None
        if failed:
            completions.push(no_job())

    def submit(self, job: _native.Job, completions: _native.Completions, number: int) -> None:
        """Queue the job of batch ``number``; it is pushed to ``completions`` when it is finished."""
        if self._process == os.getpid():  # after a fork, a thread of the parent may have locked the queue
            self._native.submit(job, completions, number)

    def forget(self, completions: _native.Completions) -> None:
        """Drop the jobs that are queued for ``completions``."""
        if self._process != os.getpid():
            return  # after a fork, there are no threads, and locks that they held stay locked
        self._native.cancel(completions)
        with self._lock:
            if completions in self._watchers:
                self._watchers.remove(completions)

    def stacks(self) -> dict[int, str]:
        """Return the stack of each running thread, by its identity."""
        frames = sys._current_frames()
        return {
            thread.ident: f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
            for thread in self._threads
            if thread.ident in frames
        }

    def close(self) -> None:
        """End the threads after their present samples; if one is late, do not wait for that."""
        if self.closed:
            return
        self._closed = True
        self._native.close()
        self._wake()  # other threads, which wait for batches that do not come any more
        join(self._threads, is_late=self.is_late)
        self._spans.give_back(
            lane for lane, thread in zip(self._lanes, self._threads, strict=True) if not thread.is_alive()
        )


def no_job() -> _native.Job:
    """Return a job that does nothing."""
    return _native.PythonJob(1, 1, lambda begin, end: None, lambda: None)
