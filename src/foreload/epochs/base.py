"""One pass over a loader: batches in order, counted and timed, with the loader's policy for errors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.autograd.profiler import record_function
from torch.utils.data import IterableDataset

from foreload._torch import is_profiled
from foreload.batch.assembly import count
from foreload.batch.failure import EmptyBatch, FailureLimit, stop_error
from foreload.batch.spec import BatchSpec
from foreload.checks import optional
from foreload.epochs.cursor import Cursor
from foreload.epochs.torch_names import KEPT_OF_LOADER, KeptOfLoader, TorchNames
from foreload.epochs.turn import Turn
from foreload.record.recorder import Watch, null_loop
from foreload.record.restart import Restart

if TYPE_CHECKING:
    from foreload.cache.budget import MemoryBudget
    from foreload.cache.store import SampleStore
    from foreload.workers.crew import PoolOwner

__all__ = ["Epoch", "EpochSpec"]


@dataclass(frozen=True)
class EpochSpec:
    """A loader as one pass over it sees it.

    Attributes:
        cursor: the order of the batches, and the loop's position in it.
        batches: how batches are made.
        dataset: the user's dataset.
        view: the dataset as workers see it: through the cache, with the loader's transform.
        watch: records the epoch.
        memory: the budget of the cache and the batches made ahead.
        max_errors: the number of samples that may fail.
        restarts: where workers that were lost and replaced are recorded.
        max_restarts: the number of worker processes that may be replaced; on Ray, how often a batch may lose the
            worker that is making it.
        timeout: seconds to wait for a batch; None: for ever.
        in_order: whether batches come in the order of their indices, not of their completion.
        prefetch_factor: batches made ahead per worker.
        snapshot_every: batches between two states of a dataset that workers have; 0: none.
        expected_length: the length that an iterable dataset reported.
        kept: what torch's iterators keep of their loader, beside what is here.
        draws_at_once: whether workers get their first batches when the epoch begins, as torch's do, and not when
            the first one is requested, as if there were none: a loop may draw random numbers in between.
    """

    cursor: Cursor
    batches: BatchSpec
    dataset: Any
    view: Any
    watch: Watch
    memory: MemoryBudget
    max_errors: int
    restarts: list[Restart]
    max_restarts: int
    timeout: float | None
    in_order: bool
    prefetch_factor: int | None
    snapshot_every: int
    kept: KeptOfLoader
    expected_length: int | None = None
    draws_at_once: bool = False

    @property
    def store(self) -> SampleStore | None:
        """The samples that the loader's cache holds, if it has one."""
        return None if self.batches.cache is None else self.batches.cache.store


class Epoch(TorchNames, Iterator[Any]):
    """The iterator over a loader's batches, as ``iter(loader)`` returns it.

    Attributes:
        errors: the samples that failed in this epoch.
    """

    _owner: PoolOwner | None = None  # ends persistent workers
    # Of epochs that are one iterator in torch, the earlier ones hold the latest, which does not hold itself.
    _later: _Latest | None = None
    _is_one_with: weakref.ref[_Latest] | None = None

    def __init__(self, spec: EpochSpec) -> None:
        self._spec = spec
        self._turn = Turn(self)
        self._is_closed = False
        self._cursor = spec.cursor
        self._order = spec.cursor.order
        self._mark_delivered = spec.cursor.mark_delivered
        self._leaves_out = spec.cursor.leaves_out
        self._memory, self._store = spec.memory, spec.store
        self._watch = spec.watch
        self._loop = spec.watch.loop
        self._order_loop = spec.watch.loop  # records the time that drawing the order takes
        self._lane = spec.watch.lane.native
        self._samples_of: Callable[[Any], int] = len if self._order.is_array else count
        self._watches_memory = self._store is not None or spec.memory.limit is not None
        # (Samples of a stream are counted when they have been loaded.)
        skips = spec.batches.on_error == "skip" and not isinstance(spec.dataset, IterableDataset)
        self.errors = spec.batches.errors
        self._failures = FailureLimit(self.errors, spec.max_errors, skips=skips)

    def __len__(self) -> int:
        """Return the number of batches of the whole epoch."""
        return len(self._order)

    @property
    def is_over(self) -> bool:
        """Whether all batches have been delivered."""
        return self._cursor.finished

    def __next__(self) -> Any:
        """Return the next batch. Of several threads that ask, each gets other batches.

        Raises:
            RuntimeError: it did not come within the timeout, or too many workers were killed.
        """
        if self._later is not None:
            return next(self._later.epoch)
        with self._turn.lock:
            self._turn.begin()
            if not is_profiled():
                return self._deliver()
            # By this name, torch's tools know the time that a loop waits for data.
            with record_function(f"enumerate(DataLoader)#{type(self).__name__}.__next__"):
                return self._deliver()

    def go_on_with(self, epoch: Epoch) -> None:
        """Deliver the batches of a later epoch by the same workers from now on, as torch's only iterator does."""
        one = self._later or (self._is_one_with and self._is_one_with()) or _Latest(self)
        before, one.epoch, epoch._is_one_with = one.epoch, epoch, weakref.ref(one)
        before._later = one

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        loader.begin_again(self, is_asked=True)

    def _deliver(self) -> Any:
        failures, was_closed = self._failures, self._is_closed
        self._loop.mark_requested()
        while True:
            try:
                number, samples, take = self._next()
            except StopIteration:
                self._cursor.finished |= not was_closed  # else the loop has not had the rest of it
                self._loop = self._order_loop = null_loop()
                self._watch.end()
                raise
            failed = failures.count if failures.skips else 0
            if self._leaves_out is not None and self._leaves_out(number):
                self._mark_delivered(number)
                continue
            try:
                batch = take()
            except EmptyBatch:
                self._mark_delivered(number)
                failures.check()
                self._check_ranks(number)
                continue
            except Exception as error:  # which the loop gets in its place; not so if the loop was interrupted
                self._mark_delivered(number)
                if isinstance(error, StopIteration):
                    raise stop_error(error) from error
                raise
            if self._watches_memory:
                self._memory.observe_batch(batch, self._store)
            if failures.skips:
                samples -= failures.count - failed
            self._loop.mark_delivered(samples)
            self._mark_delivered(number)  # late: an interrupt before it leaves the batch to who resumes
            failures.check()
            return batch

    def _check_ranks(self, number: int) -> None:
        """Call it for a batch that is left out.

        Raises:
            RuntimeError: other ranks have a batch in its place, and would wait for this one for ever.
        """
        if (optional(self._order.item_sampler, "num_replicas") or 1) > 1:
            raise RuntimeError(
                f"no sample of batch {number} could be loaded, so this rank would have a batch less than the "
                "others, which would wait for it for ever: see loader.errors, take a larger batch_size, or let "
                "the dataset return a substitute"
            )

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        """Wait for a batch.

        Returns:
            Its number in the order of drawing, from 0; the number of its samples; a function that returns the
            batch, or raises the error that it failed with.
        """
        raise NotImplementedError

    def _draw(self) -> Any:
        """Draw the indices of the next batch, and record the time unless they were drawn before."""
        order = self._order
        if order.ready:
            return next(order)
        order.plan()
        self._order_loop.mark()
        indices = next(order)
        self._order_loop.ordered(count(indices) + order.ready * order.bounds.size)
        return indices

    def count_at_consumer(self) -> Watch:
        """Let a wrapper (the device copier) count batches instead of this epoch."""
        self._loop = self._watch.count_at_consumer()
        return self._watch

    def wake(self) -> None:
        """Let a thread that waits for a batch look again whether the epoch goes on.

        The exit of the interpreter calls it in another thread, as soon as this class is initialised.
        """

    def _check_open(self) -> None:
        """Call it after each wait for a batch, while which other threads run.

        Raises:
            RuntimeError: one of them has closed the epoch.
        """
        self._turn.check()
        if self._is_closed:
            raise RuntimeError("another thread closed this epoch while this one waited for a batch of it")

    def close(self) -> None:
        """End the epoch early: its workers end, unless they persist, and its buffers are free."""

    def __getattr__(self, name: str) -> Any:
        """Return what torch's iterators keep of their loader."""
        if name not in KEPT_OF_LOADER:
            return super().__getattr__(name)
        spec = self._spec
        if name == "_base_seed":
            return spec.cursor.base_seed
        of_batches = {"_collate_fn": spec.batches.collate_fn, "_auto_collation": spec.batches.auto_collation}
        return of_batches[name] if name in of_batches else getattr(spec.kept, name[1:])

    @property
    def _workers(self) -> list[Any]:
        """The worker processes; threads are none."""
        return []

    @property
    def _dataset(self) -> Any:  # type: ignore[override]
        return self._spec.dataset

    @property
    def _index_sampler(self) -> Any:
        return self._cursor.sampler

    @property
    def _num_yielded(self) -> int:  # type: ignore[override]
        return (self if self._later is None else self._later.epoch)._cursor.num_over

    @property
    def _shutdown(self) -> bool:
        return self._is_closed if self._owner is None else not self._owner.close.alive

    def _shutdown_workers(self) -> None:
        """End the workers, persistent ones too; the loader starts others for its next epoch."""
        self.close()
        if self._owner is not None:
            self._owner.close()


class _Latest:
    """Holds the latest of the epochs that are one iterator in torch."""

    __slots__ = ("__weakref__", "epoch")

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
