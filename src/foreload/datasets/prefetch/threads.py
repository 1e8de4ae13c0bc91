"""The threads that load samples ahead."""

from __future__ import annotations

import os
import queue
import threading

from foreload.batch.generators.threads import with_own_generators
from foreload.datasets.prefetch.draws import Task
from foreload.threads import join

__all__ = ["LoadingThreads"]


class LoadingThreads:
    """Threads of one process that run tasks; started when they are first needed.

    It refers to no dataset except by tasks that are not done: it is kept until the dataset's owner is gone, and
    that may be a part of the dataset.

    Args:
        count: how many.

    Attributes:
        process: the process that has them.
    """

    def __init__(self, count: int) -> None:
        self.process = os.getpid()
        self._count = count
        # Reentrant: the garbage collector may end them anywhere, also while this is held.
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()

    def submit(self, task: Task) -> None:
        """Have a task run."""
        with self._lock:
            if len(self._threads) < self._count:
                thread = threading.Thread(
                    target=with_own_generators,
                    args=(_work, self._tasks),
                    name=f"foreload-prefetch-{len(self._threads)}",
                    daemon=True,
                )
                self._threads.append(thread)
                thread.start()
        self._tasks.put(task)

    def end(self) -> None:
        """End the threads, after their current samples; nothing happens in a fork, which has none."""
        if self.process != os.getpid():
            return
        with self._lock:
            threads, self._threads = self._threads, []
            for _ in threads:
                self._tasks.put(None)
        join(threads)


def _work(tasks: queue.SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        if task.set_running_or_notify_cancel():
            try:
                sample = task.load_in_own_thread()
            except BaseException as error:
                task.set_exception(error)
            else:
                task.set_result(sample)
                del sample
        del task  # nothing is held while waiting
