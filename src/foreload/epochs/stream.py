"""Epochs over an iterable dataset, read by the calling thread or by threads that take turns."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from foreload import _native
from foreload.batch.buffers import Buffers
from foreload.batch.context import LoopContext
from foreload.batch.failure import stop_error
from foreload.batch.generators.stream import StreamGenerators
from foreload.batch.generators.threads import seed_own_generators, with_own_generators
from foreload.batch.spec import BatchSpec
from foreload.batch.stream import StreamBatches
from foreload.batch.worker_progress import BEGUN, WorkerProgress, is_due
from foreload.cache.serialize import copied_as_sent, copied_exactly
from foreload.epochs.base import Epoch, EpochSpec
from foreload.epochs.progress import warn_of_length
from foreload.record.spans import Lane, Spans
from foreload.threads import SIGNAL_SECONDS, join
from foreload.workers.worker_info import WorkerIdentity

__all__ = ["StreamEpoch"]


class _End:
    """The last item of a worker: its stream is over, or has failed for good."""

    def __init__(self, error: BaseException | None = None, state: Any = None) -> None:
        self.error = error
        self.state = state


class _WorkerTask(NamedTuple):
    """One worker's part of an iterable dataset."""

    worker: int
    num_workers: int
    spec: BatchSpec
    dataset: Any
    identity: WorkerIdentity
    buffers: Buffers
    lane: Lane
    key: tuple[int, int]  # of its random numbers
    again: bool
    snapshots: int
    sends: bool  # whether torch's workers would have sent batches, as there was a number of workers


class _Worker:
    """A thread that reads one stream at most ``ahead`` batches ahead.

    Args:
        task: its part of the dataset.
        ahead: the number of batches.
        progress: how far the stream was read before.
    """

    def __init__(self, task: _WorkerTask, ahead: int, progress: WorkerProgress) -> None:
        self.number = task.worker
        self.lane = task.lane
        self.batches: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.permits = threading.Semaphore(ahead)
        self.is_lent = False  # whether the loop has a batch that the stream may fill again
        self.returned = threading.Semaphore(0)  # once for each of these that the loop has done with
        self._stopped = False
        self.is_open = threading.Event()
        self.state: Any = None  # of the stream when the epoch begins
        self.thread = threading.Thread(
            target=LoopContext().run,
            args=(with_own_generators, self._work, task, progress),
            name=f"foreload-stream-{task.worker}",
            daemon=True,
        )
        self.thread.start()

    def _work(self, task: _WorkerTask, progress: WorkerProgress) -> None:
        try:
            task.identity.assume(task.worker, task.dataset)
            key = partial(seed_own_generators, task.key, task.worker)
            key()
            batches = StreamBatches(task.spec, task.dataset, task.buffers, progress, again=task.again, key=key)
            self.state = batches.state()
        except BaseException as error:
            self.batches.put(_End(error))
            return
        finally:
            self.is_open.set()
        made = 0
        while True:
            self.permits.acquire()
            if self._stopped:
                return
            batch, failure, is_lent = None, None, False
            try:
                with _native.Work(self.lane.native, made * task.num_workers + task.worker):
                    batch = next(batches)
                    if batches.may_change:  # before the loop gets it
                        batch, is_lent = (copied_as_sent if task.sends else copied_exactly)(batch)
            except StopIteration:
                self.batches.put(_End(state=batches.state()))
                return
            except BaseException as error:
                error.add_note(f"foreload: in the iterable dataset, worker {task.worker}")
                failure = error
            made += 1
            state = batches.state() if is_due(made, task.num_workers, task.snapshots) else None
            self.batches.put((is_lent, batch, batches.samples if failure is None else 0, failure, state))
            del batch, failure
            if is_lent:
                self.returned.acquire()

    def stop(self) -> None:
        self._stopped = True
        self.permits.release()
        self.returned.release()


class _Unheard:
    """Workers whose stream may have a state when the epoch begins, which has not been noted yet.

    Args:
        workers: the workers.
        streams: the cursor's, in which the states are noted.
        numbers: the workers' numbers, for the cursor.
    """

    def __init__(self, workers: list[_Worker], streams: dict[int, WorkerProgress], numbers: set[int]) -> None:
        self.workers = list(workers)
        self._streams = streams
        self._numbers = numbers
        self._lock = threading.RLock()  # a collection of garbage may close an epoch anywhere
        numbers |= {worker.number for worker in workers}

    def hear(self, seconds: float | None) -> bool:
        """Note the states that are told within this time for each; return whether all were."""
        for worker in list(self.workers):
            if not worker.is_open.wait(seconds):  # without the lock, which closing needs
                return False
            with self._lock:
                if worker not in self.workers:
                    continue  # another thread has heard it
                if worker.state is not None and "dataset" in worker.state:
                    self._streams[worker.number] = WorkerProgress(0, worker.state)
                self._numbers.discard(worker.number)
                self.workers.remove(worker)
        return True


class StreamEpoch(Epoch):
    """Reads an iterable dataset in the calling thread, or in threads that take turns, as torch's workers do.

    Args:
        spec: the loader as the epoch sees it.
        buffers: the memory of batches.
        copies: the dataset of each thread; none: the calling thread reads.
        identity: sets ``get_worker_info()`` in each thread, by which the dataset knows which part to yield.
        spans: where the threads record spans.
    """

    def __init__(
        self,
        spec: EpochSpec,
        buffers: Buffers,
        copies: Sequence[Any] = (),
        identity: WorkerIdentity | None = None,
        spans: Spans | None = None,
    ) -> None:
        self._readers: list[_Worker] = []  # which wake() needs
        super().__init__(spec)
        self._mark_delivered = spec.cursor.mark_come
        streams = spec.cursor.streams
        self._num_delivered = 0
        self._inline: StreamBatches | None = None
        self._unheard = _Unheard([], spec.cursor.streams, spec.cursor.unheard)
        self._count, self._process = len(copies), os.getpid()
        self._spans = spans
        self._place = 0
        # With a seed, the stream draws apart from the loop; otherwise from its generators, as in torch.
        apart = StreamGenerators(spec.cursor.key) if spec.cursor.is_seeded else None
        self._drawing = nullcontext if apart is None else apart.active
        if identity is None or spans is None:
            self._inline = self._opened_here(buffers, None if apart is None else apart.key)
            if self._inline.is_stateful:
                spec.cursor.live, spec.cursor.moving = partial(_live, self._inline, self._drawing), self._turn
        else:
            ahead = max(1, spec.prefetch_factor or 1)
            self._watch.depth = ahead * self._count
            again, every = spec.cursor.again, spec.snapshot_every
            workers = [
                _Worker(
                    _WorkerTask(
                        worker,
                        self._count,
                        spec.batches,
                        own,
                        identity,
                        buffers,
                        lane,
                        spec.cursor.key,
                        again,
                        every,
                        spec.draws_at_once,
                    ),
                    ahead,
                    streams.get(worker, BEGUN),
                )
                for worker, (own, lane) in enumerate(zip(copies, spans.take("thread", self._count), strict=True))
            ]
            self._unheard = _Unheard(workers, spec.cursor.streams, spec.cursor.unheard)
            spec.cursor.settle = weakref.WeakMethod(self._hear)
            self._readers = workers[spec.cursor.turn :] + workers[: spec.cursor.turn]
        self._is_late = threading.Event()  # the loop has waited in vain, so threads may be stuck
        self._close = weakref.finalize(
            self, _stop, list(self._readers), self._process, spans, self._is_late, self._unheard
        )

    def _opened_here(self, buffers: Buffers, key: Callable[[], None] | None) -> StreamBatches:
        spec, cursor = self._spec, self._spec.cursor
        progress, again = cursor.streams.get(0, BEGUN), cursor.again
        with self._drawing():
            return cursor.restore(
                lambda: StreamBatches(
                    spec.batches, spec.dataset, buffers, progress, again=again, asks_again=True, key=key
                )
            )

    def _hear(self) -> None:
        """Note the state of each thread's stream at the beginning of the epoch."""
        if self._process == os.getpid() and not self._unheard.hear(self._spec.timeout):
            raise self._note_late()

    def _note_late(self) -> RuntimeError:
        self._is_late.set()
        return RuntimeError(f"DataLoader timed out after {self._spec.timeout} seconds")

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        if self._unheard.workers:
            self._hear()
        if self._inline is None:
            worker, batch, samples, error, state = self._from_worker()
        else:
            worker, batch, error, state = 0, None, None, None
            try:
                with self._drawing(), _native.Work(self._lane, self._num_delivered):
                    batch = next(self._inline)
            except StopIteration:
                raise
            except Exception as failure:
                error = failure
            samples = self._inline.samples
        turn = self._readers[self._place % len(self._readers)].number if self._readers else 0
        self._cursor.expect(self._num_delivered, worker, state, turn)
        self._num_delivered += 1

        def take() -> Any:
            if error is not None:
                raise error
            warn_of_length(self._spec.dataset, self._spec.expected_length, self._num_delivered, self._count)
            return batch

        return self._num_delivered - 1, samples, take

    def _from_worker(self) -> tuple[int, Any, int, BaseException | None, Any]:
        while self._readers:
            if self._process != os.getpid():
                raise RuntimeError(
                    "this epoch was begun before a fork, and its threads belong to the parent; begin another epoch"
                )
            if not self._close.alive:  # the interpreter exits, or another thread has closed the epoch
                self._check_open()
                raise RuntimeError("this epoch's threads have ended; begin another epoch")
            worker = self._readers[self._place % len(self._readers)]
            if worker.is_lent:  # the loop asks for the next one
                worker.is_lent = False
                worker.returned.release()
            try:
                item = worker.batches.get(timeout=self._spec.timeout or SIGNAL_SECONDS)
            except queue.Empty:
                if not self._spec.timeout:
                    continue
                raise self._note_late() from None  # as in torch, the loop may request the same batch again
            self._check_open()
            if item is None:
                continue
            self._is_late.clear()
            if isinstance(item, _End):
                position = self._readers.index(worker)
                self._readers.pop(position)
                self._place = position
                if isinstance(item.error, StopIteration):
                    raise stop_error(item.error) from item.error
                if item.error is not None:
                    raise item.error
                self._cursor.mark_end(worker.number, item.state)
                continue
            worker.permits.release()
            worker.is_lent, *rest = item
            self._place = self._readers.index(worker) + 1
            return worker.number, *rest
        self.close()
        raise StopIteration

    def wake(self) -> None:
        """Let a thread that waits for a batch look again whether the epoch goes on."""
        for worker in list(self._readers):
            worker.batches.put(None)

    def close(self) -> None:
        """End the epoch early; its threads end."""
        self._is_closed = True
        self.wake()
        self._close()
        with self._turn.lock:
            self._readers = []


def _live(batches: StreamBatches, drawing: Callable[[], AbstractContextManager[None]]) -> Any:
    # (The state may be that of a generator too.)
    with drawing():
        return batches.state()


def _stop(
    workers: list[_Worker],
    process: int,
    spans: Spans | None,
    is_late: threading.Event,
    unheard: _Unheard,
) -> None:
    if process != os.getpid():
        return  # after a fork, there are no threads, and locks that they held stay locked
    for worker in workers:
        worker.stop()
    join([worker.thread for worker in workers], is_late=is_late.is_set())
    unheard.hear(0)  # the loader may save the state of the epoch, though it was closed early
    if spans is not None:
        spans.give_back(worker.lane for worker in workers if not worker.thread.is_alive())
