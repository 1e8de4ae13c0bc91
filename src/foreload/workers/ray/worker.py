"""One worker on a Ray cluster as the loop sees it: its jobs, its answers and its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

from foreload.record.spans import Lane
from foreload.workers.messages import Begin
from foreload.workers.pool import Worker
from foreload.workers.ray.calls import RayCalls

__all__ = ["Message", "RayWorker"]


@dataclass
class Message:
    """The answer of an actor, or the exception in its place.

    Attributes:
        worker: the worker.
        job: the number of the job; None: it was asked for its place, or to begin an epoch.
        future: what came: an answer, or an exception.
    """

    worker: RayWorker
    job: int | None
    future: Future[Any]


@dataclass
class _Process:
    """An actor's process, with the attributes of one of ``multiprocessing``."""

    pid: int = -1
    exitcode: int | None = None


class RayWorker(Worker):
    """The consumer's side of one actor.

    Args:
        number: its number among the workers.
        actor: the handle of the actor.
        lane: where it records spans.
        signals: takes the worker whenever anything comes of what its actor was asked for.
        calls: makes calls of Ray that nothing waits for.

    Attributes:
        is_ready: whether it runs, and has begun an epoch.
        is_dead: whether it has ended.
        reason: why it has ended, as Ray says.
    """

    def __init__(
        self, number: int, actor: Any, lane: Lane, signals: SimpleQueue[RayWorker | None], calls: RayCalls
    ) -> None:
        super().__init__(number, lane)
        self.process = _Process()
        self.is_ready = self.is_dead = False
        self.reason = ""
        self._actor = actor
        self._signals = signals
        self._calls = calls
        self._open: dict[int, Any] = {}  # the references that jobs come as
        self._unread: deque[Message] = deque()  # in the order in which they were asked for, come or not
        self._cache: Any = None
        self._is_placed = False
        self._waiting: list[Callable[[], None]] = []  # what it is asked for as soon as its place is known
        self._watch(actor.place.remote(), None)

    def _watch(self, reference: Any, job: int | None) -> None:
        signals, future = self._signals, reference.future()
        self._unread.append(Message(self, job, future))
        # (Ray calls this in a thread of its own, which must not wait for anything. The future must not hold its
        # message, which would then stay, with its part of Ray's store, until the garbage collector runs.)
        future.add_done_callback(lambda _: signals.put(self))

    def read(self) -> Iterator[Message]:
        """Return each message that has come, up to the first that has not.

        Ray does not deliver them in order, though the actor does one thing after the other; and where the dataset
        has a state, the latest answer says how far it is.
        """
        while (unread := self._unread) and unread[0].future.done():
            yield unread.popleft()

    def placed(self, address: str, pid: int, cache: Any) -> None:
        """Note where the actor is.

        Args:
            address: of its machine.
            pid: of its process.
            cache: a reference to the place of the node's cache, if there is one.
        """
        self.node, self.process.pid, self._cache, self._is_placed = address, pid, cache, True
        waiting, self._waiting = self._waiting, []
        for ask in waiting:
            ask()

    def _when_placed(self, ask: Callable[[], None]) -> None:
        if self._is_placed:
            ask()
        else:
            self._waiting.append(ask)

    def tell(self, message: Begin | None) -> None:
        """Have an epoch begun; None: say that there are no more jobs. It takes no time."""
        self.is_last = message is None
        if message is not None:
            self.is_ready = False
            self._when_placed(lambda: self._watch(self._actor.begin.remote(message, self._cache), None))

    def ask(self, number: int, indices: Any, seconds: float | None = None) -> bool:
        """Send a job; it takes no time."""
        self.asked[number] = indices

        def send() -> None:
            if number in self.asked:
                self._open[number] = reference = self._actor.load.remote(number, indices)
                self._watch(reference, number)

        self._when_placed(send)
        return True

    def answered(self, number: int) -> None:
        """Note that a job is done."""
        self.asked.pop(number, None)
        self._open.pop(number, None)

    def leave_jobs(self, number: int, *, skip: bool) -> None:
        """Let the actor skip them in any case: another one might be in its place."""
        self.skip_to(number)

    def skip_to(self, number: int) -> None:
        """Let the actor skip the jobs before this one, as far as it has not begun with them."""
        import ray

        for reference in self._open.values():
            self._calls.make_later(partial(ray.cancel, reference))
        self._open.clear()
        self._unread = deque(message for message in self._unread if message.job is None)
        self.asked.clear()

    def end(self) -> Any:
        """Kill the actor, and return its process."""
        import ray

        self.is_dead, self.is_ready = True, False
        self._open.clear()
        self._unread = deque()
        self._calls.make_later(partial(ray.kill, self._actor, no_restart=True))
        return self.process

    def death(self) -> str:
        """Describe how the actor ended, in Ray's words."""
        where = f" on node {self.node} (pid {self.process.pid})" if self._is_placed else " as it was started"
        return f"Ray worker {self.number}{where} has ended: {self.reason.rstrip('.')}. "

    def where(self) -> str:
        """Describe what the actor is doing."""
        if not self._is_placed:
            return f"Ray worker {self.number} has not been started yet"
        where = f"Ray worker {self.number} (pid {self.process.pid} on node {self.node})"
        if not self.asked:
            return f"{where} is idle"
        indices = next(iter(self.asked.values()))
        listed = indices.tolist() if hasattr(indices, "tolist") else indices
        return f"{where} is at the batch of samples {str(listed)[:200]}"
