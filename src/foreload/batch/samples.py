"""Batches of any map-style dataset: samples loaded one by one by several workers, then collated.

An *assembly* turns the indices of a batch into a job for the workers and a function that takes the result.
Datasets that the native core knows have assemblies of their own.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from foreload import _native
from foreload.batch.assembly import count, note_sample, shown
from foreload.batch.collate import added_functions, collate_into, is_converted, is_default_collate, lending, pinned
from foreload.batch.collated import Collated
from foreload.batch.failure import LOST, EmptyBatch, SampleError, repair
from foreload.batch.generators.keyed import KeyedGenerators, first_index, loading
from foreload.batch.unlike import note_unlike
from foreload.cache.serialize import separate
from foreload.cache.view import CachedView, holds_values, transform_key
from foreload.cache.wrappers import draws_together, loads_together, told_apart
from foreload.protocol import Batch
from foreload.record.spans import Stage

if TYPE_CHECKING:
    from foreload.protocol import BatchMemory, BatchOptions

__all__ = ["SampleAssembly", "Surroundings"]

T = TypeVar("T")

# Gives the random generators the state of the sample with an index.
Key = Callable[[Any], None]

_SAMPLE = int(Stage.sample)


class Surroundings(Protocol):
    """The environment that samples are loaded in: their random generators, and the context of the loop."""

    def generators(self) -> KeyedGenerators | None:
        """Return the generators of the calling thread; None: samples draw from the global ones as they are."""

    def enter(self) -> Callable[..., Any] | None:
        """Return what calls a function of another thread in the calling one's context; None: just call it."""


class SampleAssembly:
    """Batches of any map-style dataset: ``__getitem__`` per sample or ``__getitems__``, then ``collate_fn``.

    Args:
        spec: options of the loader.
        dataset: the dataset as workers see it.
        workers: the number of threads that share a batch.
        buffers: memory for the batches.
        arrays: whether indices come as arrays.
        surroundings: what samples are loaded in; None: the calling thread as it is.
        copies: whether batches are copied, lest what the loop writes into them gets into the dataset.
    """

    # A run of samples should take far longer than handing it out, yet end soon enough to balance the load.
    _RUN_SECONDS = 2e-3
    # Timing the stages of a sample takes about a microsecond, so short samples are timed now and then.
    _SECONDS_PER_TIMED = 5e-4
    _MOST_PER_TIMED = 32  # runs, on average: a slow one that stands for many others is a coarse estimate

    def __init__(
        self,
        spec: BatchOptions,
        dataset: Any,
        workers: int,
        buffers: BatchMemory,
        *,
        arrays: bool,
        surroundings: Surroundings | None = None,
        copies: bool = False,
    ) -> None:
        # The sample that each thread is loading, to report if nothing comes; None: the calling thread loads.
        self.now: Any = {} if workers else None
        self.depth: int | None = None
        self._arrays = arrays
        self._dataset = dataset
        self._asked = dataset.seen if isinstance(dataset, CachedView) else dataset
        self._batched = spec.auto_collation
        self._takes_any = self._batched and loads_together(dataset)
        self._whole = self._batched and loads_together(dataset, by_part=surroundings is None)
        self._draws_together = self._whole and draws_together(self._asked)
        self._keys_rows = spec.cache is None  # which may ask for a part of the batch
        collate = spec.collate_fn
        self._is_default, is_pinned = is_default_collate(collate), spec.pin_device is not None
        self._own_collate = self._is_default and not added_functions()
        self._collate = collate_into(buffers, is_required=is_pinned) if self._is_default else collate
        self._surroundings = surroundings
        self._draws = not holds_values(dataset)  # (and torch's own function has copied what it stacks)
        self._copies = copies and not (self._batched and self._own_collate)
        self._buffers = buffers
        self._pin_device = spec.pin_device
        self.on_error, self.errors = spec.on_error, spec.errors
        self._workers = max(1, workers)
        self._sample_seconds: float | None = None
        self._timed: Callable[[int], Any] | None = dataset.timed if isinstance(dataset, CachedView) else None
        self._runs_since_timed, self._runs_per_timed = 0, 1
        self._random = random.Random(0)

    def start(self, indices: Any) -> Batch:
        """See :class:`~foreload.protocol.Assembly`."""
        if self._arrays:
            indices = indices.tolist()
        elif self._batched and not self._takes_any and not isinstance(indices, (list, tuple)):
            # A user's own batch sampler may yield any iterable.
            indices = list(indices)
        samples = _Samples(self, indices)
        run: Any = samples.run
        finish: Any = samples.finish
        if self._surroundings is not None and (within := self._surroundings.enter()) is not None:
            run, finish = partial(within, run), partial(within, finish)
        if self._batched and not self._whole:
            runs = asked = max(1, len(indices))
        else:
            runs, asked = 1, count(indices)
        job = _native.PythonJob(runs, self._grain(runs), run, finish, _SAMPLE, asked)
        return Batch(job, samples.take)

    def _grain(self, count: int) -> int:
        if count <= 1:
            return 1
        if self._sample_seconds is None:
            return -(-count // self._workers)
        return max(1, min(count, int(self._RUN_SECONDS / self._sample_seconds)))

    def fetch(self, indices: Any, begin: int, end: int, lost: dict[int, Exception]) -> Sequence[Any]:
        """Load samples ``begin`` to ``end`` of a batch, or all at once if the dataset can.

        Those that fail are added to ``lost``, unless failures are to be raised.
        """
        if self._whole:
            try:
                return self._drawing(partial(self._load_whole, indices))
            except Exception:
                if self.on_error == "raise":
                    raise
                return self._one_by_one(indices, 0, len(indices), lost)
        return self._one_by_one(indices, begin, end, lost)

    def fetch_one(self, index: Any) -> Any:
        """Load the sample of an index without automatic batching."""
        started = time.perf_counter()
        sample = self._drawing(partial(self._load_one, index))
        self._note_time(time.perf_counter() - started)
        return sample

    def _note_time(self, seconds: float) -> None:
        known = self._sample_seconds
        self._sample_seconds = max(1e-7, seconds if known is None else 0.8 * known + 0.2 * seconds)

    def _drawing(self, load: Callable[[Key | None], T]) -> T:
        """Call ``load`` with what keys the generators for a sample; None if they are left as they are."""
        if self._surroundings is None or not self._draws:
            return load(None)
        generators = self._surroundings.generators()
        return load(None) if generators is None else generators.run(load, self._sample_seconds)

    def _load_one(self, index: Any, key: Key | None) -> Any:
        if key is not None:
            loading.dataset, transform_key.view = self._asked, self._dataset
            key(index)
        return self.source()[index]

    def _load_whole(self, indices: Any, key: Key | None) -> Sequence[Any]:
        if key is not None and self._draws_together:
            return [self._load_one(index, key) for index in indices]
        if key is not None:
            loading.dataset, transform_key.view = self._asked, self._dataset
            key(first_index(indices))
            loading.sample = None
            numbers = indices.tolist() if hasattr(indices, "tolist") else indices
            if self._keys_rows and isinstance(numbers, (list, tuple)):
                loading.rows = key, numbers
                loading.collate_fn = self._collate
            try:
                if isinstance(self._dataset, CachedView):
                    return self._dataset.load_many(indices, key)
                return self._dataset.__getitems__(indices)  # type: ignore[no-any-return]
            finally:
                loading.rows = None
        return self._dataset.__getitems__(indices)  # type: ignore[no-any-return]

    def _one_by_one(self, indices: Any, begin: int, end: int, lost: dict[int, Exception]) -> list[Any]:
        return self._drawing(partial(self._load_run, indices, begin, end, lost))

    def _load_run(
        self, indices: Any, begin: int, end: int, lost: dict[int, Exception], key: Key | None
    ) -> list[Any]:
        started = time.perf_counter()
        samples: list[Any] = []
        now, thread = self.now, threading.get_ident()
        # (A batch of which some sample fails is made of samples that are loaded as those of other batches are.)
        is_whole = self._whole and (key is None or not self._draws_together)
        dataset = self.source()
        if key is not None:
            loading.dataset, transform_key.view = self._asked, self._dataset
        for position in range(begin, end):
            index = indices[position]
            if now is not None:
                now[thread] = (indices, position)
            if lost:
                lost.pop(position, None)  # of an attempt before
            if key is not None:
                key(index)
            try:
                if is_whole:
                    samples += self._load_alone(index, key)
                else:
                    samples.append(dataset[index])
            except BaseException as error:
                if self.on_error != "raise" and isinstance(error, Exception):
                    lost[position] = error
                    samples.append(LOST)
                    continue
                note_sample(error, index, position)
                raise _Failed(position, error) from error
        self._note_time((time.perf_counter() - started) / max(1, end - begin))
        return samples

    def _load_alone(self, index: Any, key: Key | None) -> list[Any]:
        """Load a batch of one sample, which a dataset may leave out."""
        if isinstance(self._dataset, CachedView):
            return told_apart(self._asked, self._dataset.load_many([index], key), 1)
        return told_apart(self._asked, self._dataset.__getitems__([index]), 1)

    def source(self) -> Any:
        """Return the dataset for a run of samples; now and then one that times the stages of each."""
        if self._timed is None:
            return self._dataset
        self._runs_since_timed += 1
        if self._runs_since_timed < self._runs_per_timed:
            return self._dataset
        weight, self._runs_since_timed = self._runs_since_timed, 0
        # Decided before they are loaded, and at random: those that take long, or come again and again, would
        # otherwise be timed more often than others.
        if self._sample_seconds is not None:
            runs = self._SECONDS_PER_TIMED / self._sample_seconds
            self._runs_per_timed = 1 + int(self._random.random() * 2 * min(self._MOST_PER_TIMED, runs))
        return self._timed(weight)

    def finish(self, indices: Any, samples: Any) -> Any:
        """Collate (and pin) what was fetched."""
        try:
            batch = self._collated(indices, samples)
        except Exception as error:
            error.add_note(f"foreload: while collating the batch of samples {shown(indices)}")
            if self._batched and self._is_default:
                note_unlike(error, samples, indices)
            raise
        return pinned(separate(batch) if self._copies else batch, self._pin_device)

    def _collated(self, indices: Any, samples: Any) -> Any:
        if self._own_collate or is_converted(self._collate, samples):  # nothing of the user's is called
            return self._collate(samples)
        if not self._is_default and isinstance(samples, Collated):
            samples = samples.listed()
        generators = None if self._surroundings is None else self._surroundings.generators()
        if generators is None:
            with lending(self._buffers):
                return self._collate(samples)
        with generators.kept(), lending(self._buffers):
            generators.key_batch(first_index(indices))
            return self._collate(samples)


class _Failed(Exception):
    def __init__(self, position: int, error: BaseException) -> None:
        self.position = position
        self.error = error


class _Samples:
    """The samples of one batch while several workers load them."""

    def __init__(self, assembly: SampleAssembly, indices: Any) -> None:
        self._assembly = assembly
        self._indices = indices
        self._parts: dict[int, Any] = {}
        self._failures: dict[int, BaseException] = {}
        self._lost: dict[int, Exception] = {}
        self._batch: Any = None
        self._is_made = False

    def run(self, begin: int, end: int) -> None:
        assembly = self._assembly
        try:
            if not assembly._batched:
                self._parts[0] = assembly.fetch_one(self._indices)
            elif assembly._whole or self._indices:
                self._parts[begin] = assembly.fetch(self._indices, begin, end, self._lost)
            else:
                self._parts[0] = []
        except _Failed as failed:
            self._failures[failed.position] = failed.error
        except BaseException as error:
            if not assembly._batched and assembly.on_error != "raise" and isinstance(error, Exception):
                self._lost[0] = error
                return
            error.add_note(f"foreload: while loading {shown(self._indices)}")
            self._failures[begin] = error

    def finish(self) -> None:
        if self._failures or (self._lost and not self._assembly._batched):
            return
        try:
            if not self._assembly._batched or len(self._parts) == 1:
                samples = self._parts.pop(0)
            else:
                samples = [sample for begin in sorted(self._parts) for sample in self._parts[begin]]
            self._parts.clear()
            if self._lost:
                samples = repair(samples, self._assembly.on_error)
                if not samples:
                    return
            self._batch = self._assembly.finish(self._indices, samples)
            self._is_made = True
        except BaseException as error:
            self._failures[0] = error

    def take(self) -> Any:
        on_error, errors = self._assembly.on_error, self._assembly.errors
        if self._lost:
            for position, lost in sorted(self._lost.items()):
                index = self._indices[position] if self._assembly._batched else self._indices
                errors.append(SampleError.of(index, lost, on_error))
            self._lost = {}
        if on_error != "raise" and isinstance(self._failures.get(0), Exception):
            # The samples were loaded, but could not be collated.
            errors.append(SampleError.of(self._indices, self._failures[0], "skip"))
            self._failures = {}
        if self._failures:
            error = self._failures[min(self._failures)]
            self._failures = {}
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        if not self._is_made:
            raise EmptyBatch
        return self._batch
