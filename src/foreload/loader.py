"""The drop-in DataLoader: its arguments, its properties, and what it hands on to the parts that do the work."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sized
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex, TypeVar

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from foreload.batch.failure import OnError, SampleError, check_on_error
from foreload.cache.budget import MemoryBudget
from foreload.cache.loader_cache import LoaderCache
from foreload.cache.view import unwrap
from foreload.checks import check_int, check_seed
from foreload.device import MovedAhead, check_device, side_stream
from foreload.epochs.cursor import resume, save
from foreload.epochs.source import EpochSource
from foreload.options import Cache, parse_bytes
from foreload.order.samplers import KeyedSampler
from foreload.protocol import LoaderDefaults
from foreload.record.spans import Spans
from foreload.record.stats import Stats, collect
from foreload.workers.crew import Crew, Workers, check_workers
from foreload.workers.processes import Restart

if TYPE_CHECKING:
    from foreload.report.report import Report

__all__ = ["DataLoader"]

T_co = TypeVar("T_co", covariant=True)


class DataLoader(EpochSource[T_co]):
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
        published: the name of this loader in ``foreload serve`` ("": its dataset's class); None: not published.

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
        self.workers = check_workers(workers, num_workers)
        self.seed = None if seed is None else check_seed(seed)
        is_shuffled = shuffle and sampler is None and batch_sampler is None
        if self.seed is not None and is_shuffled and not isinstance(dataset, IterableDataset):
            sampler, shuffle = _seeded_sampler(dataset, self.seed), None
        _check_transform(dataset, transform, cache)
        if collate_fn is None and not (batch_size is None and batch_sampler is None):
            root, _ = unwrap(dataset)
            collate_fn = root.default_collate if isinstance(root, LoaderDefaults) else None
        self.cache = None if cache is None else Cache.of(cache)
        self.transform = transform
        self.device = None if device is None else torch.device(device)
        if self.device is not None:
            check_device(self.device)
        self.memory = memory
        self.on_error = check_on_error(on_error)
        self.max_errors = check_int("max_errors", max_errors, least=0)
        self.max_restarts = check_int("max_restarts", max_restarts, least=0)
        self.snapshot_every_n_steps = check_int("snapshot_every_n_steps", snapshot_every_n_steps, least=0)
        self.errors: list[SampleError] = []
        self.restarts: list[Restart] = []
        self._memory = MemoryBudget(None if memory is None else parse_bytes(memory, name="memory"))
        self._auto_workers = num_workers == "auto"
        self._prefetch_given = prefetch_factor is not None
        self._deepens = prefetch_factor is None
        self._epoch = 0
        self.published: str | None = None
        self._resumed: dict[str, Any] | None = None
        self._moving: weakref.ref[MovedAhead] | None = None  # the epoch whose batches go to a device
        self._begin_anew()
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            self._first_count(dataset) if isinstance(num_workers, str) else int(num_workers),
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

    def check_worker_number_rationality(self) -> None:
        """Warn of more worker processes than cores, as torch does; threads that wait take none."""
        if self.workers == "processes":
            super().check_worker_number_rationality()

    def __repr__(self) -> str:
        """Say what is loaded, in which batches, and by which workers."""
        size = "" if isinstance(self.dataset, IterableDataset) else f" of {_length(self.dataset)} samples"
        about = [f"{type(self.dataset).__name__}{size}", f"batch_size={self.batch_size}"]
        about += [f"seed={self.seed}"] if self.seed is not None else []
        about.append(f"num_workers={self.num_workers} ({self._crew.kind(self.workers, self.num_workers)})")
        about += [
            f"{name}={value}"
            for name in ("cache", "memory", "device")
            if (value := getattr(self, name)) is not None
        ]
        return f"{type(self).__name__}({', '.join(about)})"

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration gives; the ones after it follow by themselves.

        It is passed on to a sampler (or batch sampler) that has ``set_epoch``, such as ``DistributedSampler``, and
        to an iterable dataset that has it, such as :class:`~foreload.Stream`.
        """
        self._epoch = epoch
        self._set_sampler_epoch(epoch)

    def _set_sampler_epoch(self, epoch: int) -> None:
        stream = self.dataset if isinstance(self.dataset, IterableDataset) else None
        for sampler in (self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None), stream):
            set_epoch = getattr(sampler, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)

    def close(self) -> None:
        """End persistent workers, let go of the cache and of free buffers. The loader can be iterated again."""
        self._iterator = None
        self._close()

    def __enter__(self) -> Self:
        """Return the loader, to be closed at the end of the block."""
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
        return self._state() if moving is None else dict(moving.state)

    def _state(self) -> dict[str, Any]:
        if self._cursor is None:
            return {"foreload": 1, "epoch": self._epoch, "finished": False, "given": []}
        return save(self._order_spec(), self._cursor)

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
        resumption = resume(self._order_spec(), state_dict)
        self._resumed = resumption.state
        self._epoch = resumption.epoch
        if resumption.sampler_epoch is not None:
            self._set_sampler_epoch(resumption.sampler_epoch)

    def stats(self) -> Stats:
        """Return what has happened so far: how fast batches came, how long the loop waited for them, what the
        workers did meanwhile, what that took of memory and cores; what failed, who loads, and why. It can be asked
        for at any time, from any thread. :class:`~foreload.record.stats.Stats` has every figure.
        """
        return collect(self._facts())

    def report(self) -> Report:
        """Return where the time went, what holds the loop back, what to change, and what that would give.

        ``print(loader.report())`` anywhere; in a notebook, or with rich, it is a table.
        """
        from foreload.report.report import Report

        return Report(self.stats())

    @property
    def spans(self) -> Spans:
        """What each worker did and when."""
        return self.recorder.spans

    @property
    def crew(self) -> Crew:
        """The workers."""
        return self._crew

    @property
    def sample_cache(self) -> LoaderCache | None:
        """The samples that are kept; None without ``cache=``, and before the first epoch."""
        return self._open.cache

    def publish(self, *, name: str | None = None) -> Self:
        """Make this loader visible to ``foreload serve`` on this machine; see :func:`foreload.export.publish`."""
        from foreload.export.publisher import publish

        return publish(self, name=name)

    def __iter__(self) -> Any:
        """Begin an epoch."""
        if self.published is not None:
            from foreload.export.publisher import renew

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

    def _get_iterator(self) -> Any:
        if isinstance(self.dataset, (IterDataPipe, MapDataPipe)):
            return super()._get_iterator()
        watch = self.recorder.begin()
        try:
            epoch = self._begin_epoch(watch)
        except BaseException:
            watch.end()
            raise
        watch.begun(epoch)
        return epoch

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration; what is open is made again."""
        anew = ("_open", "recorder", "_crew", "_cursor", "_moving", "_iterator")
        state = {name: value for name, value in self.__dict__.items() if name not in anew}
        choice = self._crew.choice
        return {**state, "errors": list(self.errors), "restarts": list(self.restarts), "_choice": choice}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin anew with the same configuration, and workers chosen alike."""
        choice = state.pop("_choice")
        self.__dict__.update(state)
        self._iterator = self._moving = None
        self._begin_anew()
        self._crew.choice = choice


def _seeded_sampler(dataset: Any, seed: int) -> Any:
    own = dataset.seeded_sampler(seed) if isinstance(dataset, LoaderDefaults) else None
    return KeyedSampler(dataset, seed) if own is None else own


def _check_transform(dataset: Any, transform: Any, cache: Any) -> None:
    if isinstance(dataset, IterableDataset) and not (cache is None and transform is None):
        raise ValueError("cache and transform need a map-style dataset, whose samples have indices")
    if transform is not None and not callable(transform):
        raise TypeError(f"transform must be callable, got {transform!r}")


def _length(dataset: Any) -> str:
    return f"{len(dataset):,}" if isinstance(dataset, Sized) else "?"
