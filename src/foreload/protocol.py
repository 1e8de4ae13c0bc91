"""The hooks between a dataset or sampler and the core, each a class to inherit from.

A dataset takes part in a hook by inheriting from its class; a method that merely has the same name is never
called. A hook may decline at run time: it then returns None (or False), and the dataset is treated as any other.

>>> class Squares(torch.utils.data.Dataset, EpochListener):
...     def __len__(self): return 4
...     def __getitem__(self, index): return index * index
...     def epoch_begins(self, order, key): print("loading", [int(index) for index in order])
>>> import foreload
>>> batches = list(foreload.DataLoader(Squares(), batch_size=2))
loading [0, 1, 2, 3]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from foreload import _native
from foreload._native import GatherJob, PythonJob
from foreload.checks import Array, Indices
from foreload.options import Keep, OnError

__all__ = [
    "ArraySampler",
    "Assembly",
    "Batch",
    "BatchMemory",
    "BatchOptions",
    "BlockStorage",
    "EpochListener",
    "GatherJob",
    "ImageForms",
    "LoaderDefaults",
    "NativeBatches",
    "OrderBlocks",
    "OrderStart",
    "PythonJob",
    "SampleCache",
    "SampleSource",
    "SampleStore",
    "TwoStage",
    "TwoStageBatches",
    "UserCode",
]


class Batch(NamedTuple):
    """One batch in the making: a job for the workers, and what returns the batch once the job is done."""

    job: _native.Job
    take: Callable[[], Any]  # raises what went wrong


class Assembly(Protocol):
    """The way in which the batches of one epoch are made."""

    @property
    def depth(self) -> int | None:
        """Batches to have in the making; None if torch's prefetch_factor x num_workers is right."""
        ...

    def start(self, indices: Any) -> Batch:
        """Prepare the batch of these samples, without doing any of the work yet.

        Raises:
            IndexError: a sample is not there.
        """
        ...


class BatchMemory(Protocol):
    """Memory for batches, which is reused once a batch is gone; see :class:`foreload.batch.buffers.Buffers`."""

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Lend an uninitialised contiguous tensor."""
        ...

    def take_bytes(self, size: int) -> Array:
        """Lend ``size`` bytes (uint8)."""
        ...


class SampleStore(Protocol):
    """The samples that a cache holds."""

    @property
    def native(self) -> _native.Store:
        """The native store, for native code to look samples up in."""
        ...


class SampleCache(Protocol):
    """A loader's cache, as far as native code uses it."""

    @property
    def store(self) -> SampleStore:
        """The samples that it holds."""
        ...

    @property
    def forms(self) -> Array:
        """The form in which each image of an :class:`ImageForms` dataset is kept (uint8)."""
        ...


class BatchOptions(Protocol):
    """The options of a loader that its batches depend on; see :class:`foreload.batch.spec.BatchSpec`."""

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """Makes a batch of a list of samples."""
        ...

    @property
    def auto_collation(self) -> bool:
        """Whether samples are put together in batches."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Samples per batch; None if a batch sampler of the user's own decides."""
        ...

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """Applied to each sample after the cache."""
        ...

    @property
    def on_error(self) -> OnError:
        """The way to handle a sample that cannot be loaded: raise, skip or replace."""
        ...

    @property
    def errors(self) -> list[Any]:
        """The records of samples that failed (:class:`foreload.batch.failure.SampleError`)."""
        ...

    @property
    def pin_device(self) -> str | None:
        """The kind of device that batches are page-locked for; None: they are not."""
        ...

    @property
    def device(self) -> torch.device | None:
        """The device that batches are delivered on; None: as they were made."""
        ...

    @property
    def cache(self) -> SampleCache | None:
        """The loader's cache, if it has one."""
        ...

    @property
    def lookahead(self) -> bool:
        """Whether the order of samples is known ahead of use."""
        ...


class NativeBatches:
    """A dataset that can make whole batches itself, such as by native code."""

    is_held = False  # whether it makes them of what is in memory, so that a cache keeps nothing

    def batch_assembly(self, spec: BatchOptions, key: tuple[int, int], buffers: BatchMemory) -> Assembly | None:
        """Return what makes the batches of one epoch; None to have samples loaded one by one.

        Only called for automatic batching without a ``transform`` of the loader's own. The rest of ``spec`` is for
        the dataset to honour: decline if it asks for a ``collate_fn``, a cache or an error policy that you lack.

        Args:
            spec: what the batches are to be like.
            key: (seed, epoch) of random transforms.
            buffers: memory for the batches.
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method batch_assembly(spec, key, buffers)")


class TwoStage:
    """A dataset that loads a sample in two stages, of which the cache keeps the first."""

    def prepare_sample(self, index: int, keep: Keep = "auto") -> Any:
        """Load the part of a sample that is the same in each epoch, for the cache to keep.

        Args:
            index: of the sample, from 0 on.
            keep: in which form to load it, if the dataset knows several.
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method prepare_sample(index, keep)")

    def finish_sample(self, index: int, prepared: Any) -> Any:
        """Make the sample of what :meth:`prepare_sample` returned, by random transforms for instance."""
        raise NotImplementedError(f"{type(self).__name__} must have a method finish_sample(index, prepared)")


class TwoStageBatches(TwoStage):
    """A dataset that loads the first stage of several samples faster together, while it has ``__getitems__``."""

    def prepare_samples(self, indices: Sequence[int], keep: Keep = "auto") -> Sequence[Any]:
        """Load the first stage of several samples, as :meth:`prepare_sample` does for one."""
        raise NotImplementedError(f"{type(self).__name__} must have a method prepare_samples(indices, keep)")


class ImageForms(TwoStage):
    """A dataset of images, of which the cache keeps each as its file's bytes, as planes or as pixels.

    ``prepare_sample(index, "decoded")`` returns ``(pixels, target)``.
    """

    def form_costs(self) -> Array:
        """Return what loading each image has cost so far: 5 x images, 0 if nothing is known yet.

        The rows are seconds to read, seconds to decode, bytes of the file, pixels, and whether it has planes.
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method form_costs()")


class BlockStorage(TwoStage):
    """A dataset whose samples are stored in blocks, which :class:`foreload.Stream` reads as a whole."""

    def storage_blocks(self, size: int) -> Sequence[int] | Indices:
        """Return the first sample of each block: numbers that rise from 0.

        Blocks of ``size`` samples or fewer are shuffled well; larger ones should have a reason.
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method storage_blocks(size)")

    def read_many(self, indices: Sequence[int]) -> Sequence[Any]:
        """Load the first stage of several neighbours; in place of one that fails, its exception."""
        raise NotImplementedError(f"{type(self).__name__} must have a method read_many(indices)")


class SampleSource:
    """A dataset that knows where its samples come from."""

    @property
    def is_remote(self) -> bool:
        """Whether samples come from a server: a loader then asks for many at a time, well ahead of need."""
        return False

    def fingerprint(self) -> str | None:
        """Return a name of the present content, which tells whether a spill folder is of the same data.

        None: have it made of the dataset's class, code, attributes and the files that these name (docs/cache.md).
        """
        return None


class LoaderDefaults:
    """A dataset with defaults for arguments that a loader is not given."""

    @property
    def default_collate(self) -> Callable[[Any], Any] | None:
        """The ``collate_fn``; None: torch's."""
        return None

    def seeded_sampler(self, seed: int) -> torch.utils.data.Sampler[int] | None:
        """Return the sampler for ``shuffle=True, seed=seed``; None: :class:`foreload.order.KeyedSampler`."""
        return None

    def check_order(self) -> None:
        """Warn if the dataset should not be loaded in torch's order; a loader that does so calls this."""


class UserCode:
    """A dataset that calls code of the user's: transforms, or another dataset."""

    def user_code(self) -> Iterable[Any]:
        """Return that code: functions, callable objects and datasets.

        Threads share the dataset only if they may share all of these too.
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method user_code()")


class EpochListener:
    """A dataset that is told when an epoch begins."""

    def epoch_begins(self, order: Indices | None, key: tuple[int, int]) -> None:
        """Take note of the order of the epoch that begins: its indices, or None if they are not known ahead.

        Called in the process of the loader, if that has no cache, and for the copy in each worker process whose
        samples' random numbers are keyed; that one is not told the order.

        Args:
            order: the indices.
            key: (seed, epoch) of random numbers.
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method epoch_begins(order, key)")


class OrderStart(Protocol):
    """The place at which an epoch goes on; see :class:`foreload.order.resume.Start`."""

    @property
    def drawn(self) -> Any:
        """The :attr:`OrderBlocks.drawn` of the order to go on with; None for a new order."""
        ...

    @property
    def prefix(self) -> int:
        """Positions of the whole order that were delivered before."""
        ...


class OrderBlocks(Protocol):
    """An iterator over an epoch's indices in arrays, from its start on."""

    @property
    def each(self) -> int:
        """Positions of the whole order for one index here: the number of ranks that share it."""
        ...

    @property
    def drawn(self) -> Any:
        """The values that the order is made from, to be saved in a checkpoint."""
        ...

    def __iter__(self) -> Iterator[Indices]:
        """Return the iterator itself."""
        ...

    def __next__(self) -> Indices:
        """Return the next block."""
        ...

    def peek(self) -> Indices:
        """Return all indices that are still to come, which iteration yields all the same."""
        ...


class ArraySampler:
    """A sampler that yields an epoch's indices as arrays, and goes on with a checkpoint's order."""

    def order_blocks(self, start: OrderStart) -> OrderBlocks | None:
        """Return the indices of this epoch from ``start`` on; None to have the sampler iterated."""
        raise NotImplementedError(f"{type(self).__name__} must have a method order_blocks(start)")

    def restore_drawn(self, drawn: Any) -> None:
        """Restore what later epochs are made from, as :attr:`OrderBlocks.drawn` of a checkpoint has it.

        Raises:
            ValueError: that is of another sampler or dataset.
        """
