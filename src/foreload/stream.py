"""One pass over an iterable dataset: its items in their own order, batch by batch."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from foreload import _native
from foreload.datasets.mosaic import is_streaming
from foreload.epoch import Epoch
from foreload.errors import warn_user
from foreload.observe.spans import Lane, Spans, Stage
from foreload.stages.buffers import Buffers
from foreload.stages.collate import collate_into, is_default_collate, lending, pinned
from foreload.stages.failure import SampleError
from foreload.stages.resume import has_state
from foreload.state import Order
from foreload.workers.copies import own_copy
from foreload.workers.info import WorkerIdentity
from foreload.workers.threads import join

if TYPE_CHECKING:
    from foreload.loader import DataLoader
    from foreload.stages.assemble import Making

__all__ = ["StreamBatches", "StreamEpoch", "warn_of_length"]


class StreamBatches(Iterator[Any]):
    """The batches of one iterator over a dataset.

    Args:
        making: how batches are made.
        dataset: what is iterated.
        buffers: where batches are put.
        skip: so many batches were given before.
        state: of the dataset or its iterator after them, if one of them can tell it.

    Attributes:
        samples: of the batch given last.
    """

    def __init__(self, making: Making, dataset: Any, buffers: Buffers, skip: int = 0, state: Any = None) -> None:
        if state is not None and has_state(dataset):
            dataset.load_state_dict(state["state"])
            skip = 0
        self._items = iter(dataset)
        self._stateful = next((part for part in (self._items, dataset) if has_state(part)), None)
        self._counts = is_streaming(dataset)
        self._read = self.samples = 0
        if state is not None and has_state(self._items):
            self._items.load_state_dict(state["state"])
            skip = 0
        self._size = making.batch_size if making._auto_collation else None
        self._drop_last = making.drop_last
        collate = making.collate_fn
        self._collate = collate_into(buffers) if is_default_collate(collate) else collate
        self._buffers = buffers
        self._pin_device = making._pin_device
        self._on_error = making.on_error
        self._errors = making.errors
        self._ended = state is not None and state["ended"]
        for _ in range(skip):
            try:
                self._samples()
            except StopIteration:
                break
            except Exception:  # it was raised in the loop then, which went on
                continue

    def state(self) -> Any:
        """Give the state of the dataset or its iterator; None where they cannot tell it."""
        if self._counts:
            return {"samples": self._read}
        return None if self._stateful is None else {"state": self._stateful.state_dict(), "ended": self._ended}

    def __next__(self) -> Any:
        """Read the samples of a batch, and collate them."""
        with _native.Measure(Stage.sample, 0) as measure:
            samples = self._samples()
            self.samples = measure.samples = 1 if self._size is None else len(samples)
        with _native.Measure(Stage.batch, self.samples), lending(self._buffers):
            batch = self._collate(samples)
            return pinned(batch, self._pin_device)

    def _item(self) -> Any:
        while True:
            try:
                return next(self._items)
            except StopIteration:
                raise
            except Exception as error:
                if self._on_error == "raise":
                    raise
                self._errors.append(SampleError.of(None, error, "skip"))

    def _samples(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._size is None:
            item = self._item()
            self._read += 1
            return item
        # By next() alone: a dataset that is its own iterator may start over when asked for another.
        samples = []
        for _ in range(self._size):
            try:
                samples.append(self._item())
            except StopIteration:
                break
        self._read += len(samples)
        self._ended = len(samples) < self._size
        if not samples or (self._ended and self._drop_last):
            raise StopIteration
        return samples


class _End:
    """What a worker says when its stream is over, or broken for good."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Worker:
    """A thread that reads one stream at most ``ahead`` batches ahead."""

    def __init__(
        self,
        worker: int,
        loader: DataLoader[Any],
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
            args=(worker, loader, dataset, identity, buffers, begin),
            name=f"foreload-stream-{worker}",
            daemon=True,
        )
        self.thread.start()

    def _work(
        self,
        worker: int,
        loader: DataLoader[Any],
        dataset: Any,
        identity: WorkerIdentity,
        buffers: Buffers,
        begin: tuple[int, Any],
    ) -> None:
        try:
            identity.assume(worker, dataset)
            batches = StreamBatches(loader, dataset, buffers, *begin)
        except BaseException as error:
            self.batches.put(_End(error))
            return
        made = 0
        while True:
            self.permits.acquire()
            if self._stopped:
                return
            try:
                with _native.Work(self.lane.native, made * loader.num_workers + worker):
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

    def __init__(self, loader: DataLoader[Any], order: Order, buffers: Buffers) -> None:
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
            self._inline = StreamBatches(loader, loader.dataset, buffers, *order.streams.get(0, (0, None)))
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
                _Worker(worker, loader, own, identity, buffers, ahead, begin, lane)
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


def warn_of_length(dataset: Any, expected: int | None, given: int, workers: int) -> None:
    """Say it, as torch does, where a stream gives more than its length said."""
    if expected is not None and given > expected:
        warn_user(
            f"Length of IterableDataset {dataset} was reported to be {expected} (when accessing "
            f"len(dataloader)), but {given} samples have been fetched. "
            + ("Does each worker give its own part of the data only?" if workers else "")
        )


def _stop(workers: list[_Worker], process: int, spans: Spans, *, wait: bool = True) -> None:
    if process != os.getpid():
        return  # after a fork; the threads, and whatever they have locked, stayed behind
    for worker in workers:
        worker.stop()
    if wait:
        join([worker.thread for worker in workers])
    spans.give_back(worker.lane for worker in workers if not worker.thread.is_alive())
