"""The base class of ``DataLoader`` that begins epochs, and hands its attributes down to their parts."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import BatchSampler, IterableDataset, Sampler

from foreload._torch import auto_collates, expected_length, index_sampler, is_of_streams
from foreload.batch.collate import pin_device, warn_of_pinning
from foreload.batch.failure import EpochErrors
from foreload.batch.generators.loops import LoopGenerators
from foreload.batch.spec import BatchSpec
from foreload.cache.budget import MemoryBudget, reuse_freed
from foreload.cache.view import CachedView
from foreload.checks import is_instance
from foreload.datasets.direct import direct_problem
from foreload.epochs.base import Epoch, EpochSpec
from foreload.epochs.cursor import Cursor
from foreload.epochs.loader.modules import import_epochs
from foreload.epochs.loader.order import LoaderOrder, OrderSpec, batch_size_of
from foreload.epochs.loader.own_options import Shown, is_own
from foreload.epochs.progress import watch_progress
from foreload.epochs.torch_names import KeptOfLoader
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
from foreload.workers.selection import TrialLoading
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
    _fl_auto_workers: bool  # whether the number of workers is left to the loader
    _fl_prefetch_given: bool
    _fl_deepens: bool  # whether tuning may make more batches ahead
    _fl_spare_buffers = 8  # free buffers that are kept

    def _fl_reset(self) -> None:
        """Set the state of a new loader: nothing is open, nothing recorded."""
        self._fl_open = Opened()
        self._fl_recorder = Recorder()
        self._fl_crew = Crew(self._fl_recorder, weakref.WeakMethod(self._fl_set_count))
        self._fl_cursor: Cursor | None = None  # of the latest epoch
        self._fl_turn, self._fl_lookahead = Turn(), Lookahead(LoopGenerators())
        self._fl_running: weakref.WeakSet[Epoch] = weakref.WeakSet()

    def _fl_set_count(self, count: int) -> None:
        """Change the number of workers, as the loader chooses to."""
        raise NotImplementedError

    @property
    def _fl_count(self) -> int:
        # Who reads the attribute of that name may be a framework; a derived class may have one of its own.
        count = self.__dict__.get("num_workers")
        return int(self.num_workers if count is None else count)

    @property
    def _fl_ahead(self) -> int | None:
        is_open = self.prefetch_factor is None and (self._fl_auto_workers or self._fl_count > 0)
        return 2 if is_open else self.prefetch_factor  # 2: torch's own

    @Shown
    def spans(self) -> Spans:
        """The spans of all workers: what each did, and when."""
        return self._fl_recorder.spans

    @Shown
    def crew(self) -> Crew:
        """The workers."""
        return self._fl_crew

    @Shown
    def sample_cache(self) -> LoaderCache | None:
        """The cache of samples; None without ``cache=``, and before the first epoch."""
        return self._fl_open.cache

    @property
    def _fl_by_processes(self) -> bool:
        """Whether other processes load the samples, each with a copy of the dataset."""
        return self._fl_crew.kind(self._foreload.workers, self._fl_count) in ("processes", "ray")

    @property
    def _fl_is_left_to_torch(self) -> bool:
        # (A derived class may have set it, for a stream of another class.)
        is_other = is_of_streams(self) != is_instance(self.dataset, IterableDataset)
        return is_other or is_left_to_torch(self.dataset, self.multiprocessing_context)

    def _get_iterator(self) -> Any:
        if self._fl_is_left_to_torch:
            return super()._get_iterator()
        with self._fl_turn.lock:
            self._fl_crew.leave_pool()  # as in torch, others are started, with a copy of what the dataset is now
            self._fl_open.base_seed = None
            return self._fl_open_next()

    def _fl_open_next(self) -> Epoch:
        with self._fl_turn.lock:
            self._fl_turn.begin_epoch()
            watch = self._fl_recorder.begin()
            try:
                epoch = self._fl_begin_epoch(watch)
            except BaseException:
                watch.end()
                raise
            watch.begun(epoch)
            self._fl_running.add(epoch)
            return epoch

    def _fl_begin_epoch(self, watch: Watch) -> Epoch:
        options = self._foreload
        self._fl_set_keyed_epoch()
        self._fl_crew.begin()
        self._fl_choose_workers(crew := self._fl_crew_spec(self._fl_view))
        if self._fl_cursor is None:
            is_tuned = self._fl_auto_workers and self._fl_count > 0
            import_epochs(by_processes=self._fl_by_processes, is_tuned=is_tuned)
        self._fl_crew.retune(crew := self._fl_renewed(crew))
        cache = self._fl_open_cache()
        resumed, self._fl_resumed = self._fl_resumed, None
        router = None if cache is None else cache.follow_ranks(self._fl_cache_spec())
        cursor = Cursor(self._fl_order_spec(), self._fl_epoch, resumed, router)
        watch_progress(watch, self, cursor, self._fl_cursor)
        self._fl_cursor = cursor
        if self.persistent_workers:  # as torch's, they keep the seed that they were started with
            self._fl_open.base_seed = cursor.base_seed
        self._fl_epoch += 1
        if self.pin_memory:
            warn_of_pinning(self.pin_memory_device)
        cursor.order.before_drawing(self._fl_planner(cache, cursor.key))
        crew = self._fl_renewed(crew)
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
            self._fl_ahead,
            options.snapshot_every_n_steps,
            self._fl_kept,
            expected_length(self) if crew.is_stream else None,
            not self._fl_auto_workers,  # which no result may show
        )
        buffers = self._fl_open.memory(pin=crew.batches.pin_device is not None, keep=self._fl_spare_buffers)
        from foreload.epochs.open import open_epoch

        return open_epoch(spec, self._fl_crew, crew, buffers)

    def choose_workers(self) -> None:
        """Choose the workers now, if that is left to the loader, not in the first epoch; the cache is not used."""
        self._fl_choose_workers(self._fl_crew_spec(self._fl_view))

    def _fl_choose_workers(self, crew: CrewSpec) -> None:
        if self._fl_memory.limit is None:
            reuse_freed()  # in forks that measure, too
        # What the cache holds already would be loaded faster than the rest.
        trial = TrialLoading(self._fl_trial_batches, import_epochs)
        self._fl_crew.choose(crew, trial, may_measure=self._fl_open.cache is None)

    def _fl_renewed(self, crew: CrewSpec) -> CrewSpec:
        """Return what the loader needs of its workers now; looking through a large Subset anew takes its time."""
        batches = crew.batches
        same = crew.count == self._fl_count and batches.is_pure == self._fl_is_pure
        return crew if same and batches.cache is self._fl_open.cache else self._fl_crew_spec(self._fl_view)

    @property
    def _fl_is_pure(self) -> bool:
        return self._fl_crew.choice is not None and self._fl_crew.choice.is_pure

    def _fl_trial_batches(self, kind: WorkerKind, count: int, sampler: Sampler[Any], is_batched: bool) -> Any:
        # (A derived class may have other arguments, and do more than load.)
        make: Any = next(kind for kind in type(self).__mro__ if is_own(kind))
        # In order, a slow batch would hide the time that others take.
        how: dict[str, Any] = {"num_workers": count, "workers": kind, "in_order": False}
        how |= {"batch_sampler": sampler} if is_batched else {"batch_size": None, "sampler": sampler}
        return iter(make(self._fl_view, collate_fn=self.collate_fn, **how))

    def _fl_open_cache(self) -> LoaderCache | None:
        self._fl_open.drop_outdated(has_copies=self._fl_by_processes and self._fl_crew.has_pool)
        options = self._foreload
        if options.cache is not None and self._fl_open.cache is None:
            spec = self._fl_cache_spec()
            self._fl_open.keep(self._fl_crew.new_cache(options.workers, spec, options.cache), spec)
        return self._fl_open.cache

    def _fl_planner(self, cache: LoaderCache | None, key: tuple[int, int]) -> Callable[[EpochOrder], None]:
        """Return the function that plans with the order of an epoch before it is drawn."""
        dataset = self.dataset if isinstance(self.dataset, EpochListener) else None
        if cache is None:
            return lambda order: None if dataset is None else dataset.epoch_begins(order.peek(), key)
        spec = self._fl_cache_spec()
        self._fl_memory.begin(cache.store)

        def plan(order: EpochOrder) -> None:
            cache.begin(spec, order)
            if dataset is not None:
                dataset.epoch_begins(None, key)  # what the cache has is not asked for

        return plan

    def _fl_order_spec(self) -> OrderSpec:
        options, cursor = self._foreload, self._fl_cursor
        sampler, is_batched, by_processes = index_sampler(self), auto_collates(self), self._fl_by_processes
        has_parts = by_processes or is_instance(self.dataset, IterableDataset)
        has_copies = self._fl_count > 0 and (by_processes or (has_parts and not self._fl_auto_workers))
        return OrderSpec(
            self.dataset,
            sampler,
            self.generator,
            options.seed,
            self._fl_count if has_parts else 0,
            self._fl_open.base_seed,
            batch_size_of(sampler, is_batched=is_batched),
            is_batched,
            self._fl_skip,
            # The calling thread, or the one that reads ahead for it, has the dataset itself.
            keeps=self.persistent_workers or not has_copies,
            # A number of workers says when batches are drawn, as in torch.
            lookahead=self._fl_lookahead if self._fl_auto_workers and options.workers != "ray" else None,
            in_order=self.in_order,
            beginning=BEGINNING if cursor is None else cursor.order.next_beginning(left=not cursor.finished),
            asks_twice=self._fl_count > 0 and not self._fl_auto_workers,
        )

    def _fl_cache_spec(self) -> CacheSpec:
        from foreload.cache.loader_cache import CacheSpec

        how = index_sampler(self), self._fl_memory, self.batch_size, self.num_workers, self._fl_by_processes
        return CacheSpec(self.dataset, *how, draws_seed=not self.persistent_workers)

    @property
    def _fl_batch_spec(self) -> BatchSpec:
        """The options that decide how the batches of this loader are made."""
        sampler, is_batched, options = index_sampler(self), auto_collates(self), self._foreload
        return BatchSpec(
            self.collate_fn,
            auto_collation=is_batched,
            batch_size=batch_size_of(sampler, is_batched=is_batched),
            drop_last=self.drop_last,
            transform=options.transform,
            on_error=options.on_error,
            errors=EpochErrors(self._fl_errors),
            pin_device=self._fl_pin_device,
            device=options.device,
            cache=self._fl_open.cache,
            has_cache=options.cache is not None,
            lookahead=type(sampler) is BatchSampler and type(sampler.sampler) in KNOWN_SAMPLERS,
            is_keyed=options.seed is not None or self._fl_auto_workers or options.workers == "ray",
            is_pure=self._fl_is_pure,
        )

    def _fl_crew_spec(self, view: Any) -> CrewSpec:
        return CrewSpec(
            self.dataset,
            view,
            self._fl_batch_spec,
            self._foreload.workers,
            self._fl_count,
            self._fl_auto_workers,
            self.persistent_workers,
            self.worker_init_fn,
            self.multiprocessing_context,
            self._fl_ahead,
            self._fl_prefetch_given,
            self._fl_deepens,
            self._fl_memory.limit is None,
            self._fl_memory,
        )

    @property
    def _fl_view(self) -> Any:
        """The dataset as workers see it."""
        store = None if self._fl_open.cache is None else self._fl_open.cache.store
        if store is None and self._foreload.transform is None:
            return self.dataset
        cache = self._foreload.cache
        return CachedView(self.dataset, store, self._foreload.transform, "auto" if cache is None else cache.keep)

    @property
    def _fl_kept(self) -> KeptOfLoader:
        ends = self.drop_last, self.pin_memory, self.persistent_workers, self.timeout
        return KeptOfLoader(self._fl_count, self._fl_ahead, *ends, self._dataset_kind, expected_length(self))

    @property
    def _fl_pin_device(self) -> str | None:
        """The kind of device that batches are page-locked for."""
        device = self._foreload.device
        return pin_device() if self.pin_memory or (device is not None and device.type == "cuda") else None

    def _fl_facts(self) -> LoaderFacts:
        """Return the facts that the loader's stats are made from."""
        from foreload.record.stats import LoaderFacts

        size: Any = getattr(self.batch_sampler, "batch_size", self.batch_size)
        cache = self._fl_open.cache  # close() may replace it meanwhile
        return LoaderFacts(
            self._fl_recorder,
            None if cache is None else cache.stats(),
            self._fl_memory.stats(),
            self._foreload.device,
            len(self._fl_errors),
            self._fl_restarts,
            self._fl_crew.stats(self._foreload.workers, int(self.num_workers), is_auto=self._fl_auto_workers),
            {
                "batch_size": int(size) if hasattr(size, "__index__") else None,
                "iterable": isinstance(self.dataset, IterableDataset),
                "pin_memory": self._fl_pin_device is not None,
                "native": False,
                "stock": False,
                "dataset": type(self.dataset).__name__,
                "direct_problem": direct_problem(self.dataset),
            },
        )

    def _fl_close(self) -> None:  # but keep what was recorded
        self._fl_crew.close()
        # An iterator that somebody holds keeps the cache, and needs the folder only while there is more to come.
        if self._fl_open.cache is not None and all(epoch.is_over for epoch in self._fl_running):
            self._fl_open.cache.store.leave_spill()
        self._fl_open = Opened()
