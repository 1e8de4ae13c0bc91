"""A dataset around another one, whose threads load the next samples ahead."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

from foreload._torch import wrapper_kind
from foreload.batch.collated import own_getitems
from foreload.batch.generators.keyed import loading
from foreload.checks import Indices, check_bool, check_int, inherits
from foreload.datasets.prefetch.read_ahead import ReadAhead, places
from foreload.datasets.rows import gather_samples, is_in_memory
from foreload.order.index import as_indices, position_of
from foreload.protocol import EpochListener

__all__ = ["AsyncPrefetchDataset"]


class AsyncPrefetchDataset(Dataset[Any], EpochListener):
    """A map-style dataset whose next samples are loaded ahead by threads.

    The order is that of the epoch in foreload's DataLoader, or what :meth:`ahead` was told; in a stock DataLoader
    it is the rest of the batch that is being loaded, and where indices go up or down by equal steps, the ones that
    follow. An unexpected sample is loaded when it is asked for.

    Useful where loading waits for something (a disk, a network, a decoder that lets go of the interpreter's lock)
    and nothing else loads ahead. The dataset must be safe to call from several threads. Each process has threads
    of its own, started when they are first needed; they end with this object. Copies and pickles start empty.

    What is in memory is not loaded ahead, since handing it to a thread takes longer than loading it. The batches
    of a ``TensorDataset``, a tensor, a :class:`~foreload.CachedDataset`, a ``Subset`` of these, or a class whose
    ``__getitem__`` is ``return self.data[index]`` (or a tuple of several of these) are gathered natively; lists
    and arrays are indexed in the calling thread. In a stock DataLoader, other samples are loaded there too once
    they have been seen to take less than 50 us each, until one takes longer. Which thread loads a sample never
    changes the random numbers that it draws.

    Args:
        dataset: the dataset to wrap. Its attributes are found, and set, here too.
        queue_size: the most samples that are loaded, or being loaded, before they are asked for.
        num_workers: how many threads.
        direct_io: True: set ``direct_io`` of the dataset, or of those that it wraps, so that they read past the
            page cache. It stays set.

    Raises:
        TypeError: ``dataset`` is not map-style, or an argument is of another type.
        ValueError: an argument is invalid, or ``direct_io`` is asked of a dataset without it.

    Warns:
        UserWarning: ``direct_io`` is not possible: the file system has no O_DIRECT, or files are on a server.

    An exception in the dataset is raised when its sample is asked for. If you change the dataset while samples
    may be loaded ahead, call :meth:`close`, or set its attributes through this object, which drops them too; so
    does an epoch of foreload's DataLoader when it begins. A dataset that makes batches in a way of its own
    (``__getitems__``) is left to make them. In a stock DataLoader, random numbers follow from
    ``torch.initial_seed()`` and the number of samples asked for before: seeding again does not take them back.
    Without worker processes, and for parts of a dataset, they follow also from how many datasets of this class
    were built since one was asked for a sample. Inside another dataset, such as ``ConcatDataset``, samples draw
    other numbers than where the whole is wrapped, and parts other numbers than each other.

    >>> squares = AsyncPrefetchDataset([i * i for i in range(5)], queue_size=2)
    >>> [squares[i] for i in range(5)]
    [0, 1, 4, 9, 16]
    """

    def __init__(
        self, dataset: Any, queue_size: int = 10, num_workers: int = 2, *, direct_io: bool = False
    ) -> None:
        is_map = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if isinstance(dataset, IterableDataset) or not is_map:
            raise TypeError(
                f"dataset must be map-style, with __getitem__ and __len__; {type(dataset).__name__} is not"
            )
        own = {
            "dataset": dataset,
            "queue_size": check_int("queue_size", queue_size, 1),
            "num_workers": check_int("num_workers", num_workers, 1),
            "_place": places.take(),
        }
        self.__dict__.update(own)  # the dataset may have attributes of these names
        for reading in list(_reading(dataset)) if check_bool("direct_io", direct_io) else []:
            reading.direct_io = True
        self._reader = self._begin()

    def _begin(self) -> ReadAhead:
        return ReadAhead(self, self.dataset, self.queue_size, self.num_workers, self._place)

    def _here(self) -> ReadAhead:
        if self._reader.process != os.getpid():
            # In a fork, its threads and the locks that they hold belong to the parent.
            self._reader = self._begin()
        return self._reader

    def ahead(self, indices: Iterable[int]) -> None:
        """Set the order in which samples will be asked for; it replaces an earlier one.

        Nothing is loaded before the first of it is asked for.

        Raises:
            TypeError: ``indices`` are not all ints.
        """
        self._here().look_ahead(as_indices(indices))

    def close(self) -> None:
        """End the threads, and drop what they have loaded; the next request starts them again."""
        reader, self._reader = self._reader, self._begin()
        reader.close()

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        """Return a sample, loaded ahead or now."""
        position = position_of(index)
        if position is None or is_in_memory(self.dataset):
            return self.dataset[index]
        return self._here().get(position, is_part=self._is_part())

    @own_getitems
    def __getitems__(self) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Return the samples of a batch, loaded in parallel, or gathered if they are in memory."""
        return self._load_batch

    def _load_batch(self, indices: Sequence[Any]) -> Sequence[Any]:
        if not inherits(self, AsyncPrefetchDataset, "__getitem__"):
            return [self[index] for index in indices]
        gathered = gather_samples(self.dataset, indices)
        if gathered is not None:
            return gathered
        dataset = self.dataset
        if is_in_memory(dataset):
            return [dataset[index] for index in indices]
        if _makes_batches(dataset):
            samples: Sequence[Any] = dataset.__getitems__(indices)
            return samples
        positions = [position for index in indices if (position := position_of(index)) is not None]
        if len(positions) < len(indices):
            return [self[index] for index in indices]
        return self._here().get_batch(positions, is_part=self._is_part())

    def _is_part(self) -> bool:
        """Whether a loader asks for samples of a dataset around this one, or asks in a way that does not tell."""
        worker = get_worker_info() if loading.dataset is None else None
        return (loading.dataset if worker is None else worker.dataset) is not self

    def epoch_begins(self, order: Indices | None, key: tuple[int, int]) -> None:
        """Load ahead in the order of the epoch that a foreload DataLoader begins, if it is known."""
        reader = self._here()
        if order is None or is_in_memory(self.dataset):
            reader.forget()
        else:
            reader.look_ahead(np.asarray(order, np.int64), key)

    def __getattr__(self, name: str) -> Any:
        """Return the dataset's own attribute."""
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, of the dataset if that has it, and drop what has been loaded ahead.

        Attributes set in a subclass are its own.
        """
        if name == "_reader":
            self.__dict__[name] = value
            return
        is_own = type(self) is not AsyncPrefetchDataset or name in self.__dict__ or "dataset" not in self.__dict__
        if is_own or not hasattr(self.dataset, name):
            super().__setattr__(name, value)
        else:
            setattr(self.dataset, name, value)
        if "_reader" in self.__dict__:
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without threads and loaded samples."""
        return {name: value for name, value in self.__dict__.items() if name != "_reader"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start with nothing loaded."""
        self.__dict__.update(state)
        self._reader = self._begin()


def _makes_batches(dataset: Any) -> bool:
    """Whether a user's class loads whole batches itself, perhaps others than of its single samples."""
    while wrapper_kind(dataset) is Subset:
        dataset = dataset.dataset
    is_known = wrapper_kind(dataset) is not None or type(dataset).__module__.partition(".")[0] == "foreload"
    return not is_known and callable(getattr(dataset, "__getitems__", None))


def _reading(dataset: Any) -> Iterator[Any]:
    """Yield the datasets that read files: this one, or those that it wraps.

    Raises:
        ValueError: one of them has no ``direct_io``.
    """
    inner = getattr(dataset, "datasets", None)
    if "direct_io" in getattr(dataset, "__dict__", {}) or hasattr(type(dataset), "direct_io"):
        yield dataset
    elif isinstance(inner, (list, tuple, dict)) and inner:
        for part in inner.values() if isinstance(inner, dict) else inner:
            yield from _reading(part)
    elif hasattr(dataset, "dataset"):
        yield from _reading(dataset.dataset)
    else:
        raise ValueError(
            f"direct_io=True: {type(dataset).__name__} has no attribute 'direct_io'; wrap a dataset that reads "
            "files itself and has one, or leave direct_io=False"
        )
