"""The base class of ``DataLoader`` that begins epochs, and hands its attributes down to their parts."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils.data import BatchSampler, IterableDataset, Sampler

from foreload._torch import auto_collates, expected_length, index_sampler
from foreload.batch.collate import warn_of_pinning
from foreload.batch.failure import EpochErrors
from foreload.batch.spec import BatchSpec
from foreload.cache.budget import MemoryBudget, reuse_freed
from foreload.cache.view import CachedView
from foreload.checks import is_instance
from foreload.datasets.direct import direct_problem
from foreload.epochs.base import Epoch, EpochSpec
from foreload.epochs.cursor import Cursor
from foreload.epochs.loader.order import LoaderOrder, OrderSpec
from foreload.epochs.progress import watch_progress
from foreload.epochs.turn import Turn
from foreload.options import WorkerKind
from foreload.order.epoch_order import EpochOrder
from foreload.order.known import KNOWN_SAMPLERS
from foreload.order.own_sampler.ahead import Lookahead
from foreload.order.resume import BEGINNING
from foreload.protocol import EpochListener
from foreload.record.recorder import Recorder, Watch
from foreload.record.spans import Spans
from foreload.workers.crew import Crew
from foreload.workers.opened import Opened
from foreload.workers.spec import CrewSpec, is_left_to_torch

if TYPE_CHECKING:
    from foreload.cache.loader_cache import CacheSpec, LoaderCache
    from foreload.record.stats import LoaderFacts

__all__ = ["EpochSource"]

T_co = TypeVar("T_co", covariant=True)


class EpochSource(LoaderOrder[T_co]):
    """A torch DataLoader whose epochs are foreload's.

    :class:`foreload.DataLoader` adds the arguments and the methods for users. The parts of an epoch get frozen
    specs, made for each epoch, since the attributes of a torch DataLoader may change between epochs.
    """

    _fl_memory: MemoryBudget
    _auto_workers: bool  # whether the number of workers is left to the loader
    _prefetch_given: bool
    _deepens: bool  # whether tuning may make more batches ahead
    _spare_buffers = 8  # free buffers that are kept

    def _fl_reset(self) -> None:
        """Set the state of a new loader: nothing is open, nothing recorded."""
        self._open = Opened()
        self._fl_recorder = Recorder()
        self._crew = Crew(self._fl_recorder, weakref.WeakMethod(self._set_count))
        self._cursor: Cursor | None = None  # of the latest epoch
        self._turn, self._lookahead = Turn(), Lookahead()
        self._fl_running: weakref.WeakSet[Epoch] = weakref.WeakSet()

    def _set_count(self, count: int) -> None:
        """Change the number of workers, as the loader chooses to."""
        raise NotImplementedError

    @property
    def _fl_count(self) -> int:
        # Who reads the attribute of that name may be a framework.
        return int(self.__dict__["num_workers"])

    @property
    def _ahead(self) -> int | None:
        is_open = self.prefetch_factor is None and (self._auto_workers or self._fl_count > 0)
        return 2 if is_open else self.prefetch_factor  # 2: torch's own

    @property
    def spans(self) -> Spans:
        """The spans of all workers: what each did, and when."""
        return self._fl_recorder.spans

    @property
    def crew(self) -> Crew:
        """The workers."""
        return self._crew

    @property
    def sample_cache(self) -> LoaderCache | None:
        """The cache of samples; None without ``cache=``, and before the first epoch."""
        return self._open.cache

    @property
    def by_processes(self) -> bool:
        """Whether other processes load the samples, each with a copy of the dataset."""
        return self._crew.kind(self._foreload.workers, self._fl_count) in ("processes", "ray")

    @property
    def _is_left_to_torch(self) -> bool:
        return is_left_to_torch(self.dataset, self.multiprocessing_context)

    def _get_iterator(self) -> Any:
        if self._is_left_to_torch:
            return super()._get_iterator()
        with self._turn.lock:
            self._crew.leave_pool()  # as in torch, others are started, with a copy of what the dataset is now
            self._open.base_seed = None
            return self._open_next()

    def _open_next(self) -> Epoch:
        with self._turn.lock:
            self._turn.begin_epoch()
            watch = self._fl_recorder.begin()
            try:
                epoch = self._begin_epoch(watch)
            except BaseException:
                watch.end()
                raise
            watch.begun(epoch)
            self._fl_running.add(epoch)
            return epoch

    def _begin_epoch(self, watch: Watch) -> Epoch:
        options = self._foreload
        self._set_keyed_epoch()
        self._crew.begin()
        if self._fl_memory.limit is None:
            reuse_freed()
        self._choose_workers(crew := self._crew_spec(self._fl_view))
        self._crew.retune(crew := self._renewed(crew))
        cache = self._open_cache()
        resumed, self._resumed = self._resumed, None
        router = None if cache is None else cache.follow_ranks(self._cache_spec())
        cursor = Cursor(self._order_spec(), self._fl_epoch, resumed, router)
        watch_progress(watch, self, cursor, self._cursor)
        self._cursor = cursor
        if self.persistent_workers:
            self._open.base_seed = cursor.base_seed  # as torch's, they keep the seed that they were started with
        self._fl_epoch += 1
        if self.pin_memory:
            warn_of_pinning(self.pin_memory_device)
        cursor.order.before_drawing(self._planner(cache, cursor.key))
        crew = self._renewed(crew)
        spec = EpochSpec(
            cursor,
            crew.batches,
            self.dataset,
            crew.view,
            watch,
            self._fl_memory,
            options.max_errors,
            self._fl_restarts,
            options.max_restarts,
            self.timeout or None,
            self.in_order,
            self._ahead,
            options.snapshot_every_n_steps,
            expected_length(self) if crew.is_stream else None,
            not self._auto_workers,  # which no result may show
        )
        buffers = self._open.memory(pin=crew.batches.pin_device is not None, keep=self._spare_buffers)
        from foreload.epochs.open import open_epoch

        return open_epoch(spec, self._crew, crew, buffers)

    def choose_workers(self) -> None:
        """Choose the workers now, if that is left to the loader, not in the first epoch; the cache is not used."""
        self._choose_workers(self._crew_spec(self._fl_view))

    def _choose_workers(self, crew: CrewSpec) -> None:
        import foreload.epochs.open  # noqa: F401 (before loading is measured: imports take time, and fill caches)

        # What the cache holds already would be loaded faster than the rest.
        self._crew.choose(crew, self._trial_batches, may_measure=self._open.cache is None)

    def _renewed(self, crew: CrewSpec) -> CrewSpec:
        """Return what the loader needs of its workers now; looking through a large Subset anew takes its time."""
        batches = crew.batches
        same = crew.count == self._fl_count and batches.is_pure == self._is_pure
        return crew if same and batches.cache is self._open.cache else self._crew_spec(self._fl_view)

    @property
    def _is_pure(self) -> bool:
        return self._crew.choice is not None and self._crew.choice.is_pure

    def _trial_batches(self, kind: WorkerKind, count: int, sampler: Sampler[Any], is_batched: bool) -> Any:
        make: Any = type(self)
        # In order, a slow batch would hide the time that others take.
        how: dict[str, Any] = {"num_workers": count, "workers": kind, "in_order": False}
        how |= {"batch_sampler": sampler} if is_batched else {"batch_size": None, "sampler": sampler}
        return iter(make(self._fl_view, collate_fn=self.collate_fn, **how))

    def _open_cache(self) -> LoaderCache | None:
        self._open.drop_outdated(has_copies=self.by_processes and self._crew.has_pool)
        options = self._foreload
        if options.cache is not None and self._open.cache is None:
            spec = self._cache_spec()
            self._open.keep(self._crew.new_cache(options.workers, spec, options.cache), spec)
        return self._open.cache

    def _planner(self, cache: LoaderCache | None, key: tuple[int, int]) -> Callable[[EpochOrder], None]:
        """Return the function that plans with the order of an epoch before it is drawn."""
        dataset = self.dataset if isinstance(self.dataset, EpochListener) else None
        if cache is None:
            return lambda order: None if dataset is None else dataset.epoch_begins(order.peek(), key)
        spec = self._cache_spec()
        self._fl_memory.begin(cache.store)

        def plan(order: EpochOrder) -> None:
            cache.begin(spec, order)
            if dataset is not None:
                dataset.epoch_begins(None, key)  # what the cache has is not asked for

        return plan

    def _order_spec(self) -> OrderSpec:
        options, cursor = self._foreload, self._cursor
        sampler, is_batched, by_processes = index_sampler(self), auto_collates(self), self.by_processes
        has_parts = by_processes or is_instance(self.dataset, IterableDataset)
        has_copies = self._fl_count > 0 and (by_processes or (has_parts and not self._auto_workers))
        return OrderSpec(
            self.dataset,
            sampler,
            self.generator,
            options.seed,
            self._fl_count if has_parts else 0,
            self._open.base_seed,
            _batch_size(sampler, is_batched=is_batched),
            is_batched,
            self._fl_skip,
            # The calling thread, or the one that reads ahead for it, has the dataset itself.
            keeps=self.persistent_workers or not has_copies,
            # A number of workers says when batches are drawn, as in torch.
            lookahead=self._lookahead if self._auto_workers and options.workers != "ray" else None,
            in_order=self.in_order,
            beginning=BEGINNING if cursor is None else cursor.order.next_beginning(left=not cursor.finished),
            asks_twice=self._fl_count > 0 and not self._auto_workers,
        )

    def _cache_spec(self) -> CacheSpec:
        from foreload.cache.loader_cache import CacheSpec

        sampler, size, count = index_sampler(self), self.batch_size, self.num_workers
        seeds = not self.persistent_workers
        return CacheSpec(self.dataset, sampler, self._fl_memory, size, count, self.by_processes, draws_seed=seeds)

    @property
    def batch_spec(self) -> BatchSpec:
        """How the batches of this loader are made."""
        sampler, is_batched, options = index_sampler(self), auto_collates(self), self._foreload
        return BatchSpec(
            self.collate_fn,
            auto_collation=is_batched,
            batch_size=_batch_size(sampler, is_batched=is_batched),
            drop_last=self.drop_last,
            transform=options.transform,
            on_error=options.on_error,
            errors=EpochErrors(self._fl_errors),
            pin_device=self._pin_device,
            device=options.device,
            cache=self._open.cache,
            has_cache=options.cache is not None,
            lookahead=type(sampler) is BatchSampler and type(sampler.sampler) in KNOWN_SAMPLERS,
            is_keyed=options.seed is not None or self._auto_workers or options.workers == "ray",
            is_pure=self._is_pure,
        )

    def _crew_spec(self, view: Any) -> CrewSpec:
        return CrewSpec(
            self.dataset,
            view,
            self.batch_spec,
            self._foreload.workers,
            self._fl_count,
            self._auto_workers,
            self.persistent_workers,
            self.worker_init_fn,
            self.multiprocessing_context,
            self._ahead,
            self._prefetch_given,
            self._deepens,
            self._fl_memory.limit is None,
            self._fl_memory,
        )

    @property
    def _fl_view(self) -> Any:
        """The dataset as workers see it."""
        store = None if self._open.cache is None else self._open.cache.store
        if store is None and self._foreload.transform is None:
            return self.dataset
        cache = self._foreload.cache
        return CachedView(self.dataset, store, self._foreload.transform, "auto" if cache is None else cache.keep)

    @property
    def _pin_device(self) -> str | None:
        """The kind of device that batches are page-locked for."""
        device = self._foreload.device
        wanted = self.pin_memory or (device is not None and device.type == "cuda")
        if not wanted or not torch.accelerator.is_available():
            return None
        accelerator = torch.accelerator.current_accelerator()
        return None if accelerator is None or accelerator.type == "mps" else accelerator.type

    def _facts(self) -> LoaderFacts:
        """Return the facts that the loader's stats are made from."""
        from foreload.record.stats import LoaderFacts

        size: Any = getattr(self.batch_sampler, "batch_size", self.batch_size)
        cache = self._open.cache  # close() may replace it meanwhile
        return LoaderFacts(
            self._fl_recorder,
            None if cache is None else cache.stats(),
            self._fl_memory.stats(),
            self._foreload.device,
            len(self._fl_errors),
            self._fl_restarts,
            self._crew.stats(self._foreload.workers, int(self.num_workers), is_auto=self._auto_workers),
            {
                "batch_size": int(size) if hasattr(size, "__index__") else None,
                "iterable": isinstance(self.dataset, IterableDataset),
                "pin_memory": self._pin_device is not None,
                "native": False,
                "stock": False,
                "dataset": type(self.dataset).__name__,
                "direct_problem": direct_problem(self.dataset),
            },
        )

    def _fl_close(self) -> None:  # but keep what was recorded
        self._crew.close()
        # An iterator that somebody holds keeps the cache, and needs the folder only while there is more to come.
        if self._open.cache is not None and all(epoch.is_over for epoch in self._fl_running):
            self._open.cache.store.leave_spill()
        self._open = Opened()


def _batch_size(sampler: Any, *, is_batched: bool) -> int | None:
    size = getattr(sampler, "batch_size", None) if is_batched else None
    return size if isinstance(size, int) else None
