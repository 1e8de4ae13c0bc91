"""The states of the copies of a dataset that worker processes have, and how another worker gets there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from foreload.batch.worker_progress import BEGUN, WorkerProgress
from foreload.workers.messages import Begin, Result

__all__ = ["DatasetStates"]


class DatasetStates:
    """The progress of each worker's copy of a dataset in one epoch.

    Args:
        begin: begins the epoch.
        count: the number of workers.
        streams: how far the loop has come with each worker; the states with which they begin are added.
        before: those of the epoch before, which the workers have been through; None: they are new.
        left: for each worker, the indices of the batches of that epoch that it has made for nobody.

    Attributes:
        progress: how far each worker has come.
        unheard: the workers that have not told the state with which they begin.
    """

    def __init__(
        self,
        begin: Begin,
        count: int,
        streams: dict[int, WorkerProgress],
        before: DatasetStates | None = None,
        left: dict[int, list[Any]] | None = None,
    ) -> None:
        self._begin = begin
        self._streams = streams
        self.progress = dict(streams)
        self._latest: dict[int, int] = {}  # the number of each worker's latest batch
        self.unheard = set(range(count))
        self._past: dict[int, list[Begin]] = {}
        if before is not None:
            self._past = {worker: before._through(worker, (left or {}).get(worker, ())) for worker in range(count)}

    def _through(self, worker: int, left: Iterable[Any]) -> list[Begin]:
        """Return what brings another worker to where this one was at the end of the epoch."""
        progress = self.progress.get(worker, BEGUN)
        for indices in left:
            progress = progress.after(None, indices)
        if worker in self.unheard:  # the epoch was left so early that the one before it counts
            return [*self._past.get(worker, ()), replace(self._begin, progress=progress)]
        has_state = progress.state is not None and "dataset" in progress.state
        return [replace(self._begin, progress=progress, again=False)] if has_state else []

    def begins(self, worker: int, *, is_new: bool = True) -> list[Begin]:
        """Return the messages that begin the epoch in a worker, or let it go on if it takes a lost one's place.

        Args:
            worker: its number.
            is_new: whether it has not been through the epochs before.
        """
        is_unheard = worker in self.unheard
        past = self._past.get(worker, ()) if is_new and is_unheard else ()
        again = self._begin.again and is_unheard
        return [*past, replace(self._begin, progress=self.progress.get(worker, BEGUN), again=again)]

    def note(self, worker: int, result: Result) -> None:
        """Note the state with which a worker begins, if it is that of this epoch."""
        if result.begun != self._begin.first or worker not in self.unheard:
            return
        self.unheard.discard(worker)
        if result.state is not None and "dataset" in result.state:
            self.progress[worker] = self._streams[worker] = WorkerProgress(0, result.state)

    def advance(self, worker: int, number: int, state: Any, indices: Any) -> None:
        """Note a batch of a worker, with the state after it if that was taken.

        Nothing happens if it has been noted: an interrupt may have come between this and what follows.

        Args:
            worker: the number of the worker.
            number: the number of the job.
            state: the state of its dataset.
            indices: of the samples, if the dataset is a map-style one.
        """
        if number <= self._latest.get(worker, -1):
            return
        progress = self.progress.get(worker, BEGUN).after(state, indices)
        self.progress[worker], self._latest[worker] = progress, number  # no signal is handled between the two
