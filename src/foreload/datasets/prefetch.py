"""A wrapper of any dataset whose threads load the next samples ahead."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from foreload.batch.assembly import note_sample
from foreload.batch.thread_generators import keyed_generators, run_keyed, with_own_generators
from foreload.checks import Indices, check_int
from foreload.machine import join
from foreload.order.index import position_of
from foreload.protocol import EpochListener

__all__ = ["AsyncPrefetchDataset"]

# Parallel workers ask nearly in the expected order: how far ahead in it to look for a request.
_NEAR = 1 << 14

# The expected order is given up after this many queue lengths of unexpected requests in a row.
_SURPRISES = 4


class AsyncPrefetchDataset(Dataset[Any], EpochListener):
    """A map-style dataset whose next samples are loaded ahead by threads.

    The order is that of the epoch in foreload's DataLoader, or what :meth:`ahead` was told; in a stock DataLoader
    it is the rest of the batch that is being loaded, and where indices go up or down by equal steps, the ones that
    follow. An unexpected sample is loaded when it is asked for.

    Useful where loading waits for something (a disk, a network, a decoder that lets go of the interpreter's lock)
    and nothing else loads ahead. The dataset must be safe to call from several threads. Each process has threads
    of its own, started when they are first needed; they end with this object. Copies and pickles start empty.

    Args:
        dataset: the dataset to wrap. Its attributes are found here too.
        queue_size: the most samples that are loaded, or being loaded, before they are asked for.
        num_workers: how many threads.
        direct_io: True: set the dataset's ``direct_io``, so that it reads past the page cache.

    Raises:
        TypeError: ``dataset`` is not map-style, or an argument is of another type.
        ValueError: an argument is invalid, or ``direct_io`` is asked of a dataset without it.

    An exception in the dataset is raised when its sample is asked for.

    >>> squares = AsyncPrefetchDataset([i * i for i in range(5)], queue_size=2)
    >>> [squares[i] for i in range(5)]
    [0, 1, 4, 9, 16]
    """

    def __init__(
        self, dataset: Any, queue_size: int = 10, num_workers: int = 2, *, direct_io: bool = False
    ) -> None:
        is_map = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if isinstance(dataset, IterableDataset) or not is_map:
            raise TypeError(
                f"dataset must be map-style, with __getitem__ and __len__; {type(dataset).__name__} is not"
            )
        self.dataset = dataset
        self.queue_size = check_int("queue_size", queue_size, 1)
        self.num_workers = check_int("num_workers", num_workers, 1)
        if direct_io:
            if not hasattr(dataset, "direct_io"):
                raise ValueError(
                    f"direct_io=True: {type(dataset).__name__} has no attribute 'direct_io'; wrap a dataset that "
                    "reads files itself and has one, or leave direct_io=False"
                )
            dataset.direct_io = True
        self._reader = self._begin()

    def _begin(self) -> _Reader:
        reader = _Reader(self.dataset, self.queue_size, self.num_workers)
        weakref.finalize(self, reader.close)
        return reader

    def _here(self) -> _Reader:
        if self._reader.process != os.getpid():
            self._reader = (
                self._begin()
            )  # in a fork: its threads, and the locks that they hold, belong to the parent
        return self._reader

    def ahead(self, indices: Iterable[int]) -> None:
        """Set the order in which samples will be asked for; it replaces an earlier one.

        Nothing is loaded before the first of it is asked for.
        """
        if not isinstance(indices, (np.ndarray, Sequence)):
            indices = list(indices)
        self._here().look_ahead(np.asarray(indices, np.int64))

    def close(self) -> None:
        """End the threads, and drop what they have loaded; the next request starts them again."""
        reader, self._reader = self._reader, self._begin()
        reader.close()

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        """Return a sample, loaded ahead or now."""
        position = position_of(index)
        return self.dataset[index] if position is None else self._here().get(position)

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Return the samples of a batch, loaded in parallel."""
        positions = [position for index in indices if (position := position_of(index)) is not None]
        if len(positions) < len(indices):
            return [self[index] for index in indices]
        return self._here().get_batch(positions)

    def epoch_begins(self, order: Indices | None, key: tuple[int, int]) -> None:
        """Load ahead in the order of the epoch that a foreload DataLoader begins, if it is known."""
        self._here().key = key
        if order is not None:
            self.ahead(order)

    def __getattr__(self, name: str) -> Any:
        """Return the dataset's own attribute."""
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without threads and loaded samples."""
        return {name: value for name, value in self.__dict__.items() if name != "_reader"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start with nothing loaded."""
        self.__dict__.update(state)
        self._reader = self._begin()


class _Task(Future[Any]):
    """A sample to load, with random numbers of its own.

    Args:
        dataset: its dataset.
        index: its index.
        key: (seed, epoch) of the random numbers.
        number: which sample of the epoch the random numbers are for.
    """

    def __init__(self, dataset: Any, index: int, key: tuple[int, int], number: int) -> None:
        super().__init__()
        self._dataset = dataset
        self._index = index
        self._key = key
        self._number = number

    def load(self) -> Any:
        """Load it in the calling thread."""
        return run_keyed(self._key, self._load)

    def load_in_own_thread(self) -> Any:
        """Load it in a thread that has generators of its own."""
        return keyed_generators(self._key).run(self._load)

    def _load(self, key: Callable[[Any], None]) -> Any:
        key(self._number)
        return self._dataset[self._index]


class _Reader:
    """The threads of one process, and the samples that they have loaded."""

    def __init__(self, dataset: Any, most: int, threads: int) -> None:
        self.process = os.getpid()
        self._dataset = dataset
        self._most = most
        self._count = threads
        self._threads: list[threading.Thread] = []
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        # Reentrant: the garbage collector may close a reader anywhere, also while this is held.
        self._lock = threading.RLock()
        self._loaded: dict[int, _Task] = {}
        self.key: tuple[int, int] | None = None  # of the epoch's random numbers, in foreload's DataLoader
        self._num_tasks = 0
        self._guess()

    def _guess(self) -> None:
        """Forget the order, and follow equal steps."""
        self._told = False
        self._follow(range(0))
        self._last: int | None = None
        self._step = 0

    def _follow(self, order: Any) -> None:
        for task in self._loaded.values():
            task.cancel()
        self._loaded.clear()
        self._order = order
        self._at = 0  # the next position of the order to load ahead
        self._taken: set[int] = set()  # later positions whose samples were loaded on request
        self._begun = False
        self._surprises = 0

    def look_ahead(self, order: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Set the order of requests."""
        with self._lock:
            self._told = True
            self._follow(order)

    def get(self, index: int) -> Any:
        """Return a sample, loaded ahead or now."""
        with self._lock:
            task = self._loaded.pop(index, None)
            if self._told:
                self._compare(index, is_there=task is not None)
            if not self._told:
                self._follow_steps(index)
            self._load_ahead()
        return self._result(task, index)

    def get_batch(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples, loaded in parallel."""
        steps = set(np.diff(indices).tolist())
        if self._told or len(steps) <= 1:
            return [self.get(index) for index in indices]
        samples: list[Any] = []
        ahead: deque[_Task] = deque()
        try:
            for place, index in enumerate(indices):
                with self._lock:
                    for later in indices[place + len(ahead) : place + self._most]:
                        ahead.append(self._submit(later))
                samples.append(self._result(ahead.popleft(), index))
        except Exception as error:
            note_sample(error, indices[len(samples)], len(samples))
            raise
        finally:
            for task in ahead:
                task.cancel()
        return samples

    def _result(self, task: _Task | None, index: int) -> Any:
        # A task that no thread has begun is done sooner here.
        if task is None:
            return self._task(index).load()
        if task.cancel():
            return task.load()
        try:
            return task.result()
        finally:
            del task  # an exception's traceback holds this frame

    def _task(self, index: int) -> _Task:
        self._num_tasks += 1
        if self.key is None:
            # No epoch is known, in which each sample is loaded once: each task draws other numbers.
            return _Task(self._dataset, index, (torch.initial_seed(), 0), self._num_tasks)
        return _Task(self._dataset, index, self.key, index)

    def _compare(self, index: int, *, is_there: bool) -> None:
        """Compare a request with the expected order."""
        if is_there:
            self._surprises = 0
            return
        begin, end = (self._at, self._at + _NEAR) if self._begun else (0, None)
        places = (begin + np.flatnonzero(self._order[begin:end] == index)).tolist()
        place = next((place for place in places if place not in self._taken), None)
        if place is not None and not self._begun:
            self._at, self._begun = place + 1, True
            return
        if place is not None:
            self._taken.add(place)
        if place is None or len(self._loaded) >= self._most:
            self._surprises += 1
        is_over = self._at >= len(self._order) and not self._loaded
        if not self._begun or is_over or self._surprises > _SURPRISES * self._most:
            self._guess()

    def _follow_steps(self, index: int) -> None:
        """Follow the last two steps if they were equal."""
        size, last = len(self._dataset), self._last
        self._last = index
        # Most unknown orders go from one end to the other.
        begins = last is None or (index == 0 and last == size - 1)
        step = 1 if begins or last is None else index - last
        goes_on = begins or step == self._step
        follows = len(self._order) > 0
        self._step = step
        if follows and (begins or not goes_on):
            self._follow(range(0))
        if goes_on and step != 0 and (begins or not follows):
            self._follow(range(index + step, size if step > 0 else -1, step))

    def _load_ahead(self) -> None:
        while len(self._loaded) < self._most and self._at < len(self._order):
            if self._at in self._taken:
                self._taken.discard(self._at)
                self._at += 1
                continue
            index = int(self._order[self._at])
            if index in self._loaded:
                return  # it comes twice in the order, and was not asked for the first time yet
            self._at += 1
            self._loaded[index] = self._submit(index)

    def _submit(self, index: int) -> _Task:
        if len(self._threads) < self._count:
            thread = threading.Thread(
                target=with_own_generators,
                args=(_work, self._tasks),
                name=f"foreload-prefetch-{len(self._threads)}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()
        task = self._task(index)
        self._tasks.put(task)
        return task

    def close(self) -> None:
        """End the threads, after their current samples."""
        if self.process != os.getpid():
            return
        with self._lock:
            self._guess()
            threads, self._threads = self._threads, []
            for _ in threads:
                self._tasks.put(None)
        join(threads)


def _work(tasks: queue.SimpleQueue[_Task | None]) -> None:
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
