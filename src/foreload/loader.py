"""The drop-in DataLoader: wires the stages together."""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Callable, Iterable, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex, TypeVar, get_args

import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from foreload.batch.buffers import Buffers
from foreload.batch.failure import OnError, SampleError
from foreload.batch.samples import SampleAssembly
from foreload.batch.spec import BatchSpec
from foreload.cache.budget import MemoryBudget, reuse_freed
from foreload.cache.loader_cache import LoaderCache
from foreload.cache.view import CachedView, is_remote, unwrap, warn_of_randomness
from foreload.checks import check_seed
from foreload.datasets.native import native_assembly
from foreload.datasets.tensors import TensorAssembly
from foreload.device import MovedAhead, check_device, side_stream
from foreload.epochs.base import Epoch, GatherEpoch, InlineEpoch
from foreload.epochs.cursor import Order, resume, save
from foreload.epochs.processes import ProcessEpoch, Restart
from foreload.epochs.stream import StreamEpoch
from foreload.epochs.threads import thread_epoch
from foreload.errors import warn_user
from foreload.machine import granted_cores
from foreload.options import Cache, parse_bytes
from foreload.order.lookahead import KNOWN_SAMPLERS, look_ahead
from foreload.order.mixture import MixtureSampler
from foreload.order.samplers import KeyedSampler
from foreload.protocol import EpochListener, LoaderDefaults
from foreload.record.recorder import Recorder, Watch
from foreload.record.spans import Spans
from foreload.record.stats import Stats, collect
from foreload.tune.between_epochs import Retuner
from foreload.tune.choose import Choice, choose, waiters
from foreload.tune.within_epoch import Tuner
from foreload.workers.crew import PoolOwner
from foreload.workers.processes import ProcessPool
from foreload.workers.threads import ThreadPool
from foreload.workers.worker import WorkerTask
from foreload.workers.worker_info import WorkerIdentity

if TYPE_CHECKING:
    from foreload.report.report import Report


__all__ = ["DataLoader"]

T_co = TypeVar("T_co", covariant=True)
Workers = Literal["auto", "threads", "processes"]

# From this size on, copying a batch of rows ahead of its use pays for the hand-over.
_WORTH_A_THREAD = 1 << 20


class DataLoader(TorchDataLoader[T_co]):
    """``torch.utils.data.DataLoader``, several times faster: the same arguments, the same batches.

    The differences: ``num_workers`` is ``"auto"`` by default; workers are threads, which share the dataset
    (``__getitem__`` must allow that) and start at once; batches are assembled in place in memory that is used
    again as soon as nobody holds the batch; image folders, tensors and the like are loaded natively, without
    the GIL.

    Args:
        dataset, batch_size, shuffle, sampler, batch_sampler, collate_fn, pin_memory, drop_last, timeout,
        worker_init_fn, multiprocessing_context, generator, prefetch_factor, persistent_workers,
        pin_memory_device, in_order: as torch's DataLoader has them.
        num_workers: how many workers; 0 loads in the calling thread; ``"auto"`` takes as many as are best: one
            per core, more where samples wait for something, none where batches are cheaper to make than to hand
            over. For samples on a server that is as many threads as it takes to have about 512 of them on their
            way: ``ceil(512 / batch_size)``, at least 2 and at most 32.
        workers: who they are: ``"threads"`` or ``"processes"``; ``"auto"`` loads some samples in a fork, for a
            tenth of a second each way, and takes what was faster (see :meth:`stats`).
        seed: makes order (with ``shuffle=True``) and augmentation a pure function of (seed, epoch, index), the
            same for any number and kind of workers. Each iteration is the next epoch; see :meth:`set_epoch`.
        cache: keep samples in memory, one cache for all workers: a budget in bytes, ``"8GiB"``, ``"50%"``, or a
            :class:`~foreload.Cache`. What is kept is computed from the order, which is known.
        transform: applied to each sample after the cache; what is random belongs here.
        device: deliver batches there: with CUDA they are page-locked, and the copy of a batch runs on a stream of
            its own while the loop works on the one before it, as :class:`~foreload.PrefetchLoader` does.
        memory: the most that the cache and the batches made ahead take together: bytes, ``"4GiB"``, or ``"50%"``
            of the memory that this process may use. (Each worker process makes at least one batch ahead.) With or
            without it, the cache gives samples back when memory runs short; see ``stats()["memory"]``.
        on_error: what to do about a sample that cannot be loaded. ``"raise"``; ``"skip"`` leaves it out, its batch
            is smaller; ``"replace"`` puts the next sample of its batch in its place. What failed is in
            :attr:`errors`.
        max_errors: how many samples of an epoch may fail before that is an error all the same.
        max_restarts: how many worker processes that were killed are replaced in an epoch, and their work done
            again; 0 raises as torch does.
        snapshot_every_n_steps: for code that calls torchdata's ``StatefulDataLoader``; whatever it is, a state is
            of the very batch after which it was taken.

    Raises:
        ValueError, TypeError: as torch does, and where an argument makes no sense.

    Attributes:
        errors: the samples that failed, as :class:`~foreload.batch.failure.SampleError`.

    An exception in the dataset reaches the loop as it is, with a note that names the sample.

    >>> loader = DataLoader(torch.utils.data.TensorDataset(torch.arange(6.)), batch_size=4, shuffle=True, seed=0)
    >>> [len(batch[0]) for batch in loader]
    [4, 2]
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | Literal["auto"] = "auto",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        workers: Workers = "auto",
        seed: int | None = None,
        cache: Cache | int | str | None = None,
        transform: Callable[[Any], Any] | None = None,
        device: torch.device | str | int | None = None,
        memory: SupportsIndex | str | None = None,
        on_error: OnError = "raise",
        max_errors: int = 100,
        max_restarts: int = 5,
        snapshot_every_n_steps: int = 1,
    ) -> None:
        if workers not in ("auto", "threads", "processes"):
            raise ValueError(f"workers must be 'auto', 'threads' or 'processes', got {workers!r}")
        if isinstance(num_workers, str):
            if num_workers != "auto":
                raise ValueError(f"num_workers must be an int or 'auto', got {num_workers!r}")
        elif isinstance(num_workers, bool) or not hasattr(num_workers, "__index__"):
            raise TypeError(f"num_workers must be an int or 'auto', got {num_workers!r}")
        if seed is not None:
            seed = check_seed(seed)
            if shuffle and sampler is None and batch_sampler is None and not isinstance(dataset, IterableDataset):
                if isinstance(dataset, LoaderDefaults):
                    sampler = dataset.seeded_sampler(seed)
                if sampler is None:
                    sampler = KeyedSampler(dataset, seed)  # type: ignore[arg-type]
                shuffle = None
        if isinstance(dataset, IterableDataset) and not (cache is None and transform is None):
            raise ValueError("cache and transform need a map-style dataset, whose samples have indices")
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be callable, got {transform!r}")
        if on_error not in get_args(OnError):
            raise ValueError(f"on_error must be one of {', '.join(get_args(OnError))}, got {on_error!r}")
        if collate_fn is None and not (batch_size is None and batch_sampler is None):
            root, _ = unwrap(dataset)
            collate_fn = root.default_collate if isinstance(root, LoaderDefaults) else None
        self.workers = workers
        self.on_error: OnError = on_error
        self.errors: list[SampleError] = []
        self.max_errors = _count("max_errors", max_errors)
        self.max_restarts = _count("max_restarts", max_restarts)
        self.snapshot_every_n_steps = _count("snapshot_every_n_steps", snapshot_every_n_steps)
        self.restarts: list[Restart] = []
        self._recorder = Recorder()
        self.seed = seed
        self.cache = None if cache is None else Cache.of(cache)
        self.transform = transform
        self.device = None if device is None else torch.device(device)
        if self.device is not None:
            check_device(self.device)
        self._moving: weakref.ref[MovedAhead] | None = None
        self.memory = memory
        self._memory = MemoryBudget(None if memory is None else parse_bytes(memory, name="memory"))
        self._cache: LoaderCache | None = None
        self._order: Order | None = None  # of the epoch begun last
        self._resumed: dict[str, Any] | None = None
        self._choice: Choice | None = None
        self._base_seed: int | None = None
        self._auto_workers = num_workers == "auto"
        self._prefetch_given = prefetch_factor is not None
        self._deepens = prefetch_factor is None  # whether more batches may be made ahead
        self._tuning: list[str] = []
        self._tuner: Tuner | None = None
        self._retuner = Retuner(self._tuning)
        self._epoch = 0
        self._published: str | None = None  # the name it has on the page of `foreload serve`, "" for the usual one
        self._buffers: Buffers | None = None
        self._copies: list[Any] | None = None  # of an iterable dataset, where the threads that have them persist
        self._pool: ThreadPool | ProcessPool | None = None
        self._keeper: PoolOwner | None = None
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            self._choose_workers(dataset) if isinstance(num_workers, str) else operator.index(num_workers),
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )

    def _choose_workers(self, dataset: Any) -> int:
        if isinstance(dataset, (IterDataPipe, MapDataPipe)):
            return 0
        if isinstance(dataset, IterableDataset) and self.workers != "processes":
            return 1  # one stream, read ahead
        return granted_cores()

    def check_worker_number_rationality(self) -> None:
        """Warn of more worker processes than cores, as torch does; threads that wait take none."""
        if self.workers == "processes":
            super().check_worker_number_rationality()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration gives; the ones after it follow by themselves.

        It is passed on to a sampler (or batch sampler) that has ``set_epoch``, such as ``DistributedSampler``, and
        to an iterable dataset that has it, such as :class:`~foreload.Stream`.
        """
        self._epoch = epoch
        stream = self.dataset if isinstance(self.dataset, IterableDataset) else None
        for sampler in (self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None), stream):
            tell = getattr(sampler, "set_epoch", None)
            if tell is not None:
                tell(epoch)

    def close(self) -> None:
        """End persistent workers, let go of the cache and of free buffers. The loader can be iterated again."""
        if self._keeper is not None:
            self._keeper.close()
        self._pool = self._keeper = None
        self._iterator = None
        self._buffers = None
        self._copies = None
        self._cache = None
        self._base_seed = None

    def __enter__(self) -> Self:
        """Give the loader, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the loader."""
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Give what :meth:`load_state_dict` needs to go on after the batches that the loop has been given.

        It says which positions of the order have been given and what the order is drawn from, under 1 KiB for
        foreload's own (``seed=``); with torch's samplers and a generator of one's own there is its state too
        (5 KB). Plain values and tensors: ``torch.save`` and the checkpoints of trainers keep it.

        >>> loader = DataLoader(list(range(10)), batch_size=4, shuffle=True, seed=0)
        >>> batches = iter(loader); first = next(batches); state = loader.state_dict()
        >>> again = DataLoader(list(range(10)), batch_size=3, shuffle=True, seed=0)
        >>> again.load_state_dict(state)
        >>> sorted(torch.cat([first, *again]).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        """
        if self._resumed is not None:
            return dict(self._resumed)
        moving = None if self._moving is None else self._moving()
        if moving is not None:
            return dict(moving.state)
        return self._state()

    def _state(self) -> dict[str, Any]:
        if self._order is None:
            return {"foreload": 1, "epoch": self._epoch, "finished": False, "given": []}
        return save(self, self._order)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next iteration go on where ``state_dict`` was taken.

        The number and kind of workers may be another, and for map-style datasets the batch size; under torch's
        ``DistributedSampler`` the number of ranks too: each sample that is left is still given exactly once. No
        earlier sample is loaded again. An iterable dataset, or a user's sampler, goes on from its own
        ``state_dict`` if it (or its iterator) has one; otherwise what it gave before is read, or drawn, again,
        which a warning says.

        Raises:
            ValueError, TypeError: the state is not one of a loader like this one.
        """
        self._resumed = resume(self, state_dict)

    def stats(self) -> Stats:
        """Tell what has happened so far: how fast batches came, how long the loop waited for them, what the
        workers did meanwhile, what that took of memory and cores; what failed, who loads, and why. It can be asked
        for at any time, from any thread. :class:`~foreload.record.stats.Stats` has every figure.
        """
        return collect(self)

    def report(self) -> Report:
        """Tell where the time went, what holds the loop back, what to change, and what that would give.

        ``print(loader.report())`` anywhere; in a notebook, or with rich, it is a table.
        """
        from foreload.report.report import Report

        return Report(self.stats())

    @property
    def spans(self) -> Spans:
        """What each worker did and when."""
        return self._recorder.spans

    def publish(self, *, name: str | None = None) -> Self:
        """Make this loader visible to ``foreload serve`` on this machine; see :func:`foreload.publish`."""
        from foreload.export.publish import publish

        return publish(self, name=name)

    def __iter__(self) -> Any:
        """Begin an epoch."""
        if self._published is not None:
            from foreload.export.publish import renew

            renew(self)
        if isinstance(self.dataset, (IterDataPipe, MapDataPipe)):
            return super().__iter__()
        self._moving = None
        epoch = self._get_iterator()
        # Where torch keeps it, for those who look.
        self._iterator = epoch if self.persistent_workers else None
        stream = None if self.device is None else side_stream(self.device)
        if stream is None:
            return epoch
        moving = MovedAhead(epoch, stream, self._state)
        self._moving = weakref.ref(moving)
        return moving

    @property
    def by_processes(self) -> bool:
        """Whether worker processes load the samples."""
        kind = self.workers if self._choice is None else self._choice.kind
        return kind == "processes" and self.num_workers > 0

    def _choose(self) -> None:
        """Choose the workers, where that was left to the loader: once, before they are first needed."""
        if self.workers == "processes" or self._choice is not None or self.num_workers == 0:
            return
        if self._cache is not None:
            return  # it was asked before the cache was there, when the native core could load everything
        dataset: Any = self.dataset
        if not isinstance(dataset, Sized) or isinstance(dataset, IterableDataset):
            return
        if is_remote(dataset):
            size = getattr(self.batch_sampler, "batch_size", self.batch_size)
            count = waiters(size) if self._auto_workers else self.num_workers
            self._choice = Choice("threads", count, "samples come from a server, and waiting takes no core")
            self.num_workers = count
            return
        if self.workers == "threads":
            return
        if native_assembly(self.batch_spec, dataset, (0, 0), Buffers()) is not None:
            return
        self._choice = choose(self, None if self._auto_workers else self.num_workers)
        if self._auto_workers:
            self.num_workers = self._choice.count

    def _get_iterator(self) -> Any:
        if isinstance(self.dataset, (IterDataPipe, MapDataPipe)):
            return super()._get_iterator()
        watch = self._recorder.begin()
        try:
            epoch = self._begin_epoch(watch)
        except BaseException:
            watch.end()
            raise
        watch.begun(epoch)
        return epoch

    def _begin_epoch(self, watch: Watch) -> Epoch:
        if self.seed is not None:
            for sampler in (self.sampler, getattr(self.batch_sampler, "sampler", None)):
                if isinstance(sampler, (KeyedSampler, MixtureSampler)):
                    sampler.set_epoch(self._epoch)
        if self._reuses:
            reuse_freed()
        self._choose()  # by what loading costs without a cache
        if self._tunes and not self.persistent_workers:
            self._retuner.begin(self)
        self._open_cache()
        resumed, self._resumed = self._resumed, None
        order = self._order = Order(self, self._epoch, resumed, watch)
        self._epoch += 1
        self._warn_without_accelerator()
        self._plan_cache(draws=(False, not self.persistent_workers), resumed=resumed is not None)
        if self.by_processes:
            return self._process_epoch(order)
        spec, buffers = self.batch_spec, self._lend_buffers()
        if isinstance(self.dataset, EpochListener) and self.cache is None:
            known = look_ahead(self, 1)
            self.dataset.epoch_begins(None if known is None else known[0])
        if isinstance(self.dataset, IterableDataset):
            return StreamEpoch(self, spec, order, buffers)
        assembly = native_assembly(spec, self.dataset, order.key, buffers)
        if assembly is None:
            assembly = SampleAssembly(spec, self._prepared, self.num_workers, buffers, arrays=order.is_array)
        if isinstance(assembly, TensorAssembly) and self._cheap(assembly):
            return GatherEpoch(order, assembly)
        if self.num_workers == 0:
            return InlineEpoch(order, assembly)
        return thread_epoch(self, order, assembly, self._lend_pool(order))

    @property
    def batch_spec(self) -> BatchSpec:
        """What is needed to make the batches of this loader."""
        sampler = self._index_sampler
        size = sampler.batch_size if type(sampler) is BatchSampler else self.batch_size
        return BatchSpec(
            self.collate_fn,
            auto_collation=self._auto_collation,
            batch_size=size,
            drop_last=self.drop_last,
            transform=self.transform,
            on_error=self.on_error,
            errors=self.errors,
            pin_device=self._pin_device,
            cache=self._cache,
            lookahead=type(sampler) is BatchSampler and type(sampler.sampler) in KNOWN_SAMPLERS,
        )

    @property
    def _reuses(self) -> bool:
        """Whether freed memory is kept for samples to come: nobody has to make do with so much of it."""
        return self._memory.limit is None

    @property
    def _tunes(self) -> bool:
        """Whether the number of workers may change: it was left to the loader, and samples do not show it."""
        own = self.worker_init_fn is not None or isinstance(self.dataset, IterableDataset)
        return self._auto_workers and not own and not is_remote(self.dataset)

    def _open_cache(self) -> None:
        if self.cache is not None and self._cache is None:
            warn_of_randomness(self.dataset)
            self._cache = LoaderCache(self, self.cache)

    def _plan_cache(self, draws: tuple[bool, bool], *, resumed: bool) -> None:
        if self._cache is not None:
            self._memory.begin(self._cache.store)
            self._cache.begin(self, draws, resumed=resumed)

    @property
    def _prepared(self) -> Any:
        """The dataset as workers see it."""
        store = None if self._cache is None else self._cache.store
        if store is None and self.transform is None:
            return self.dataset
        return CachedView(self.dataset, store, self.transform, "auto" if self.cache is None else self.cache.keep)

    def _cheap(self, assembly: TensorAssembly) -> bool:
        """Whether gathering a batch costs less than handing it from thread to thread."""
        if self._pin_device is not None:
            return False
        size = (self.batch_size or 1) * assembly.sample_bytes
        return self.num_workers == 0 or (self._auto_workers and size < _WORTH_A_THREAD)

    def _process_epoch(self, order: Order) -> ProcessEpoch:
        return ProcessEpoch(
            self,
            order,
            self._lend_pool(order),
            keeper=self._keeper,
        )

    def _lend_pool(self, order: Order) -> Any:
        """Give the pool of workers: a new one, or the one that persists."""
        pool = self._pool
        if pool is not None and not pool.closed:
            return pool
        pool = self._start_pool(order.base_seed)
        if self.persistent_workers:
            self._pool, self._keeper = pool, PoolOwner(pool)
        return pool

    def _start_pool(self, seed: int) -> ThreadPool | ProcessPool:
        if self.by_processes:
            # What pins memory is this process; the workers' dataset is seen through the cache already.
            spec = replace(self.batch_spec, errors=[], pin_device=None, cache=None, lookahead=False)
            task = WorkerTask(
                spec, self._prepared, self.worker_init_fn, self.num_workers, seed, reuses=self._reuses
            )
            return ProcessPool(task, self.multiprocessing_context or torch.multiprocessing, self.spans)
        identity = WorkerIdentity(self.num_workers, seed, self.dataset, self.worker_init_fn)
        return ThreadPool(self.num_workers, identity, self.spans)

    def _warn_without_accelerator(self) -> None:
        if self.pin_memory and not torch.accelerator.is_available():
            warn_user(
                "'pin_memory' argument is set as true but no accelerator is found, "
                "then device pinned memory won't be used."
            )

    @property
    def _pin_device(self) -> str | None:
        """The kind of device that batches are page-locked for."""
        wanted = self.pin_memory or (self.device is not None and self.device.type == "cuda")
        if not wanted or not torch.accelerator.is_available():
            return None
        accelerator = torch.accelerator.current_accelerator()
        return None if accelerator is None or accelerator.type == "mps" else accelerator.type

    def _lend_buffers(self) -> Buffers:
        # In a fork, a thread that stayed behind may hold their lock.
        if self._buffers is None or self._buffers.process != os.getpid():
            self._buffers = Buffers(pin=self._pin_device is not None)
        return self._buffers

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration; threads and buffers are made again where they are needed."""
        tuning: list[str] = []
        return {
            **self.__dict__,
            "_pool": None,
            "_keeper": None,
            "_buffers": None,
            "_copies": None,
            "_cache": None,
            "_base_seed": None,
            "_iterator": None,
            "_moving": None,
            "_order": None,
            "_tuner": None,
            "_tuning": tuning,
            "_retuner": Retuner(tuning),
            "_recorder": Recorder(),
            "errors": list(self.errors),
            "restarts": list(self.restarts),
        }


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if operator.index(value) < 0:
        raise ValueError(f"{name} must be 0 or more, got {value}")
    return operator.index(value)
