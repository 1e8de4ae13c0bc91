"""The store of cached samples, in memory that all workers share."""

from __future__ import annotations

import multiprocessing.reduction
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np

from foreload import _native
from foreload.cache.serialize import deserialize, serialize
from foreload.cache.spill import SpillFolder, SpillTarget
from foreload.checks import Array
from foreload.errors import warn_user
from foreload.order.generator_states import generators_set_back

__all__ = ["SampleStore"]

# The least rank correlation between two measurements that makes them reliable.
_RELIABLE = 0.8


_Arguments = tuple[int, int, int, int, bool]


class SampleStore:
    """Samples by their index, shared by the threads and processes that load them.

    The store follows its plan at each request (see :mod:`foreload.cache.plan`), so a worker only calls
    :meth:`load`. A forked or spawned worker shares the memory; any other copy begins empty.

    Args:
        samples: the number of samples in the dataset.
        room: bytes.
        accesses: the length of the longest schedule to follow.
        most: the most samples to keep while there is no plan; 0: as many as fit.
        hashed: whether there is bookkeeping for those samples alone that are kept. No plan can be followed then,
            only a rule, and what other samples take and cost is not known.

    Attributes:
        uncacheable: the samples that this process could not pickle, or unpickle.

    >>> store = SampleStore(3, 1 << 20)
    >>> store.load(1, lambda index: [index]), store.load(1, None)
    ([1], [1])
    """

    def __init__(self, samples: int, room: int, *, accesses: int = 0, most: int = 0, hashed: bool = False) -> None:
        self.arguments = (samples, room, accesses, most, hashed)
        self._has_warned = False
        self.spill: SpillTarget | None = None
        self._folder: SpillFolder | None = None
        self._ahead: dict[int, Any] = {}
        self.uncacheable: set[int] = set()
        self.native = _native.Store(samples, room, accesses, most, hashed)
        if self.native.file < 0:
            warn_user(
                "the system has no memory that processes can share (memfd_create fails), so the cache is in "
                "private memory: threads share it, worker processes have a copy each"
            )

    def spill_to(self, folder: SpillFolder) -> None:
        """Use a folder for samples that do not fit into memory, beginning with those in it."""
        self._folder = folder  # holds its lock
        self.spill = folder.target
        self.native.spill_to(self.spill.descriptor, self.spill.key, True)

    def leave_spill(self) -> None:
        """Let go of the folder, so that another store may use it."""
        self.spill = self._folder = None

    def __len__(self) -> int:
        """Return the number of samples in the dataset."""
        return len(self.native)

    def load(self, index: int, read: Callable[[int], Any]) -> Any:
        """Return the sample, from memory or by ``read(index)``; it is then kept if the plan says so."""
        if self._ahead:
            read = self._reader(read)
        found = self.native.request(index)
        if isinstance(found, np.ndarray):
            try:
                return deserialize(found)
            except Exception as error:  # unpickling a class may raise anything
                self._mark_uncacheable(index, f"comes back as {error!r}")
                return read(index)
        started = time.perf_counter_ns()
        try:
            sample = read(index) if self.spill is None else self._load_spilled(index, read)
        except BaseException:
            if found is True:
                self.native.abandon(index)
            raise
        self._loaded(index, sample, time.perf_counter_ns() - started, claimed=found is True)
        return sample

    def _loaded(self, index: int, sample: Any, nanoseconds: int, *, claimed: bool) -> None:
        """Keep a sample that was loaded if its place was claimed; record its cost in any case."""
        if claimed:
            self.keep(index, sample, nanoseconds)
        elif not self.native.is_measured(index):
            self.measure(index, sample, nanoseconds)

    def _reader(self, read: Callable[[int], Any]) -> Callable[[int], Any]:
        missing = object()

        def first(index: int) -> Any:
            sample = self._ahead.pop(index, missing)
            return read(index) if sample is missing else sample

        return first

    def _reader_of_many(self, read: Callable[[list[int]], Any]) -> Callable[[list[int]], Any]:
        missing = object()

        def first(indices: list[int]) -> list[Any]:
            kept = {index: self._ahead.pop(index, missing) for index in indices}
            found = {index: sample for index, sample in kept.items() if sample is not missing}
            others = [index for index in indices if index not in found]
            found |= dict(zip(others, read(others), strict=True)) if others else {}
            return [found[index] for index in indices]

        return first

    def _load_spilled(self, index: int, read: Callable[[int], Any]) -> Any:
        kept = self.native.spilled(index)
        if kept is None:
            sample = read(index)
            with suppress(Exception):
                self._spill(index, serialize(sample))
            return sample
        if not self.native.needs_check(index):
            try:
                return deserialize(kept)
            except Exception as error:  # as in load
                self._mark_uncacheable(index, f"comes back from the spill folder as {error!r}")
                return read(index)
        # A folder of an earlier run: the dataset may have changed in a way that its fingerprint does not show.
        sample = read(index)
        with suppress(Exception):
            is_same = bool(np.array_equal(np.concatenate(serialize(sample)), kept))
            self.native.note_check(index, is_same)
        self.warn_of_spill()
        return sample

    def warn_of_spill(self) -> None:
        """Warn once if a sample in the spill folder is not what the dataset gives, so that it is not used."""
        wrong = -1 if self.spill is None else self.native.spill_wrong()
        if self.spill is None or wrong < 0:
            return
        self._warn_once(
            f"sample {wrong} in the spill folder {self.spill.path!r} is not what the dataset gives now; the "
            "folder is not used. If the dataset is random, give what is random to DataLoader(transform=...); if "
            "it has changed, empty the folder"
        )
        self.spill = None

    def _spill(self, index: int, parts: list[Array]) -> None:
        failure = self.native.spill(index, parts)
        if failure and self.spill is not None:
            self._warn_once(
                f"nothing more is written to the spill folder {self.spill.path!r}: {os.strerror(failure)}; "
                "samples that are neither in it nor in memory are loaded each time"
            )

    def load_ahead(self, index: int, read: Callable[[int], Any]) -> int:
        """Load a sample ahead of its request, and return the bytes that keeping it would take.

        One that draws random numbers is loaded again when it is requested, so that it draws those of its turn.
        """
        with generators_set_back() as have_drawn:
            sample, is_random = read(index), have_drawn()
        self._ahead |= {} if is_random else {index: sample}
        return block_size(sum(map(len, serialize(sample))))

    def load_many(self, indices: Iterable[int], read: Callable[[list[int]], Any]) -> list[Any]:
        """Return several samples; those that are not cached are read by one call of ``read(indices)``."""
        indices = list(indices)
        if self.spill is not None:
            return self._load_each(indices, read)
        if self._ahead:
            read = self._reader_of_many(read)
        samples: list[Any] = [None] * len(indices)
        missing: dict[int, int] = {}  # index to position
        later: list[int] = []
        claimed: set[int] = set()
        try:
            for position, index in enumerate(indices):
                # A worker that has claimed a sample must not wait for others: they may be waiting for that sample.
                found = False if index in missing else self.native.request(index, wait=not claimed)
                if found is False:
                    later.append(position)
                elif found is None or found is True:
                    missing[index] = position
                    if found:
                        claimed.add(index)
                else:
                    try:
                        samples[position] = deserialize(found)
                    except Exception as error:  # as in load
                        self._mark_uncacheable(index, f"comes back as {error!r}")
                        missing[index] = position
            if missing:
                started = time.perf_counter_ns()
                loaded = read(list(missing))
                each = (time.perf_counter_ns() - started) // len(missing)
                for (index, position), sample in zip(missing.items(), loaded, strict=True):
                    samples[position] = sample
                    is_claimed = index in claimed
                    claimed.discard(index)
                    self._loaded(index, sample, each, claimed=is_claimed)
        finally:
            for index in claimed:
                self.native.abandon(index)
        for position in later:
            samples[position] = self.load(indices[position], lambda index: read([index])[0])
        return samples

    def _load_each(self, indices: list[int], read: Callable[[list[int]], Any]) -> list[Any]:
        """Load samples one by one, but read those that are neither in memory nor in the folder together."""
        held = self.native.contains, self._ahead.__contains__, lambda i: self.native.spilled(i) is not None
        missing = [index for index in dict.fromkeys(indices) if not any(has(index) for has in held)]
        found = dict(zip(missing, read(missing), strict=True)) if missing else {}
        # (One that comes twice, and is not kept, is read twice, as a transform may change it in place.)
        return [self.load(i, lambda i: found.pop(i) if i in found else read([i])[0]) for i in indices]

    def keep(self, index: int, sample: Any, nanoseconds: int) -> None:
        """Keep a claimed sample if it can be pickled and there is room; the claim ends."""
        try:
            parts = self._serialized(index, sample)
        except BaseException:  # an interrupt, or a warning that is turned into an error
            self.native.abandon(index)
            raise
        if parts is None:
            self.native.abandon(index)
            return
        self.native.note_cost(index, nanoseconds)
        size = block_size(sum(map(len, parts)))
        if not self.native.put(index, parts) and size > self.arguments[1] and self.spill is None:
            self._warn_once(
                f"sample {index} takes {size:,} bytes, more than the cache's whole budget of "
                f"{self.arguments[1]:,}; it is loaded each time. Give a larger budget"
            )

    def measure(self, index: int, sample: Any, nanoseconds: int) -> None:
        """Record the size and the cost of a sample that is not kept, for the next plan."""
        parts = self._serialized(index, sample)
        if parts is not None:
            self.native.note_size(index, sum(map(len, parts)))
            self.native.note_cost(index, nanoseconds)

    def _serialized(self, index: int, sample: Any) -> list[Array] | None:
        if index in self.uncacheable:
            return None
        try:
            return serialize(sample)
        except Exception as error:  # pickling a class may raise anything
            self._mark_uncacheable(index, f"cannot be pickled ({error!r})")
            return None

    def _mark_uncacheable(self, index: int, why: str) -> None:
        self.uncacheable.add(index)
        self.native.drop(index)
        self._warn_once(f"sample {index} cannot be cached, it {why}; it is loaded each time")

    def num_requests(self) -> int:
        """Return the number of requests so far, of all workers."""
        counts = self.native.counts()
        return int(counts["hits"] + counts["misses"])

    def _warn_once(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_user(message)

    def residents(self) -> Array:
        """Return for each sample whether it is in memory (bool)."""
        out = np.empty(len(self), np.bool_)
        self.native.residents(out.view(np.uint8))
        return out

    def sizes(self) -> Array:
        """Return the bytes that each sample takes; 0 if not known yet (int64)."""
        out = np.empty(len(self), np.int64)
        self.native.sizes(out)
        return out

    def costs(self) -> Array:
        """Return the seconds that loading each sample takes; 0 if not known yet (float64).

        A single measurement may include a pause of its thread. Samples that were loaded twice show whether
        measurements are reliable; if not, all samples cost the same.
        """
        last, before = np.empty(len(self), np.int64), np.empty(len(self), np.int64)
        self.native.costs(last, before)
        twice = (last > 0) & (before > 0)
        if twice.sum() < 8 or _rank_correlation(last[twice], before[twice]) < _RELIABLE:
            return np.where(last > 0, 1e-9 * np.median(last[last > 0]) if (last > 0).any() else 0.0, 0.0)
        return np.where(before > 0, np.minimum(last, before), last) * 1e-9

    def __reduce__(self) -> Any:
        """Share the memory with a process that is being spawned; any other copy has only the arguments."""
        if get_spawning_popen() is not None and self.native.file >= 0:
            descriptor = multiprocessing.reduction.DupFd(self.native.file)
            return _attach, (descriptor, self.arguments, self.spill)
        return _fresh, self.arguments

    @classmethod
    def opened(cls, file: int, arguments: _Arguments, spill: SpillTarget | None = None) -> SampleStore:
        """Return the store whose memory is the descriptor ``file``, which may be closed then."""
        store = cls.__new__(cls)
        store.arguments = arguments
        store._has_warned = False
        store.spill = spill
        store._ahead = {}
        store.uncacheable = set()
        store.native = _native.Store.open(file)
        if spill is not None:
            store.native.spill_to(spill.descriptor, spill.key, False)
        return store


def block_size(size: int) -> int:
    """Return the room that a sample of ``size`` bytes takes: whole cache lines, and one for its header."""
    return -(-size // 64) * 64 + 64


def _attach(descriptor: Any, arguments: _Arguments, spill: SpillTarget | None) -> SampleStore:
    file = descriptor.detach()
    try:
        return SampleStore.opened(file, arguments, spill)
    finally:
        os.close(file)


def _fresh(samples: int, room: int, accesses: int, most: int, hashed: bool) -> SampleStore:
    return SampleStore(samples, room, accesses=accesses, most=most, hashed=hashed)


def _rank_correlation(a: Array, b: Array) -> float:
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
