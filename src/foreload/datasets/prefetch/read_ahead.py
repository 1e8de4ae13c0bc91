"""Threads that load the samples of a dataset ahead of requests, in the order in which they will be asked for."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from foreload.batch.assembly import note_sample
from foreload.batch.generators.keyed import loading
from foreload.batch.generators.threads import run_keyed
from foreload.datasets.prefetch.draws import Draws, Places, Request, Task
from foreload.datasets.prefetch.threads import LoadingThreads

__all__ = ["ReadAhead", "places"]

# Of the datasets of this process that load ahead.
places = Places()

# Parallel workers ask nearly in the expected order: how far ahead in it to look for a request.
_NEAR = 1 << 14

# The expected order is given up after this many queue lengths of unexpected requests in a row.
_SURPRISES = 4

# Samples that take less are loaded sooner than they are handed to a thread and back.
_SHORT_SECONDS = 5e-5

# So many samples tell whether they are short: if at most this share of them takes longer.
_SAMPLES_LOOKED_AT = 32
_LONG_SHARE = 0.1


class ReadAhead:
    """The threads of one process, and the samples that they have loaded.

    Args:
        owner: the threads end with it.
        dataset: its samples are loaded.
        most: samples that are loaded, or being loaded, before they are asked for.
        threads: how many.
        place: distinguishes its random numbers from those of others where there is no epoch.

    Attributes:
        process: the process that has the threads.
    """

    def __init__(self, owner: Any, dataset: Any, most: int, threads: int, place: int = 0) -> None:
        self._place = place
        self._dataset = dataset
        self._most = most
        self._threads = LoadingThreads(threads)
        self.process = self._threads.process
        # It holds what it calls, which must lead neither to the dataset nor to what is loaded: the owner may be a
        # part of these.
        self._end = weakref.finalize(owner, self._threads.end)
        # Reentrant: the garbage collector may close a reader anywhere, also while this is held.
        self._lock = threading.RLock()
        self._loaded: dict[int, Task] = {}
        self._epoch: tuple[int, int] | None = None  # the one whose order was told
        self._num_requests = 0
        self._num_loaded = self._num_long = 0  # samples since they were looked at last, and those that took long
        self._is_short = False  # whether samples are loaded sooner than they are handed to a thread
        self._guess()

    def _guess(self) -> None:
        """Forget the order, and follow equal steps."""
        self._told, self._epoch = False, None
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

    def look_ahead(self, order: np.ndarray[Any, np.dtype[np.int64]], epoch: tuple[int, int] | None = None) -> None:
        """Set the order of requests, in an epoch of foreload's DataLoader with this key if one is given."""
        with self._lock:
            self._told, self._epoch = True, epoch
            self._follow(order)

    def forget(self) -> None:
        """Drop what has been loaded ahead, and the order of requests."""
        with self._lock:
            self._guess()

    def get(self, index: int, *, is_part: bool) -> Any:
        """Return a sample, loaded ahead or now.

        Args:
            index: its index.
            is_part: whether this is for a dataset around it, of which it is a part.
        """
        return self._get(index, self._request(index, is_part=is_part))

    def _get(self, index: int, request: Request) -> Any:
        with self._lock:
            draws = self._draws(index, request)
            self._num_requests += 1
            if self._told and self._epoch is not None and self._epoch != loading.epoch:
                task = None  # of another loader's epoch
                self._note_surprise()
            else:
                task = self._take(index, request, draws)
        return self._result(Task(self._dataset, index, draws) if task is None else task)

    def _take(self, index: int, request: Request, draws: Draws) -> Task | None:
        """Return what is loaded ahead of a sample, and have the next ones loaded."""
        task = self._loaded.pop(index, None)
        if task is not None and task.draws != draws and (loading.epoch is not None or not self._told):
            task = None  # loaded for another request, with other random numbers
        if self._told:
            self._compare(index, is_there=task is not None)
        if not self._told:
            self._follow_steps(index)
        self._load_ahead(request)
        return task

    def get_batch(self, indices: Sequence[int], *, is_part: bool) -> list[Any]:
        """Return several samples, loaded in parallel; in the calling thread if that is sooner."""
        request = self._request(is_part=is_part)
        samples: list[Any] = []
        try:
            if self._told:
                samples.extend(self._get(index, request) for index in indices)
                return samples
            if self._is_short:
                self._load_short(indices, request, samples)
            rest = indices[len(samples) :]
            if len(set(np.diff(indices).tolist())) <= 1:
                samples.extend(self._get(index, request) for index in rest)
            else:
                self._load_together(rest, request, samples)
        except Exception as error:
            note_sample(error, indices[len(samples)], len(samples))
            raise
        self._num_loaded += len(samples)
        if self._num_loaded >= _SAMPLES_LOOKED_AT and not self._is_short:
            self._is_short = self._num_long <= _LONG_SHARE * self._num_loaded
            self._num_loaded = self._num_long = 0
            if self._is_short:
                with self._lock:
                    self._guess()  # what is loaded ahead will not be asked for
        return samples

    def _load_short(self, indices: Sequence[int], request: Request, samples: list[Any]) -> None:
        """Load samples in the calling thread until one takes long."""

        def load(key: Callable[[Any], None]) -> None:
            dataset, before = self._dataset, time.perf_counter()
            for index, draws in zip(indices, wanted, strict=True):
                key(draws.number)
                self._num_requests += 1
                loading.epoch = draws.epoch
                samples.append(dataset[index])
                now = time.perf_counter()
                if now - before > _SHORT_SECONDS:
                    self._is_short = False
                    self._num_loaded = self._num_long = 0
                    return
                before = now

        wanted = [self._draws(index, request, later) for later, index in enumerate(indices)]
        if wanted:
            run_keyed(wanted[0].key, load)

    def _load_together(self, indices: Sequence[int], request: Request, samples: list[Any]) -> None:
        """Load samples of no known order, the next ones in the threads."""
        ahead: deque[Task] = deque()
        try:
            for place in range(len(indices)):
                with self._lock:
                    for later in indices[place + len(ahead) : place + self._most]:
                        ahead.append(self._submit(later, self._draws(later, request, len(ahead))))
                self._num_requests += 1
                samples.append(self._result(ahead.popleft()))
        finally:
            for task in ahead:
                task.cancel()

    def _result(self, task: Task) -> Any:
        try:
            # A task that no thread has begun is done sooner here.
            return task.load() if task.cancel() else task.result()
        finally:
            self._num_long += task.seconds > _SHORT_SECONDS
            del task  # an exception's traceback holds this frame

    def _request(self, index: int | None = None, *, is_part: bool) -> Request:
        """Return what the random numbers of a new request follow from; None: for several samples."""
        places.begin()
        epoch, turn = loading.epoch, loading.turn
        if epoch is None or turn is None or not is_part:
            return Request(epoch, place=1 + self._place if is_part else 0)
        loading.turn = turn + 1
        return Request(epoch, turn, loading.sample, index)

    def _draws(self, index: int, request: Request, later: int = 0) -> Draws:
        """Return the key and number of the sample asked for, or of one that will be so many requests later.

        They do not depend on what is loaded ahead, so the random numbers are the same whichever thread loads the
        sample.
        """
        if request.epoch is not None:
            return Draws(request.epoch, request.number_of(index), request.epoch)
        # No epoch is known, in which each sample is loaded once: each request draws other numbers.
        seed, count = torch.initial_seed(), self._num_requests + later
        return Draws((seed, request.place), (count << 32) + index, (seed, count))

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
        is_over = self._at >= len(self._order) and not self._loaded
        if not self._begun or is_over:
            self._guess()
        elif place is None or len(self._loaded) >= self._most:
            self._note_surprise()

    def _note_surprise(self) -> None:
        self._surprises += 1
        if self._surprises > _SURPRISES * self._most:
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

    def _load_ahead(self, request: Request) -> None:
        while len(self._loaded) < self._most and self._at < len(self._order):
            if self._at in self._taken:
                self._taken.discard(self._at)
                self._at += 1
                continue
            index = int(self._order[self._at])
            if index in self._loaded:
                return  # it comes twice in the order, and was not asked for the first time yet
            self._at += 1
            self._loaded[index] = self._submit(index, self._draws(index, request, len(self._loaded)))

    def _submit(self, index: int, draws: Draws) -> Task:
        task = Task(self._dataset, index, draws)
        self._threads.submit(task)
        return task

    def close(self) -> None:
        """End the threads, after their current samples, and drop what they have loaded."""
        if self.process == os.getpid():
            with self._lock:
                self._guess()
            self._end()
