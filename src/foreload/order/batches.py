"""The indices of an epoch's batches, drawn as torch draws them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from foreload._torch import draw_seed, item_sampler
from foreload.checks import Indices
from foreload.order.generator_states import generator_text, kept_generators, own_generator, sampler_states
from foreload.order.observed import observed_blocks
from foreload.order.own_sampler.batches import SamplerBatches
from foreload.order.own_sampler.end import SamplerEnd
from foreload.order.own_state import has_state, state_of
from foreload.order.randomized.blocks import RandomBlocks
from foreload.order.ranks import Router
from foreload.order.resume import BEGINNING, BatchBounds, Ranges, Start, merged
from foreload.order.samplers import (
    BLOCK,
    Blocks,
    KeyedSampler,
    global_batches,
    global_rounds,
    num_ranks,
    rank_blocks,
)
from foreload.order.skip import LeftOut, remaining_blocks
from foreload.protocol import ArraySampler, OrderBlocks

__all__ = ["ArrayBatches", "ArraySamples", "batches", "coming_draw", "is_function", "is_shared"]


def batches(
    sampler: Any,
    router: Router | None = None,
    start: Start = BEGINNING,
    skip: LeftOut | None = None,
    left_out: Ranges | None = None,
) -> Any:
    """Return an iterator over the indices that a DataLoader asks its dataset for, one item per batch.

    Args:
        sampler: its batch sampler, or its sampler without batching.
        router: swaps samples between the ranks of its ``DistributedSampler``.
        start: where to begin.
        skip: what to leave out.
        left_out: a list for the positions that are left out, filled as the order is drawn.

    Returns:
        :class:`ArrayBatches` if the order is known as arrays, otherwise what the user's sampler or batch sampler
        yields, as :class:`~foreload.order.own_sampler.batches.SamplerBatches`.

    Raises:
        ValueError: an order that ranks share in a way of its own cannot go on without single samples, or from
            there.
    """
    left_out = [] if left_out is None else left_out
    inner: Any = item_sampler(sampler)
    is_batched = type(sampler) is BatchSampler
    if skip is not None:
        each = getattr(inner, "num_replicas", 1) if is_shared(sampler) else 1
        left_out += skip.positions((sampler.batch_size if is_batched else 1) * each)
    blocks: OrderBlocks | None = None
    if router is not None:
        blocks = _routed_rank_blocks(sampler, router, start, skip, left_out)
    elif is_function(sampler) and (type(inner) is DistributedSampler or num_ranks(inner) > 1):
        blocks = _rank_blocks(inner, start, skip, left_out)
    elif is_shared(sampler):
        blocks = _blocks(inner, start)
        blocks = None if blocks is None else remaining_blocks(blocks, start, skip, left_out)
    if blocks is None:
        return SamplerBatches(sampler, start, skip, left_out)
    if not is_batched:
        return ArraySamples(blocks)
    shared = getattr(inner, "generator", None) is not None
    # (Ranks swap samples within global batches, which are to be those of all of them.)
    watched = sampler if router is None else None
    return ArrayBatches(blocks, sampler.batch_size, sampler.drop_last, shared=shared, sampler=watched)


def is_function(sampler: Any) -> bool:
    """Whether the order is known to be a function of the epoch, so that positions say all about a place in it.

    Args:
        sampler: the batch sampler of a DataLoader, or its sampler without batching.
    """
    inner = item_sampler(sampler)
    is_known = type(sampler) is BatchSampler or inner is sampler
    return is_known and type(inner) in (SequentialSampler, KeyedSampler, DistributedSampler)


def is_shared(sampler: Any) -> bool:
    """Whether positions are those of the order of all ranks, if the sampler is one that ranks share.

    Args:
        sampler: the batch sampler of a DataLoader, or its sampler without batching.
    """
    return type(sampler) is BatchSampler or is_function(sampler) or isinstance(sampler, ArraySampler)


def coming_draw(
    sampler: Any,
    loader_generator: torch.Generator | None,
    *,
    drew: bool,
    twice: bool,
    ended: SamplerEnd | None = None,
) -> Any:
    """Return what the order of an epoch that is about to begin will be drawn from, without drawing anything.

    Args:
        sampler: the batch sampler of a DataLoader, or its sampler without batching.
        loader_generator: from which the base seed of the workers is drawn first, if one is.
        drew: whether that is done, from torch's global generator if the loader has none.
        twice: whether a sampler of the user's is asked for its iterator before that and after it.
        ended: how a sampler with a state ended the epoch before, if there was one.
    """
    if is_function(sampler):
        return None
    inner = item_sampler(sampler)
    if type(sampler) is not BatchSampler or type(inner) is not RandomSampler:
        blocks = inner.order_blocks(BEGINNING) if isinstance(inner, ArraySampler) else None
        if blocks is not None:
            return blocks.drawn
        if has_state(inner):
            own = {"sampler": state_of(inner), "iterator": None}
            own = own if ended is None else ended.before_next(own)
            return {"own": own, "at": 0, "over": False, "again": False}
        return _coming_state(inner, loader_generator, drew=drew, twice=twice)
    if inner.generator is not None:
        return None if inner.generator is loader_generator else generator_text(inner.generator)
    with kept_generators(torch.default_generator):
        if drew and loader_generator is None:
            draw_seed()
        return draw_seed()


def _coming_state(
    sampler: Any, loader_generator: torch.Generator | None, *, drew: bool, twice: bool
) -> dict[str, Any]:
    """Return what a sampler without a state will draw from in its next epoch, without asking it for anything.

    Args:
        sampler: the sampler, or the one within torch's batch sampler.
        loader_generator: the user's generator from which the base seed of the workers will be drawn, if one is;
            None: torch's global one.
        drew: whether one is.
        twice: whether the sampler is asked for its iterator twice.
    """
    is_global = loader_generator is None
    seeds = drew and not is_global and own_generator(sampler) is loader_generator
    states = {"iter": sampler_states(sampler), "next": None, "drew": drew and is_global, "seeds": seeds}
    return {"generators": {**states, "twice": twice}}


class ArrayBatches(Iterator[Indices]):
    """Batches cut from blocks of indices.

    Args:
        blocks: the blocks.
        size: samples per batch.
        drop_last: whether a smaller last batch is left out.
        shared: see the attribute.
        sampler: has ``batch_size``, which may change within the epoch, as far as torch looks at it then.

    Attributes:
        shared: whether a draw changes a generator of the user's, who may read it or draw from it.
        bounds: where batches begin.
        each: positions of the whole order per sample: the number of ranks that share it.
    """

    def __init__(
        self, blocks: OrderBlocks, size: int, drop_last: bool, *, shared: bool, sampler: BatchSampler | None = None
    ) -> None:
        self.shared = shared
        self.bounds = BatchBounds(size)
        self.each = blocks.each
        self._source = blocks
        self._drop_last = drop_last
        self._sampler = sampler
        self._ready = [0]
        self._batches = _cut(blocks, self.bounds, drop_last, self._ready, sampler)

    @property
    def ready(self) -> int:
        """The number of batches that can be cut without drawing another block."""
        return self._ready[0]

    def __next__(self) -> Indices:
        """Return the indices of the next batch."""
        return next(self._batches)

    @property
    def draw(self) -> Callable[[], Any]:
        """The method that :func:`next` calls, in the end."""
        return self._batches.__next__

    def peek(self) -> Indices:
        """Return all samples of the batches to come, without consuming them; before the first batch only."""
        samples, size = self._source.peek(), self.bounds.look(self._sampler, 0)
        return samples[: len(samples) // size * size] if self._drop_last else samples

    def state(self, batches: int) -> Any:
        """Return what the order can be drawn from again."""
        return self._source.drawn


def _cut(
    blocks: Iterator[Indices], bounds: BatchBounds, drop_last: bool, ready: list[int], sampler: BatchSampler | None
) -> Iterator[Indices]:
    """Yield batches, and keep in ``ready`` how many can be cut without drawing another block.

    Not a method: it and its object would keep each other, and a left epoch's order, until the garbage collector
    runs.
    """
    parts: list[Indices] = []
    size = missing = bounds.look(sampler, 0)
    watched = None if drop_last else sampler  # whose size torch looks at for each batch
    given = None if watched is None else watched.batch_size
    number = 0
    for block in blocks:
        start = 0
        while size > 0 and len(block) - start >= missing:
            piece = block[start : start + missing]
            start += missing
            ready[0] = (len(block) - start) // size
            number += 1
            yield np.concatenate([*parts, piece]) if parts else piece
            parts = []
            if watched is not None and watched.batch_size is not given:
                given = watched.batch_size
                size = bounds.look(watched, number)
            missing = size
        if size == 0:
            return
        if start < len(block):
            parts.append(block[start:])
            missing -= len(block) - start
    if parts and not drop_last:
        yield np.concatenate(parts)


class ArraySamples(ArrayBatches):
    """Single samples from blocks of indices, for a loader without batches."""

    def __init__(self, blocks: OrderBlocks) -> None:
        super().__init__(blocks, 1, drop_last=False, shared=False)

    def __next__(self) -> Any:
        """Return the index of the next sample."""
        return int(super().__next__()[0])

    @property
    def draw(self) -> Callable[[], Any]:
        """The method that :func:`next` calls."""
        return self.__next__


def _blocks(sampler: Any, start: Start) -> OrderBlocks | None:
    if type(sampler) is SequentialSampler:
        return Blocks(observed_blocks(sampler, _sequential_blocks(len(sampler.data_source), start.prefix)))
    if type(sampler) is RandomSampler:
        return RandomBlocks(sampler, start)
    if type(sampler) is KeyedSampler:
        return rank_blocks(sampler, start.prefix)
    return sampler.order_blocks(start) if isinstance(sampler, ArraySampler) else None


def _sequential_blocks(size: int, start: int) -> Iterator[Indices]:
    for begin in range(start, size, BLOCK):
        yield np.arange(begin, min(size, begin + BLOCK), dtype=np.int64)


def _rank_blocks(
    sampler: DistributedSampler[Any] | KeyedSampler, start: Start, skip: LeftOut | None, left_out: Ranges
) -> Blocks:
    """Return one rank's share of what is left of an order that all ranks share."""
    # Another number of ranks may have come so far: what is left is split among the present ones.
    taken = merged([*start.given, *left_out])
    if taken in ([], [(0, start.prefix)]) and (skip is None or not skip.has_samples):
        # No need to draw what other ranks load. (The copy keeps the epoch: the sampler may soon have another one.)
        blocks = Blocks(observed_blocks(copy.copy(sampler), rank_blocks(sampler, start.prefix)))
        blocks.each = sampler.num_replicas
        return blocks
    rank, ranks = sampler.rank, sampler.num_replicas
    blocks = Blocks(block[rank::ranks] for block in global_rounds(sampler, sampler.epoch, taken, skip, left_out))
    blocks.each = ranks
    return blocks


def _routed_rank_blocks(
    batches: BatchSampler, router: Router, start: Start, skip: LeftOut | None, left_out: Ranges
) -> Blocks:
    """Return the same after the swaps within each global batch."""
    sampler: Any = batches.sampler
    rank, taken = sampler.rank, merged([*start.given, *left_out])
    swapped = global_batches(
        sampler, sampler.epoch, batches.batch_size, batches.drop_last, router, taken, skip, left_out
    )
    blocks = Blocks(parts[rank] for parts in swapped)
    blocks.each = sampler.num_replicas
    return blocks
