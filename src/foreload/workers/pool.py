"""Workers in other processes as epochs see them: what they are asked for, and the wait for their answers."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from typing import Any, Generic, TypeVar

from foreload.record.spans import Lane, Spans
from foreload.workers.dataset_states import DatasetStates
from foreload.workers.messages import Begin, Result

__all__ = ["Answers", "W", "Worker", "WorkerPool"]


class Worker(ABC):
    """The consumer's side of one worker.

    Args:
        number: its number among the workers.
        lane: where it records spans.

    Attributes:
        asked: the jobs that it has not answered, in order: number and indices.
        process: its process, with the attributes of one of ``multiprocessing``.
        node: the address of its machine, if that may be another one.
        is_last: whether it has been told that there will be no more jobs.
        left: the indices of jobs of epochs that were left, which it does though nobody waits for the answers.
    """

    process: Any

    def __init__(self, number: int, lane: Lane) -> None:
        self.number = number
        self.lane = lane
        self.asked: OrderedDict[int, Any] = OrderedDict()
        self.node = ""
        self.is_last = False
        self.left: list[Any] = []

    @abstractmethod
    def tell(self, message: Begin | None) -> None:
        """Have an epoch begun; None: say that there are no more jobs."""

    @abstractmethod
    def ask(self, number: int, indices: Any, seconds: float | None) -> bool:
        """Send a job; return whether it took no longer than ``seconds``."""

    def idle_seconds(self) -> float:
        """Return how long it has had nothing to do; 0 if it has something, or that is not known."""
        return 0.0

    @abstractmethod
    def skip_to(self, number: int) -> None:
        """Let the worker skip the jobs before this one."""

    def leave_jobs(self, number: int, *, skip: bool) -> None:
        """Leave the jobs before this one unanswered.

        Args:
            number: the first job that still counts.
            skip: whether the worker need not do those that it has not begun. How many those are is a matter of
                time: if samples draw random numbers, or change the worker's copy of the dataset, later ones would
                be others each time. Torch's workers do all that they were given.
        """
        if skip:
            self.skip_to(number)
        else:
            self.left += self.asked.values()
            self.asked.clear()

    @abstractmethod
    def end(self) -> Any:
        """Make sure that the worker has ended, and return its process."""

    @abstractmethod
    def death(self) -> str:
        """Describe how the worker ended."""

    @property
    def has_failed_to_start(self) -> bool:
        """Whether it has ended by an error before its first job, as another one in its place would."""
        return False

    @abstractmethod
    def where(self) -> str:
        """Describe what the worker is doing."""


W = TypeVar("W", bound=Worker)  # of one kind

# What workers have answered; None: this one has ended.
Answers = deque[tuple[W, Result | None]]


class WorkerPool(ABC, Generic[W]):
    """Workers in other processes.

    Args:
        spans: where they record spans.

    Attributes:
        workers: the workers, by number; those that have been lost are replaced.
        found: what they have answered, until the present epoch has taken it in: an interrupt loses nothing.
        assigning: a lock for what follows: epochs of several threads may use the pool one after the other.
        next_number: the number of the next job.
        first: the first job of the present epoch.
        is_late: whether the loop has waited in vain for a worker, which may be stuck: its end is not waited for.
        has_failed: whether its workers were ended because one was lost that could not be replaced.
        states: those of the workers' copies of the dataset in the latest epoch, if it may have one.
        is_successor: whether ``states`` are of workers that were stuck or lost, in whose place these are.
    """

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._process = os.getpid()
        self._has_ended = False
        self._waiting = threading.RLock()
        self.found: Answers[W] = deque()
        self.assigning = threading.RLock()
        self.next_number = 0
        self.first = 0
        self.is_late = self.has_failed = False
        self.states: DatasetStates | None = None
        self.is_successor = False
        self.workers: list[W] = []

    @property
    def closed(self) -> bool:
        """Whether the workers have been ended, or belong to the process that this one was forked from."""
        return self._has_ended or self._process != os.getpid()

    def begin(self) -> int:
        """Begin an epoch; return the number of its first job."""
        with self.assigning:
            self.first = self.next_number
        self.wake()
        return self.first

    def succeed(self, last: object) -> None:
        """Let the workers, which are new, go on where those of a pool that was late, or failed, answered last."""
        if not (isinstance(last, WorkerPool) and (last.is_late or last.has_failed)):
            return
        if len(last.workers) == len(self.workers):
            self.states, self.is_successor = last.states, last.states is not None

    @abstractmethod
    def replace(self, worker: W) -> W:
        """Start another worker in the place of one that is gone; it has no epoch and no jobs yet."""

    @abstractmethod
    def wake(self) -> None:
        """Let a thread that is in :meth:`wait` return."""

    @abstractmethod
    def wait(self, wanted: list[W], timeout: float | None, first: int) -> bool | None:
        """Wait until the answers of ``wanted``, or the end of any worker, are :attr:`found`.

        Nothing is waited for once another epoch has begun than the one with job ``first``.

        Returns:
            Whether there is anything; None after ``timeout`` seconds. There may be nothing if another thread did
            anything with this pool.
        """

    @abstractmethod
    def close(self) -> None:
        """End the workers, those that are late at once."""
