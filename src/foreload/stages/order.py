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
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler

from foreload import _native
from foreload.stages.resume import BEGINNING, SamplerBatches, Start, without
from foreload.stages.route import Router, global_batches, global_order
from foreload.stages.transform import draw_seed

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

__all__ = ["ArrayBatches", "Blocks", "Indices", "KeyedSampler", "batches", "check_seed"]

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
        return (index for block in _keyed_blocks(self, 0) for index in block.tolist())

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


def batches(loader: DataLoader[Any], router: Router | None = None, start: Start = BEGINNING) -> Any:
    """Iterate over what ``loader`` asks its dataset for, one item per batch.

    Args:
        loader: whose order.
        router: swaps samples between the ranks of its ``DistributedSampler``.
        start: where to begin.

    Returns:
        :class:`ArrayBatches` where the order is known as arrays, otherwise what the user's sampler or batch
        sampler gives, as :class:`~foreload.stages.resume.SamplerBatches`.
    """
    sampler = loader._index_sampler
    if type(sampler) is BatchSampler:
        if router is None:
            blocks = _blocks(sampler.sampler, start)
        else:
            blocks = _RoutedBlocks(sampler, router, start)
        if blocks is not None:
            shared = getattr(sampler.sampler, "generator", None) is not None
            return ArrayBatches(blocks, sampler.batch_size, sampler.drop_last, shared=shared, start=start)
    return SamplerBatches(sampler, start)


class Blocks(Iterator[Indices]):
    """An epoch's indices in blocks, from a position on.

    Attributes:
        each: positions of the whole order for one that is given here; more than one under ranks.
        drawn: what was drawn at random to make them, from which they can be made again.
    """

    each = 1
    drawn: Any = None

    def __init__(self, blocks: Iterator[Indices]) -> None:
        self._blocks = blocks

    def __next__(self) -> Indices:
        """Give the next block."""
        return next(self._blocks)


def _blocks(sampler: Any, start: Start) -> Blocks | None:
    if type(sampler) is SequentialSampler:
        return Blocks(_sequential_blocks(len(sampler.data_source), start.prefix))
    if type(sampler) is RandomSampler:
        return _RandomBlocks(sampler, start)
    if type(sampler) is KeyedSampler:
        return Blocks(_keyed_blocks(sampler, start.prefix))
    if type(sampler) is DistributedSampler:
        return _DealtBlocks(sampler, start)
    make = getattr(sampler, "__blocks__", None)
    blocks: Blocks | None = None if make is None else make(start)
    return blocks


def _sequential_blocks(size: int, start: int) -> Iterator[Indices]:
    for begin in range(start, size, _BLOCK):
        yield np.arange(begin, min(size, begin + _BLOCK), dtype=np.int64)


def _keyed_blocks(sampler: KeyedSampler, start: int) -> Iterator[Indices]:
    # The epoch of now: a generator would look only when it is first asked.
    return _blocks_of_epoch(KeyedSampler(sampler.data_source, sampler.seed, sampler.epoch), start)


def _blocks_of_epoch(sampler: KeyedSampler, start: int) -> Iterator[Indices]:
    size = len(sampler)
    # The first block is short, so that the first batch need not wait for a long one.
    count = 1024
    while start < size:
        yield sampler.positions(start, min(count, size - start))
        start += count
        count = _BLOCK


class _RandomBlocks(Blocks):
    def __init__(self, sampler: RandomSampler, start: Start) -> None:
        super().__init__(self._draw(sampler, start))

    def _draw(self, sampler: RandomSampler, start: Start) -> Iterator[Indices]:
        # Draw for draw what RandomSampler.__iter__ does, also when it draws: a user's generator may be shared.
        size, wanted = len(sampler.data_source), sampler.num_samples
        generator = sampler.generator
        if generator is None:
            self.drawn = draw_seed() if start.drawn is None else start.drawn
            generator = torch.Generator()
            generator.manual_seed(self.drawn)
        else:
            if start.drawn is not None:
                generator.set_state(start.drawn)
            self.drawn = generator.get_state()
        skip = start.prefix
        for count in _draws(size, wanted, sampler.replacement):
            if sampler.replacement:
                block = torch.randint(high=size, size=(count,), dtype=torch.int64, generator=generator).numpy()
            else:
                block = torch.randperm(size, generator=generator).numpy()[:count]
            if skip < len(block):
                yield block[skip:]
            skip = max(0, skip - len(block))


def _draws(size: int, wanted: int, replacement: bool) -> list[int]:
    """List how many samples each draw of torch's sampler gives."""
    each = 32 if replacement else size
    return [each] * (wanted // each) + [wanted % each]


class _DealtBlocks(Blocks):
    """One rank's share of an order that all ranks have in common."""

    def __init__(self, sampler: DistributedSampler[Any], start: Start) -> None:
        self.each = sampler.num_replicas
        # Whatever number of ranks has come so far: the rest is dealt to those of now.
        order = global_order(sampler, sampler.epoch, start.prefix)
        super().__init__(iter([order[sampler.rank :: self.each]]))


class _RoutedBlocks(Blocks):
    """The same after the swaps within each global batch."""

    def __init__(self, batches: BatchSampler, router: Router, start: Start) -> None:
        sampler: Any = batches.sampler
        self.each = sampler.num_replicas
        dealt = global_batches(sampler, sampler.epoch, batches.batch_size, batches.drop_last, router, start.prefix)
        super().__init__(parts[sampler.rank] for parts in dealt)


class ArrayBatches(Iterator[Indices]):
    """Batches cut from blocks of indices.

    Attributes:
        ready: how many batches can be had without drawing another block.
        shared: whether a draw changes a generator that the user may look at, or draw from.
        size: samples per batch.
        each: positions of the order for one of these samples, where ranks share it.
    """

    def __init__(self, blocks: Blocks, size: int, drop_last: bool, *, shared: bool, start: Start) -> None:
        self.ready = 0
        self.shared = shared
        self.size = size
        self.each = blocks.each
        self._source = blocks
        later = [(begin, end) for begin, end in start.given if begin > 0]
        rest = without(blocks, start.prefix, later) if later else blocks
        self._batches = self._cut(rest, size, drop_last)

    def __next__(self) -> Indices:
        """Give the indices of the next batch."""
        return next(self._batches)

    def state(self, batches: int) -> Any:
        """Give what the order was drawn from."""
        return self._source.drawn

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
