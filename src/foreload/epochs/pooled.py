"""Epochs whose batches are made by workers in other processes, of this machine or of a Ray cluster."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Generic

from foreload import _native
from foreload.batch.assembly import listed
from foreload.batch.collate import pinned
from foreload.epochs.base import Epoch, EpochSpec
from foreload.errors import warn_user
from foreload.record.restart import Restart
from foreload.record.spans import Stage
from foreload.workers.crew import PoolOwner
from foreload.workers.messages import Result
from foreload.workers.pool import W, WorkerPool

__all__ = ["PooledEpoch"]


class PooledEpoch(Epoch, Generic[W]):
    """Has batches made by a pool of workers, of which those that are lost are replaced.

    Args:
        spec: the loader as the epoch sees it.
        pool: the workers.
        owner: ends persistent workers; if there is none, they end with the epoch.
    """

    def __init__(self, spec: EpochSpec, pool: WorkerPool[W], owner: PoolOwner | None) -> None:
        self._pool = pool  # which wake() needs
        super().__init__(spec)
        self._owner = owner
        self._pin_device = spec.batches.pin_device
        self._restarts = spec.restarts
        self._max_restarts = spec.max_restarts
        self._failure: str | None = None
        self._first = pool.begin()
        # (Samples of an epoch that "auto" has chosen workers for do not depend on who has loaded which.)
        self._skips = not spec.draws_at_once
        self._close = weakref.finalize(self, _end, pool, self._first, owner is None, self._skips)

    def _tell_begin(self, worker: W, *, is_new: bool) -> None:
        """Have the epoch begun by a worker; one that is new is in the place of one that is lost."""
        raise NotImplementedError

    def _forget_jobs(self) -> None:
        """Forget all jobs and their answers."""
        raise NotImplementedError

    def _begin_workers(self) -> None:
        for worker in self._pool.workers:
            worker.leave_jobs(self._first, skip=self._skips)
            self._tell_begin(worker, is_new=False)

    @property
    def _workers(self) -> list[Any]:
        """The processes, where torch's iterator has them."""
        return [worker.process for worker in self._pool.workers]

    @property
    def _is_current(self) -> bool:
        """Whether the workers are there, and at this epoch; it stays so while one has the pool's ``assigning``."""
        return not self._pool.closed and self._pool.first == self._first

    def _check_pool(self) -> None:
        """Raise if nothing more will come.

        Raises:
            RuntimeError: the workers have ended, or are at another epoch.
        """
        if self._pool.closed:
            raise RuntimeError(
                "this epoch's workers have ended, or belong to the parent of a fork; begin another epoch"
            )
        if self._pool.first != self._first:
            raise RuntimeError(
                "this epoch ended when another one was begun with the same persistent workers; use that one"
            )

    def _take(self, result: Result) -> Any:
        for failure in result.failures or ():
            self.errors.append(failure)
        return _take_batch(result, self._lane, result.number - self._first, self._pin_device)

    def _restart(self, worker: W, lost: Iterable[Any]) -> W:
        """Replace a worker that has ended; return the one in its place, which has begun the epoch.

        Args:
            worker: the one that has ended.
            lost: the indices of the batches that it was to make.
        """
        indices = [listed(each) for each in lost]
        process = worker.process
        try:
            other = self._pool.replace(worker)
        except BaseException as error:  # or the pool would go on without this worker
            failure = self._fail(
                f"{worker.death().rstrip()} No other process can be started in its place: {error}"
            )
            if isinstance(error, Exception):
                raise failure from error
            raise
        self._restarts.append(Restart(worker.number, process.pid, process.exitcode, indices, worker.node))
        if len(self._restarts) == 1:
            warn_user(
                f"{worker.death().rstrip()} It is replaced and its batches are loaded again; see "
                "loader.stats()['restarts']"
            )
        self._tell_begin(other, is_new=True)
        return other

    def _fail(self, message: str) -> RuntimeError:
        """End the epoch and all workers; return the error to raise, now and if more batches are requested."""
        self._failure = message
        self._pool.has_failed = True
        self.close()
        self._pool.close()
        return RuntimeError(message)

    def _finish(self) -> Exception:
        """Return what to raise when there are no more batches."""
        if self._failure is not None:
            return RuntimeError(self._failure)
        self.close()
        return StopIteration()

    def _note_late(self, wanted: list[W]) -> str:
        """Note that nothing came of some workers in time; return what to say.

        As in torch, the loop may request the same batch again.
        """
        self._pool.is_late = True
        where = "\n".join(worker.where() for worker in wanted)
        return f"DataLoader timed out after {self._spec.timeout} seconds; {where}"

    def wake(self) -> None:
        """Let a thread that waits for a batch look again whether the epoch goes on."""
        self._pool.wake()

    def close(self) -> None:
        """End the epoch early; its workers end, unless they persist."""
        self._is_closed = True
        # (Once the interpreter has begun to exit, finalizers do nothing when they are called.)
        if (ending := self._close.detach()) is not None:
            _, end, arguments, _ = ending
            end(*arguments)
        self.wake()
        with self._turn.lock:
            self._forget_jobs()


def _end(pool: WorkerPool[Any], first: int, owned: bool, skips: bool) -> None:
    if owned:
        pool.close()
    elif not pool.closed and pool.first == first:
        for worker in pool.workers:
            worker.leave_jobs(pool.next_number, skip=skips)


def _take_batch(result: Result, lane: Any, number: int, pin_device: str | None) -> Any:
    """Return the batch of a result.

    Args:
        result: what a worker has sent.
        lane: the native lane of the loop, which records the time that page-locking takes.
        number: the batch's in the epoch.
        pin_device: the device for which it is copied to page-locked memory; None: it is not.
    """
    if pin_device is None:
        return result.batch()
    with _native.Work(lane, number), _native.Measure(Stage.batch, 0):
        return pinned(result.batch(), pin_device)
