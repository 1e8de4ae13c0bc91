"""Stage ``order``: which samples make up which batch. Torch's order exactly, or foreload's own from a seed.

Samplers that torch's DataLoader builds are read as whole arrays, by the same draws from the same generators;
anything else is iterated as torch iterates it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from foreload import _native
from foreload.stages.route import RoutedBatches, Router

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

__all__ = ["ArrayBatches", "Indices", "KeyedSampler", "batches"]

Indices = np.ndarray[Any, np.dtype[np.int64]]

_BLOCK = 1 << 16


class KeyedSampler(Sampler[int]):
    """A shuffled order that is a pure function of (seed, epoch): any position in O(1), without holding N numbers.

    A Feistel network with cycle walking, run natively. Used by ``foreload.DataLoader(shuffle=True, seed=...)``;
    in a stock DataLoader, call :meth:`set_epoch` before each epoch, as with ``DistributedSampler``.

    Args:
        data_source: what is sampled; only its length counts.
        seed: from 0 to 2**64 - 1.
        epoch: the epoch to begin with.

    >>> sampler = KeyedSampler(range(5), seed=0)
    >>> sorted(sampler) == [0, 1, 2, 3, 4]
    True
    >>> list(sampler)[2:4] == sampler.positions(2, 2).tolist()
    True
    """

    def __init__(self, data_source: Sized, seed: int, epoch: int = 0) -> None:
        self.data_source = data_source
        self.seed = check_seed(seed)
        self.epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration gives."""
        self.epoch = epoch

    def positions(self, start: int, count: int) -> Indices:
        """Give the indices at positions ``start`` to ``start + count`` of this epoch, as int64.

        Raises:
            IndexError: the epoch is shorter than that.
        """
        if start < 0 or count < 0 or start + count > len(self):
            raise IndexError(f"positions {start} to {start + count} lie outside an epoch of {len(self)} samples")
        out = np.empty(count, np.int64)
        if count:
            _native.permute(len(self), self.seed, self.epoch & 0xFFFFFFFF, start, out)
        return out

    def __iter__(self) -> Iterator[int]:
        """Iterate over the indices of this epoch, also when another one is chosen meanwhile."""
        return (index for block in _keyed_blocks(self) for index in block.tolist())

    def __len__(self) -> int:
        """Count the samples of an epoch."""
        return len(self.data_source)


def check_seed(seed: SupportsIndex) -> int:
    """Give ``seed`` as an int; raise TypeError or ValueError unless it is one from 0 to 2**64 - 1."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"seed must be an int, got {seed!r}")
    number = operator.index(seed)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"seed must be from 0 to 2**64 - 1, got {seed}")
    return number


def batches(loader: DataLoader[Any], router: Router | None = None) -> Iterator[Any]:
    """Iterate over what ``loader`` asks its dataset for, one item per batch.

    Args:
        loader: whose order.
        router: swaps samples between the ranks of its ``DistributedSampler``.

    Returns:
        :class:`ArrayBatches` where the order is known as arrays, otherwise the iterator of the user's sampler or
        batch sampler, untouched.
    """
    sampler = loader._index_sampler
    if router is not None and type(sampler) is BatchSampler:
        return iter(RoutedBatches(sampler, router))
    if type(sampler) is BatchSampler:
        blocks = _blocks(sampler.sampler)
        if blocks is not None:
            shared = getattr(sampler.sampler, "generator", None) is not None
            return ArrayBatches(blocks, sampler.batch_size, sampler.drop_last, shared=shared)
    return iter(sampler)


def _blocks(sampler: object) -> Iterator[Indices] | None:
    if type(sampler) is SequentialSampler:
        return _sequential_blocks(sampler)
    if type(sampler) is RandomSampler:
        return _random_blocks(sampler)
    if type(sampler) is KeyedSampler:
        return _keyed_blocks(sampler)
    return None


def _sequential_blocks(sampler: SequentialSampler) -> Iterator[Indices]:
    size = len(sampler.data_source)
    for start in range(0, size, _BLOCK):
        yield np.arange(start, min(size, start + _BLOCK), dtype=np.int64)


def _keyed_blocks(sampler: KeyedSampler) -> Iterator[Indices]:
    # The epoch of now: a generator would look only when it is first asked.
    return _blocks_of_epoch(KeyedSampler(sampler.data_source, sampler.seed, sampler.epoch))


def _blocks_of_epoch(sampler: KeyedSampler) -> Iterator[Indices]:
    size = len(sampler)
    # The first block is short, so that the first batch need not wait for a long one.
    start, count = 0, 1024
    while start < size:
        yield sampler.positions(start, min(count, size - start))
        start += count
        count = _BLOCK


def _random_blocks(sampler: RandomSampler) -> Iterator[Indices]:
    # Draw for draw what RandomSampler.__iter__ does, also when it draws: a user's generator may be shared.
    size, wanted = len(sampler.data_source), sampler.num_samples
    generator = sampler.generator
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    if sampler.replacement:
        for count in [32] * (wanted // 32) + [wanted % 32]:
            yield torch.randint(high=size, size=(count,), dtype=torch.int64, generator=generator).numpy()
    else:
        for _ in range(wanted // size):
            yield torch.randperm(size, generator=generator).numpy()
        yield torch.randperm(size, generator=generator).numpy()[: wanted % size]


class ArrayBatches(Iterator[Indices]):
    """Batches cut from blocks of indices.

    Attributes:
        ready: how many batches can be had without drawing another block.
        shared: whether a draw changes a generator that the user may look at, or draw from.
    """

    def __init__(self, blocks: Iterator[Indices], size: int, drop_last: bool, *, shared: bool) -> None:
        self.ready = 0
        self.shared = shared
        self._batches = self._cut(blocks, size, drop_last)

    def __next__(self) -> Indices:
        """Give the indices of the next batch."""
        return next(self._batches)

    def _cut(self, blocks: Iterator[Indices], size: int, drop_last: bool) -> Iterator[Indices]:
        parts: list[Indices] = []
        missing = size
        for block in blocks:
            start = 0
            while len(block) - start >= missing:
                piece = block[start : start + missing]
                start += missing
                self.ready = (len(block) - start) // size
                yield np.concatenate([*parts, piece]) if parts else piece
                parts, missing = [], size
            if start < len(block):
                parts.append(block[start:])
                missing -= len(block) - start
        if parts and not drop_last:
            yield np.concatenate(parts)
