"""The indices of an epoch's batches, drawn as torch draws them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from foreload._torch import draw_seed
from foreload.checks import Indices
from foreload.order.known import draws_at_once, kept_generators
from foreload.order.ranks import Router
from foreload.order.resume import BEGINNING, Ranges, Start
from foreload.order.sampler_batches import SamplerBatches
from foreload.order.samplers import (
    BLOCK,
    Blocks,
    KeyedSampler,
    concatenated,
    global_batches,
    global_order,
    keyed_blocks,
)
from foreload.protocol import ArraySampler, OrderBlocks

__all__ = ["ArrayBatches", "batches", "without"]


def batches(sampler: Any, router: Router | None = None, start: Start = BEGINNING) -> Any:
    """Return an iterator over the indices that a DataLoader asks its dataset for, one item per batch.

    Args:
        sampler: its batch sampler, or its sampler without batching.
        router: swaps samples between the ranks of its ``DistributedSampler``.
        start: where to begin.

    Returns:
        :class:`ArrayBatches` if the order is known as arrays, otherwise what the user's sampler or batch sampler
        yields, as :class:`~foreload.order.sampler_batches.SamplerBatches`.
    """
    if type(sampler) is BatchSampler:
        if router is None:
            blocks = _blocks(sampler.sampler, start)
        else:
            blocks = _RoutedRankBlocks(sampler, router, start)
        if blocks is not None:
            shared = getattr(sampler.sampler, "generator", None) is not None
            return ArrayBatches(blocks, sampler.batch_size, sampler.drop_last, shared=shared, start=start)
    return SamplerBatches(sampler, start)


class ArrayBatches(Iterator[Indices]):
    """Batches cut from blocks of indices.

    Attributes:
        ready: batches that can be cut without drawing another block.
        shared: whether a draw changes a generator of the user's, who may read it or draw from it.
        size: samples per batch.
        each: positions of the whole order per sample: the number of ranks that share it.
    """

    def __init__(self, blocks: OrderBlocks, size: int, drop_last: bool, *, shared: bool, start: Start) -> None:
        self.ready = 0
        self.shared = shared
        self.size = size
        self.each = blocks.each
        self._source = blocks
        self._drop_last = drop_last
        later = [(begin, end) for begin, end in start.given if begin > 0]
        rest = without(blocks, start.prefix, later) if later else blocks
        self._batches = self._cut(rest, size, drop_last)

    def __next__(self) -> Indices:
        """Return the indices of the next batch."""
        return next(self._batches)

    def peek(self) -> Indices:
        """Return all samples of the batches to come, without consuming them; before the first batch only."""
        samples = self._source.peek()
        return samples[: len(samples) // self.size * self.size] if self._drop_last else samples

    def state(self, batches: int) -> Any:
        """Return what the order can be drawn from again."""
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


def without(blocks: Iterator[Indices], at: int, given: Ranges) -> Iterator[Indices]:
    """Yield blocks, the first of which begins at position ``at``, without the positions that were delivered.

    >>> [block.tolist() for block in without(iter([np.arange(3, 10)]), 3, [(0, 3), (5, 8)])]
    [[3, 4, 8, 9]]
    """
    for block in blocks:
        keep = np.ones(len(block), np.bool_)
        for begin, end in given:
            keep[max(0, begin - at) : max(0, end - at)] = False
        at += len(block)
        yield block[keep]


def _blocks(sampler: Any, start: Start) -> OrderBlocks | None:
    if type(sampler) is SequentialSampler:
        return Blocks(_sequential_blocks(len(sampler.data_source), start.prefix))
    if type(sampler) is RandomSampler:
        return _RandomBlocks(sampler, start)
    if type(sampler) is KeyedSampler:
        return keyed_blocks(sampler, start.prefix)
    if type(sampler) is DistributedSampler:
        return _RankBlocks(sampler, start)
    return sampler.order_blocks(start) if isinstance(sampler, ArraySampler) else None


def _sequential_blocks(size: int, start: int) -> Iterator[Indices]:
    for begin in range(start, size, BLOCK):
        yield np.arange(begin, min(size, begin + BLOCK), dtype=np.int64)


class _RandomBlocks(Blocks):
    def __init__(self, sampler: RandomSampler, start: Start) -> None:
        super().__init__(self._draw(sampler, start))
        self._sampler, self._start = sampler, start

    def peek(self) -> Indices:
        if draws_at_once(self._sampler):
            return super().peek()
        # Torch draws block by block; the user's generator must not be ahead of that here either.
        with kept_generators(self._sampler.generator):
            return concatenated(self._draw(self._sampler, self._start))

    def _draw(self, sampler: RandomSampler, start: Start) -> Iterator[Indices]:
        # The same draws as RandomSampler.__iter__, and at the same moments: a user's generator may be shared.
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
    """Return the number of samples in each draw of torch's sampler."""
    each = 32 if replacement else size
    return [each] * (wanted // each) + [wanted % each]


class _RankBlocks(Blocks):
    """One rank's share of an order that all ranks share."""

    def __init__(self, sampler: DistributedSampler[Any], start: Start) -> None:
        self.each = sampler.num_replicas
        # Another number of ranks may have come so far: what is left is split among the present ones.
        self.all_ranks = global_order(sampler, sampler.epoch, start.prefix)
        super().__init__(iter([self.all_ranks[sampler.rank :: self.each]]))


class _RoutedRankBlocks(Blocks):
    """One rank's share after the swaps within each global batch."""

    def __init__(self, batches: BatchSampler, router: Router, start: Start) -> None:
        sampler: Any = batches.sampler
        self.each = sampler.num_replicas
        swapped = global_batches(
            sampler, sampler.epoch, batches.batch_size, batches.drop_last, router, start.prefix
        )
        super().__init__(parts[sampler.rank] for parts in swapped)
