"""The drop-in ``DataLoader``: arguments, properties and delegation."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex, TypeVar

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from foreload.batch.failure import OnError, check_on_error
from foreload.batch.unfinished import finisher
from foreload.cache.budget import MemoryBudget
from foreload.cache.wrappers import root_of
from foreload.checks import check_bool, check_generator, check_int, check_seed, known_length
from foreload.datasets.native import finishes_on_device
from foreload.device.stream import DeviceTransform, check_device, check_transform, side_stream
from foreload.epochs.loader.order import seeded_order, share_of
from foreload.epochs.loader.own_options import OwnOptions, check_sample_transform
from foreload.frameworks import AdaptableLoader, given_workers, origin_of
from foreload.options import Cache, parse_bytes
from foreload.order.skip import Skip, check_skip
from foreload.protocol import LoaderDefaults
from foreload.record.units import quantity
from foreload.threads import are_over
from foreload.workers.spec import Workers, check_left_to_torch, check_workers

if TYPE_CHECKING:
    from foreload.record.stats import Stats
    from foreload.report.report import Report

__all__ = ["DataLoader"]

T_co = TypeVar("T_co", covariant=True)


# The attributes of what is open or recorded.
_MADE_ANEW = {"_iterator", "_fl_recorder", "_fl_running", "_fl_begun", "_fl_crew", "_fl_cursor", "_fl_lookahead"}
_MADE_ANEW |= {"_fl_moving", "_fl_open", "_fl_place", "_fl_turn"}


class DataLoader(AdaptableLoader[T_co]):
    """A drop-in ``torch.utils.data.DataLoader``: the same arguments, samples and order, loaded faster.

    What differs: ``num_workers`` is ``"auto"`` by default; images, tensors and other known datasets are loaded
    natively, by threads without the GIL; batches are assembled in place, in memory that is used again once nothing
    holds the batch. Code of the user's runs in processes with a copy of the dataset each, as in torch, or in the
    calling thread; in threads only if asked for.

    Args:
        dataset, batch_size, shuffle, sampler, batch_sampler, collate_fn, pin_memory, drop_last, timeout,
        worker_init_fn, multiprocessing_context, generator, prefetch_factor, persistent_workers,
        pin_memory_device, in_order: as in torch's DataLoader.
        num_workers: the number of workers; 0 loads in the calling thread. ``"auto"``: one per core, more if
            samples wait for something, none if a batch is cheaper to make than to hand over, or if loading changes
            the dataset (see :meth:`stats`). For samples on a server, ``ceil(768 / batch_size)`` threads, from 2 to
            32, each of which requests the samples of a batch at once.
        workers: ``"threads"`` share the dataset, and ``__getitem__`` must allow that; ``"processes"`` have a copy
            each; ``"ray"`` are actors on a Ray cluster, with one CPU and a copy each, as many as fit if
            ``num_workers`` is ``"auto"``; ``"auto"``: threads only for what is known to allow them, and for
            datasets with an attribute ``thread_safe = True`` (see :func:`foreload.check_threads`).
        seed: makes the order (with ``shuffle=True``) and random numbers a function of (seed, epoch, index), the
            same for any number and kind of workers: those of foreload's transforms, and those that are drawn from
            the global generators of torch, NumPy and Python. Each iteration is the next epoch; see
            :meth:`set_epoch`.
        cache: memory for samples, shared by all workers: bytes, ``"8GiB"``, ``"50%"``, or a
            :class:`~foreload.Cache`. Which samples it keeps is planned from the order, which is known ahead.
        transform: applied to each sample after the cache; random augmentation belongs here.
        device: deliver batches on this device. For CUDA, they are page-locked and copied on a stream of their own
            while the loop works on those before, as with :class:`~foreload.PrefetchLoader`.
        device_depth: the number of batches on the device ahead of the one that the loop has.
        device_transform: called with each batch on ``device``, such as a :class:`foreload.transforms.Normalize`;
            what it returns is delivered.
        memory: limit for the cache and the batches made ahead together: bytes, ``"4GiB"``, or ``"50%"`` of the
            memory that this process may use. (Each worker process makes at least one batch ahead.) Even without a
            limit, the cache shrinks when memory runs short; see ``stats()["memory"]``.
        on_error: what happens to samples that cannot be loaded: ``"raise"``; ``"skip"`` makes their batch smaller;
            ``"replace"`` puts the next sample of the batch in their place. Failures are in :attr:`errors`.
        max_errors: the number of samples per epoch that may fail before that is an error all the same.
        max_restarts: the number of killed worker processes per epoch that are replaced, and their batches loaded
            again; 0 raises as torch does.
        distributed: whether ranks of ``torch.distributed`` share the samples, if ``seed=`` is given and no sampler
            is: each loads its own part, as many batches as every other. Parts are made equal as
            ``DistributedSampler`` does it: with ``drop_last`` by leaving samples out, otherwise by loading some
            twice. ``sampler`` is the order of all ranks.
        group: the ranks that share the samples, if not all do: a ``ProcessGroup``, a ``DeviceMesh`` such as
            ``mesh["dp"]`` or ``mesh["dp_replicate", "dp_shard"]``, or a pair (rank, number of ranks). Processes of
            the same rank in their groups, such as those of one tensor-parallel model, get the same batches, with
            the same random numbers. Needs ``seed=``. The rank is looked at now, not when an epoch begins.
        snapshot_every_n_steps: the number of batches after which workers send the state of a dataset that has
            one, as in torchdata's ``StatefulDataLoader``; 0: never. To go on, batches since then are loaded again.
        skip: steps and samples to leave out of what is still to come: a :class:`~foreload.Skip` or a list of them.
            The attribute may be changed between epochs. ``len(loader)`` counts what is left out too.

    Raises:
        ValueError, TypeError: as torch does, and for arguments that make no sense. An exception in the dataset
            reaches the loop unchanged, with a note that names the sample.

    Attributes:
        errors: the samples that failed, as :class:`~foreload.batch.failure.SampleError`.
        published: the loader's name in ``foreload serve`` ("": its dataset's class); None: not published.

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
        device_depth: int = 2,
        device_transform: DeviceTransform | None = None,
        memory: SupportsIndex | str | None = None,
        on_error: OnError = "raise",
        max_errors: int = 100,
        max_restarts: int = 5,
        snapshot_every_n_steps: int = 1,
        skip: Skip | Sequence[Skip] | None = None,
        distributed: bool = True,
        group: Any = None,
    ) -> None:
        origin = origin_of(num_workers, dataset, collate_fn)
        if origin is not None:
            read = seed, cache, transform, device, device_transform, memory, workers, skip
            seed, cache, transform, device, device_transform, memory, workers, skip = origin.options_for(*read)
        num_workers, prefetch_factor = given_workers(num_workers, prefetch_factor)
        self._fl_draws_itself = sampler is batch_sampler is None and not isinstance(dataset, IterableDataset)
        self._foreload = OwnOptions(
            check_workers(workers, num_workers, multiprocessing_context),
            None if seed is None else check_seed(seed),
            check_bool("distributed", distributed),
            share_of(group, seed, distributed, in_order, draws=self._fl_draws_itself or origin is not None),
            None if cache is None else Cache.of(cache),
            check_sample_transform(dataset, transform, cache),
            None if device is None else check_device(device),
            check_int("device_depth", device_depth, least=1),
            check_transform(device_transform, device),
            memory,
            check_on_error(on_error),
            check_int("max_errors", max_errors, least=0),
            check_int("max_restarts", max_restarts, least=0),
            check_int("snapshot_every_n_steps", snapshot_every_n_steps, least=0),
        )
        if self._fl_draws_itself:
            sampler, shuffle = seeded_order(dataset, shuffle, self._foreload.seed)
        is_plain = collate_fn is None and not (batch_size is None and batch_sampler is None)
        if is_plain and isinstance(root := root_of(dataset), LoaderDefaults):
            collate_fn = root.default_collate
        self._fl_errors, self._fl_restarts, self._fl_deepens = [], [], prefetch_factor is None
        self._fl_memory = MemoryBudget(None if memory is None else parse_bytes(memory, name="memory"))
        self._fl_auto_workers, self._fl_prefetch_given = num_workers == "auto", prefetch_factor is not None
        self._fl_take_skip(check_skip(skip, dataset))
        self._fl_reset()
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            self._fl_first_count(dataset) if isinstance(num_workers, str) else int(num_workers),
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            check_generator(generator),
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self.prefetch_factor = prefetch_factor if self._fl_auto_workers else self.prefetch_factor  # may be copied
        if prefetch_factor is not None:  # torch's own errors come first
            check_int("prefetch_factor", 1 if prefetch_factor is True else prefetch_factor, least=1)
        if origin is not None:
            self.go_on_from(origin)
        self._fl_check_left_to_torch()

    def _fl_check_left_to_torch(self) -> None:
        if self._fl_is_left_to_torch:
            names = ("seed", "cache", "transform", "device", "memory")
            options = self._foreload
            given = [name for name in names if getattr(options, name) is not None]
            given += ["workers"] if options.workers != "auto" else []
            given += ["on_error"] if options.on_error != "raise" else []
            check_left_to_torch(given + (["skip"] if self._fl_skip else []))

    def _fl_constructor(self) -> Callable[..., None]:
        return DataLoader.__init__

    def check_worker_number_rationality(self) -> None:
        """Warn of more worker processes than cores, as torch does; threads may wait without a core."""
        workers = self._foreload.workers
        is_given = workers == "auto" and not self._fl_auto_workers
        if workers == "processes" or (is_given and self._fl_crew.kind("auto", self._fl_count) == "processes"):
            super().check_worker_number_rationality()

    def __repr__(self) -> str:
        """Describe the dataset, the batches and the workers."""
        if "_fl_crew" not in vars(self):  # of a derived class that calls no constructor
            return object.__repr__(self)
        dataset: Any = self.dataset
        options = self._foreload
        length = None if isinstance(dataset, IterableDataset) else known_length(dataset)
        size = "" if length is None else f" of {quantity(length, 'sample', 'samples')}"
        about = [f"{type(dataset).__name__}{size}"]
        about += [*self._fl_describe_order(), *([f"seed={options.seed}"] if options.seed is not None else [])]
        about += [] if options.distributed else ["distributed=False"]
        about += [] if options.group is None else [f"group={options.group}"]
        about.append(f"num_workers={self._fl_describe_workers()}")
        names = ("cache", "memory", "device")
        about += [f"{name}={value}" for name in names if (value := getattr(options, name)) is not None]
        return f"{type(self).__name__}({', '.join(about)})"

    def _fl_describe_workers(self) -> str:
        workers = self._foreload.workers
        is_open = workers == "auto" and self._fl_crew.choice is None
        if is_open and self._fl_auto_workers:
            return "'auto'"
        if self.num_workers == 0 or is_open:  # "2 (auto)" would read as if their number were chosen
            return str(self.num_workers)
        return f"{self.num_workers} ({self._fl_crew.kind(workers, self.num_workers)})"

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, here and in samplers and iterable datasets that have ``set_epoch``."""
        epoch = check_int("epoch", epoch, least=0)
        self.count_from(epoch)
        self._fl_set_sampler_epoch(epoch)

    def close(self) -> None:
        """End persistent workers, and free the cache and idle buffers. The loader can be iterated again."""
        self.__dict__["_iterator"] = None
        self._fl_begun = None
        self._fl_close()

    def __enter__(self) -> Self:
        """Return the loader, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the loader."""
        self.close()

    def stats(self) -> Stats:
        """Return figures of all epochs so far, at any time and from any thread: throughput, waits, stages, memory,
        cores, failures and workers. :class:`~foreload.record.stats.Stats` lists them.
        """
        from foreload.record.stats import collect

        return collect(self._fl_facts())

    def report(self) -> Report:
        """Return a report to print, or to show in a notebook: where time went, the bottleneck, what to change."""
        from foreload.report.report import Report

        return Report(self.stats())

    def publish(self, *, name: str | None = None) -> Self:
        """Make this loader visible to ``foreload serve`` on this machine; see :func:`foreload.export.publish`."""
        from foreload.export.publisher import publish

        return publish(self, name=name)

    def __iter__(self) -> Any:
        """Begin an epoch."""
        if self._fl_published is not None:
            from foreload.export.publisher import renew

            renew(self, self._fl_published)
        if self._fl_is_left_to_torch:
            self._fl_check_left_to_torch()  # whose attributes may have been set since
            if self._fl_auto_workers:
                self._fl_set_count(0)
            return super().__iter__()
        if self._fl_moving is not None:
            self._fl_moving = self._fl_place = None
        self._fl_warn_of_ranks()
        # Before workers page-lock memory: CUDA does that on the device in use, which else would become the first.
        options = self._foreload
        stream = None if options.device is None else side_stream(options.device)
        epoch = self._fl_begun_or_next()
        self.check_worker_number_rationality()  # of those that have been chosen
        if self.persistent_workers:  # else it is as in torch the place of what derived classes put there
            # (When the interpreter exits, none persist, and what would free them later is gone by then.)
            self.__dict__["_iterator"] = None if are_over() else epoch
        transform = options.device_transform
        if options.device is not None and finishes_on_device(self.dataset):
            transform = finisher(options.on_error, epoch.errors, transform)
        if stream is None and transform is None:
            return epoch
        from foreload.device.ahead import MovedAhead, move_ahead

        moving = move_ahead(epoch, stream, self._fl_state, depth=options.device_depth, transform=transform)
        if isinstance(moving, MovedAhead):
            self._fl_moving, self._fl_place = weakref.ref(moving), moving.place
        return moving

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration, without what is open or recorded."""
        if "_fl_crew" not in vars(self):
            return dict(vars(self))
        state = {name: value for name, value in self.__dict__.items() if name not in _MADE_ANEW}
        return {**state, "_fl_errors": list(self._fl_errors), "_fl_restarts": list(self._fl_restarts)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the configuration; workers are chosen anew, for this process."""
        self.__dict__.update(state)
        if "_fl_auto_workers" not in state:
            return
        self._fl_set_count(self._fl_first_count(self.dataset) if self._fl_auto_workers else state["num_workers"])
        self._fl_moving = self._fl_place = self._fl_begun = None
        self._fl_reset()
