"""A map-style dataset as a stream: read in the order of storage, shuffled through a buffer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any, SupportsIndex

import numpy as np
import torch

from foreload.checks import Indices, check_state_int, definition_depth
from foreload.order.shuffle import ReaderSpec, ShuffledStream, Source, order_of
from foreload.protocol import BlockStorage, UserCode

__all__ = ["Stream", "Streamable", "runs_of"]

# The most samples that are read together.
_TOGETHER = 256

# Blocks that the buffer mixes. They lie far apart: files are often sorted, by class for instance.
_MIXED = 16

# The fewest blocks of an epoch, if it has as many samples.
_BLOCKS = 64


class Stream(ShuffledStream, UserCode):
    """The samples of a map-style dataset in the order in which they are stored, shuffled through a buffer.

    The dataset is cut into blocks of neighbours (a sixteenth of the buffer, or what the dataset stores together,
    such as the rows of a chunk), of which several are read at once. The order of the blocks is random, and samples
    go through a buffer, from which a random one is drawn each time. Memory holds the buffer and what is read at
    once, a quarter of the buffer or 256 samples at most, however large the data are.

    The order is a pure function of (seed, epoch) and of the number of ranks and workers, each of which reads its
    own part: every sample comes exactly once, and no two of them differ by more than one sample. Where the ranks
    of a distributed run must make the same number of steps, leave out the last batch, or let them join
    (``torch.distributed.algorithms.Join``).

    Of a foreload dataset the buffer holds what is read (the file's bytes, a text); its transforms run when a
    sample leaves it. Of any other dataset it holds samples.

    The iterator has ``state_dict`` and ``load_state_dict``: a :class:`foreload.DataLoader` goes on in the middle
    of an epoch with exactly the samples that would have come, for the same number of workers and ranks. The
    samples of the buffer are read again for that, and the rest of what was read with the last of them. What is
    random in a transform is drawn anew. As with torch's ``DistributedSampler``, call :meth:`set_epoch` before each
    epoch, and before one goes on.

    Args:
        dataset: with ``__len__`` and ``__getitem__``, and ``__getitems__`` if it can load several at once.
        buffer: how many samples each worker holds.
        seed: of the order. None: drawn for each epoch from torch's global generator, as the seed of workers is
            (persistent workers keep theirs; then the epoch alone changes the order); where there are several
            ranks, which must agree, 0.
        shuffle: if not, samples come in the order in which they are stored, each worker's part by itself.
        num_replicas, rank: as :class:`torch.utils.data.DistributedSampler` has them; by default those of
            ``torch.distributed``. Pass 1 and 0 with tools that split a dataset's samples among ranks themselves.

    Raises:
        ValueError, TypeError: an argument is invalid.

    >>> stream = Stream(range(100), buffer=10, seed=0)
    >>> order = list(stream)
    >>> sorted(order) == list(range(100)), order == list(range(100)), order == list(stream)
    (True, False, True)
    >>> list(Stream("abcdef", shuffle=False, num_replicas=2, rank=1))
    ['d', 'e', 'f']
    """

    def __init__(
        self,
        dataset: Any,
        *,
        buffer: SupportsIndex = 1000,
        seed: SupportsIndex | None = None,
        shuffle: bool = True,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"dataset must be map-style, with __len__ and __getitem__, got {type(dataset).__name__}"
            )
        super().__init__(buffer, seed, shuffle, num_replicas, rank)
        self.dataset = dataset

    def __len__(self) -> int:
        """Count the samples of this rank."""
        rank, ranks = self._ranks()
        count = len(self.dataset)
        return count * (rank + 1) // ranks - count * rank // ranks

    def user_code(self) -> Iterable[Any]:
        """Return the dataset; see :class:`foreload.protocol.UserCode`."""
        return (self.dataset,)

    def _open(self, reading: ReaderSpec) -> Source:
        return _Blocks(self.dataset, self._blocks(), reading)

    def _blocks(self) -> Indices:
        count = len(self.dataset)
        size = max(1, min(self.buffer // _MIXED, count // _BLOCKS))
        dataset: Any = self.dataset
        own = isinstance(dataset, BlockStorage)
        starts = np.asarray(dataset.storage_blocks(size) if own else runs_of(0, count, size), np.int64)
        if own and definition_depth(dataset, "__len__") < definition_depth(dataset, "storage_blocks"):
            starts = starts[starts < count]  # a subclass has left samples out
        rising = starts.ndim == 1 and bool((np.diff(starts, prepend=-1, append=count) > 0).all())
        if count and not (rising and len(starts) and starts[0] == 0):
            raise ValueError(
                f"{type(self.dataset).__name__}.storage_blocks must return the first sample of each block: "
                f"numbers that rise from 0, all of them less than {count}"
            )
        return starts


def runs_of(begin: int, end: int, size: int) -> Indices:
    """Return the first of each run of ``size`` samples (int64).

    >>> runs_of(10, 15, 2)
    array([10, 12, 14])
    """
    return np.arange(begin, end, size, dtype=np.int64)


class _Blocks:
    """One reader's part of the blocks: a range of the samples in the order of the blocks."""

    def __init__(self, dataset: Any, starts: Indices, reading: ReaderSpec) -> None:
        count = len(dataset)
        order = order_of(reading, len(starts))
        self._sizes = np.diff(starts, append=count)[order]
        self._count = count
        self._firsts = starts[order]
        self._ends = np.cumsum(self._sizes)
        readers, reader = reading.ranks * reading.workers, reading.rank * reading.workers + reading.worker
        self._at, self._until = count * reader // readers, count * (reader + 1) // readers
        self._together = max(1, min(_TOGETHER, reading.buffer // 4))
        self._load_many, self._finish = _ways(dataset)
        self.finishes = self._finish is not None
        self.names: Callable[[Sequence[int]], list[Any]] = list
        self._waiting: deque[tuple[int, Any]] = deque()  # samples, or why they failed

    def read(self) -> tuple[list[int], list[Any]]:
        """Return the next samples, read together, up to the first that failed."""
        if not self._waiting:
            if self._at == self._until:
                return [], []
            indices = self._indices(self._at, min(self._until, self._at + self._together))
            self._waiting.extend(zip(indices, self._load(indices), strict=True))
        found: list[tuple[int, Any]] = []
        while self._waiting and not isinstance(self._waiting[0][1], Exception):
            found.append(self._waiting.popleft())
        self._at += max(1, len(found))
        if not found:
            index, error = self._waiting.popleft()
            raise _noted(index, error)
        return [index for index, _ in found], [sample for _, sample in found]

    def _indices(self, at: int, until: int) -> list[int]:
        """Return the samples at these positions."""
        indices: list[int] = []
        for block in range(int(np.searchsorted(self._ends, at, "right")), len(self._ends)):
            if at == until:
                break
            end = int(self._ends[block])
            stop = min(end, until)
            behind = int(self._firsts[block]) + int(self._sizes[block]) - end  # from a position to its sample
            indices += range(at + behind, stop + behind)
            at = stop
        return indices

    def finish(self, number: int, sample: Any) -> Any:
        """Transform a sample, if that is left to do."""
        if self._finish is None:
            return sample
        try:
            return self._finish(number, sample)
        except Exception as error:
            raise _noted(number, error) from error.__cause__

    def state(self, left: int) -> list[int]:
        """Return the position, and the number of samples."""
        return [self._at - left, self._count]

    def restore(self, state: list[int], names: list[int]) -> tuple[list[int], list[Any]]:
        """Resume there."""
        if not isinstance(state, (list, tuple)) or len(state) != 2:
            raise ValueError(f"the state's 'at' must be [position, samples], got {repr(state)[:100]}")
        at, count = state
        if count != self._count:
            raise ValueError(f"the state is of a dataset of {count} samples, but this one has {self._count}")
        self._at = check_state_int("at", at, self._at, self._until + 1)
        for name in names:
            check_state_int("held", name, 0, count)
        found: dict[int, Any] = {}
        stored = sorted(names)
        for begin in range(0, len(stored), self._together):
            indices = stored[begin : begin + self._together]
            found |= zip(indices, self._load(indices), strict=True)
        return list(names), [_checked(name, found[name]) for name in names]

    def _load(self, indices: Sequence[int]) -> Sequence[Any]:
        try:
            samples = self._load_many(indices)
            if len(samples) != len(indices):
                raise ValueError(f"read_many() returned {len(samples)} samples, but was asked for {len(indices)}")
        except Exception as error:  # of all of them; a loop that skips failures goes on after them
            return [error] * len(indices)
        return samples


def _ways(dataset: Any) -> tuple[Callable[[Sequence[int]], Sequence[Any]], Callable[[int, Any], Any] | None]:
    """Return a function that reads several samples, and one that finishes each of them later, if that is needed.

    If a subclass overrides ``__getitem__``, that makes the samples, and nothing is left to do.
    """
    own = min(definition_depth(dataset, "__getitem__"), definition_depth(dataset, "__getitems__"))
    if isinstance(dataset, BlockStorage) and definition_depth(dataset, "read_many") <= own:
        return dataset.read_many, dataset.finish_sample
    return (lambda indices: _load(dataset, indices)), None


def _load(dataset: Any, indices: Sequence[int]) -> Sequence[Any]:
    together = getattr(dataset, "__getitems__", None)
    if callable(together) and len(indices) > 1:
        try:
            samples = together(list(indices))
            return [_alone(samples[position]) for position in range(len(indices))]
        except Exception:  # load one by one, to find out which fails
            pass
    found: list[Any] = []
    for index in indices:
        try:
            found.append(dataset[index])
        except Exception as error:
            found.append(error)
    return found


def _alone(sample: Any) -> Any:
    """Return a sample with copies of its rows of a batch, which would keep all of that in memory."""
    if type(sample) is dict:
        return {name: _alone(part) for name, part in sample.items()}
    if type(sample) in (list, tuple):
        return type(sample)(map(_alone, sample))
    if type(sample) is not torch.Tensor or sample.layout is not torch.strided:
        return sample
    return sample.clone() if sample.untyped_storage().nbytes() > sample.nbytes else sample


def _checked(index: int, sample: Any) -> Any:
    if isinstance(sample, Exception):
        raise _noted(index, sample)
    return sample


def _noted(index: int, error: Exception) -> Exception:
    if isinstance(error, StopIteration):  # which would end the stream
        error = RuntimeError("the dataset raised StopIteration")
    error.add_note(f"foreload: while loading sample {index}")
    return error


class Streamable(BlockStorage):
    """A dataset that can be read in the order of storage."""

    def stream(
        self,
        *,
        buffer: SupportsIndex = 1000,
        seed: SupportsIndex | None = None,
        shuffle: bool = True,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> Stream:
        """Return a :class:`foreload.Stream`: an iterable dataset that reads in the order of storage.

        In constant memory, shuffled by blocks and through a buffer of ``buffer`` samples, each sample once over
        all workers and ranks. The buffer holds what is read, encoded images for instance; transforms run when a
        sample leaves it.
        """
        return Stream(self, buffer=buffer, seed=seed, shuffle=shuffle, num_replicas=num_replicas, rank=rank)
