"""One pass over an iterable dataset: its items in their own order, batch by batch."""

from __future__ import annotations

import copy
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from foreload import _native
from foreload.batch.buffers import Buffers
from foreload.batch.spec import BatchSpec
from foreload.batch.stream import StreamBatches
from foreload.epochs.base import Epoch, warn_of_length
from foreload.epochs.cursor import Order
from foreload.machine import join
from foreload.record.spans import Lane, Spans
from foreload.workers.worker_info import WorkerIdentity

if TYPE_CHECKING:
    from foreload.loader import DataLoader


__all__ = ["StreamEpoch", "own_copy"]


class _End:
    """What a worker says when its stream is over, or broken for good."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Worker:
    """A thread that reads one stream at most ``ahead`` batches ahead."""

    def __init__(
        self,
        worker: int,
        spec: BatchSpec,
        count: int,
        dataset: Any,
        identity: WorkerIdentity,
        buffers: Buffers,
        ahead: int,
        begin: tuple[int, Any],
        lane: Lane,
    ):
        self.number = worker
        self.lane = lane
        self.batches: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.permits = threading.Semaphore(ahead)
        self._stopped = False
        self.thread = threading.Thread(
            target=self._work,
            args=(worker, spec, count, dataset, identity, buffers, begin),
            name=f"foreload-stream-{worker}",
            daemon=True,
        )
        self.thread.start()

    def _work(
        self,
        worker: int,
        spec: BatchSpec,
        count: int,
        dataset: Any,
        identity: WorkerIdentity,
        buffers: Buffers,
        begin: tuple[int, Any],
    ) -> None:
        try:
            identity.assume(worker, dataset)
            batches = StreamBatches(spec, dataset, buffers, *begin)
        except BaseException as error:
            self.batches.put(_End(error))
            return
        made = 0
        while True:
            self.permits.acquire()
            if self._stopped:
                return
            try:
                with _native.Work(self.lane.native, made * count + worker):
                    batch = next(batches)
                made += 1
                self.batches.put((batch, batches.samples, None, batches.state()))
                del batch
            except StopIteration:
                self.batches.put(_End())
                return
            except BaseException as error:
                error.add_note(f"foreload: in the iterable dataset, worker {worker}")
                self.batches.put((None, 0, error, batches.state()))

    def stop(self) -> None:
        self._stopped = True
        self.permits.release()


class StreamEpoch(Epoch):
    """Reads an iterable dataset in the calling thread, or in threads that take turns, as torch's workers do.

    Each worker iterates over a copy of the dataset of its own; ``get_worker_info()`` tells it which
    part is its own.
    """

    def __init__(self, loader: DataLoader[Any], spec: BatchSpec, order: Order, buffers: Buffers) -> None:
        super().__init__(order)
        self._dataset = loader.dataset
        self._expected = loader._IterableDataset_len_called
        self._given = 0
        self._timeout = loader.timeout or None
        self._inline: StreamBatches | None = None
        self._workers: list[_Worker] = []
        self._count = loader.num_workers
        self._process = os.getpid()
        self._spans = loader.spans
        self._turn = 0
        if self._count == 0:
            self._inline = StreamBatches(spec, loader.dataset, buffers, *order.streams.get(0, (0, None)))
        else:
            identity = WorkerIdentity(self._count, order.base_seed, loader.dataset, loader.worker_init_fn)
            ahead = max(1, loader.prefetch_factor or 1)
            begins = [order.streams.get(worker, (0, None)) for worker in range(self._count)]
            # As in worker processes: what a worker does to its dataset stays its own. A reader that nobody asked
            # for does what torch does without workers: the dataset keeps what it learns from epoch to epoch.
            copies = loader._copies or [
                loader.dataset if loader._auto_workers else own_copy(loader.dataset) for _ in begins
            ]
            if loader.persistent_workers:
                loader._copies = copies
            self._watch.depth = ahead * self._count
            lanes = loader.spans.take("thread", self._count)
            workers = [
                _Worker(worker, spec, self._count, own, identity, buffers, ahead, begin, lane)
                for worker, (own, begin, lane) in enumerate(zip(copies, begins, lanes, strict=True))
            ]
            self._workers = workers[order.turn :] + workers[: order.turn]
        self._close = weakref.finalize(self, _stop, list(self._workers), self._process, self._spans)

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        if self._inline is None:
            worker, batch, samples, error, state = self._from_worker()
        else:
            worker, batch, error = 0, None, None
            try:
                with _native.Work(self._lane, self._given):
                    batch = next(self._inline)
            except StopIteration:
                raise
            except BaseException as failure:
                error = failure
            state, samples = self._inline.state(), self._inline.samples
        self._order.streams[worker] = (self._order.streams.get(worker, (0, None))[0] + 1, state)
        self._given += 1

        def take() -> Any:
            if error is not None:
                raise error
            warn_of_length(self._dataset, self._expected, self._given, self._count)
            return batch

        return self._given - 1, samples, take

    def _from_worker(self) -> tuple[int, Any, int, BaseException | None, Any]:
        while self._workers:
            if self._process != os.getpid():
                raise RuntimeError(
                    "this epoch was begun before a fork, and its threads stayed there; begin another"
                )
            worker = self._workers[self._turn % len(self._workers)]
            try:
                item = worker.batches.get(timeout=self._timeout)
            except queue.Empty:
                self._close.detach()
                _stop(self._workers, self._process, self._spans, wait=False)
                self._workers = []
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
            if isinstance(item, _End):
                position = self._workers.index(worker)
                self._workers.pop(position)
                self._turn = position
                if item.error is not None:
                    raise item.error
                continue
            worker.permits.release()
            self._turn = self._workers.index(worker) + 1
            self._order.turn = self._workers[self._turn % len(self._workers)].number
            return worker.number, *item
        self.close()
        raise StopIteration

    def close(self) -> None:
        """End the epoch early; its threads end."""
        self._workers = []
        self._close()


def _stop(workers: list[_Worker], process: int, spans: Spans, *, wait: bool = True) -> None:
    if process != os.getpid():
        return  # after a fork; the threads, and whatever they have locked, stayed behind
    for worker in workers:
        worker.stop()
    if wait:
        join([worker.thread for worker in workers])
    spans.give_back(worker.lane for worker in workers if not worker.thread.is_alive())


# Of a dataset's attribute: with more objects in it than this, it is shared and not copied for each thread.
_MOST_OBJECTS = 20_000


# Arrays, tensors and tables from this size on are shared.
_LARGE = 1 << 20


def own_copy(dataset: Any) -> Any:
    """Copy a dataset so that what a thread does to it (counters, generators, stages) stays its own.

    What is large, what worker processes would share too (tensors in shared memory), and what cannot be copied
    (locks, files, queues) is shared.

    >>> class Numbers:
    ...     def __init__(self):
    ...         self.stage = {"epoch": 0}
    >>> numbers = Numbers()
    >>> own_copy(numbers).stage["epoch"] = 1
    >>> numbers.stage
    {'epoch': 0}
    """
    own = copy.copy(dataset)
    if not hasattr(own, "__dict__"):
        return own
    # A __setstate__ may have taken over the very dict that __getstate__ gave.
    known = own.__dict__ = dict(own.__dict__)
    copies: dict[int, Any] = {id(dataset): own}
    for name, value in known.items():
        shared = _shared(value, set(copies))
        if shared is None:
            known[name] = copy.copy(value) if type(value) in (list, dict, set) else value
            continue
        trial = {**copies, **shared}
        try:
            known[name] = copy.deepcopy(value, trial)
        except Exception:  # whatever a class says that is not made for it; it is shared then
            continue
        copies = trial
    return own


def _shared(value: Any, seen: set[int]) -> dict[int, Any] | None:
    """Find what is to be shared of a value, by id; None where there is too much in it that was not seen before."""
    shared: dict[int, Any] = {}
    most = len(seen) + _MOST_OBJECTS
    left = [value]
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if _is_shared(part):
            shared[id(part)] = part
            continue
        inner: Any = part if isinstance(part, (list, tuple, set, frozenset)) else ()
        if isinstance(part, dict):
            inner = part.values()
        if len(seen) + len(left) + len(inner) > most:
            return None
        left += inner
        if not isinstance(part, type):
            left += getattr(part, "__dict__", {}).values()
    return shared


def _is_shared(part: Any) -> bool:
    if isinstance(part, torch.Tensor) and part.is_shared():  # type: ignore[no-untyped-call]
        return True
    try:
        return int(part.nbytes) >= _LARGE
    except Exception:  # no such attribute, or one that means something else
        return False
