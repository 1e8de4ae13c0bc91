"""The orders that are known as arrays: a keyed permutation, and the order that ranks share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler, Sampler, SequentialSampler

from foreload import _native
from foreload.checks import Indices, check_int, check_seed
from foreload.order.ranks import Router
from foreload.order.resume import Ranges
from foreload.order.skip import LeftOut

__all__ = [
    "BLOCK",
    "FIRST_BLOCK",
    "Blocks",
    "KeyedSampler",
    "concatenated",
    "global_batches",
    "global_rounds",
    "nested_samplers",
    "num_ranks",
    "rank_blocks",
    "rank_share",
]

BLOCK = 1 << 16

# The first block is short, so that the first batch need not wait for a long one.
FIRST_BLOCK = 1 << 10

_Draw = Callable[[int, int, int], Indices]


class KeyedSampler(Sampler[int]):
    """A shuffled order that is a pure function of (seed, epoch): any position in O(1), without holding N numbers.

    A Feistel network with cycle walking, run natively. Used by ``foreload.DataLoader(shuffle=True, seed=...)``;
    in a stock DataLoader, call :meth:`set_epoch` before each epoch, as with ``DistributedSampler``.

    Args:
        data_source: what is sampled; only its length counts.
        seed: from 0 to 2**64 - 1.
        epoch: the epoch to begin with.
        num_replicas: the number of ranks that share the order, as in torch's ``DistributedSampler``: each takes
            every ``num_replicas``-th sample, and samples from the order's beginning make the shares equal.
        rank: which of them this is.
        drop_last: leave out the samples at the end that would make the shares unequal, instead.

    Attributes:
        chosen: whether :meth:`set_epoch` has chosen the next epoch since a loader began one.

    Raises:
        ValueError, TypeError: an argument is of the wrong type or out of range.

    >>> sampler = KeyedSampler(range(5), seed=0)
    >>> sorted(sampler) == [0, 1, 2, 3, 4]
    True
    >>> list(sampler)[2:4] == sampler.positions(2, 2).tolist()
    True
    >>> list(KeyedSampler(range(5), seed=0, num_replicas=2, rank=1)) == [*list(sampler)[1::2], list(sampler)[0]]
    True
    """

    chosen = False

    def __init__(
        self,
        data_source: Sized,
        seed: int,
        epoch: int = 0,
        *,
        num_replicas: int = 1,
        rank: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.num_replicas = check_int("num_replicas", num_replicas, 1)
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank must be from 0 to {num_replicas - 1}, got {rank}")
        self.data_source = data_source
        self.seed = check_seed(seed)
        self.epoch = epoch
        self.rank = rank
        self.drop_last = drop_last

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = check_int("epoch", epoch, least=0)
        self.chosen = True

    def positions(self, start: int, count: int) -> Indices:
        """Return the indices at this rank's positions ``start`` to ``start + count`` of this epoch, as int64.

        Raises:
            IndexError: the epoch has fewer positions.
        """
        if start < 0 or count < 0 or start + count > len(self):
            raise IndexError(f"positions {start} to {start + count} lie outside an epoch of {len(self)} samples")
        return self.of_all_ranks(start * self.num_replicas + self.rank, count, self.num_replicas)

    def of_all_ranks(self, begin: int, count: int, step: int = 1) -> Indices:
        """Return every ``step``-th index of all ranks' order from ``begin`` on; it begins anew after its end."""
        size = len(self.data_source)
        out = np.empty(count, np.int64)
        done = 0
        while done < count:
            at = (begin + done * step) % size
            some = out[done : done - (at - size) // step]
            _native.permute(size, self.seed, self.epoch & 0xFFFFFFFF, at, some, step)
            done += len(some)
        return out

    def __iter__(self) -> Iterator[int]:
        """Iterate over the indices of this epoch, also when another one is chosen meanwhile."""
        return (index for block in rank_blocks(self, 0) for index in block.tolist())

    def __len__(self) -> int:
        """Count this rank's samples of an epoch."""
        return _share(self, len(self.data_source))


class Blocks(Iterator[Indices]):
    """An epoch's indices in blocks, from a position on.

    Attributes:
        each: positions of the whole order per index here: the number of ranks that share it.
        drawn: what the blocks can be drawn from again.
    """

    each = 1
    drawn: Any = None

    def __init__(self, blocks: Iterator[Indices]) -> None:
        self._blocks = blocks

    def __next__(self) -> Indices:
        """Return the next block."""
        return next(self._blocks)

    def peek(self) -> Indices:
        """Return all indices that are still to come, without consuming them."""
        blocks = list(self._blocks)
        self._blocks = iter(blocks)
        return concatenated(blocks)


def concatenated(blocks: Iterable[Indices]) -> Indices:
    """Return blocks of indices as one array; there may be none."""
    return np.concatenate([np.zeros(0, np.int64), *blocks])


def rank_blocks(sampler: DistributedSampler[Any] | KeyedSampler, start: int) -> Blocks:
    """Return this rank's indices of the present epoch, from a position of all ranks' order on."""
    # Not a generator: that would look at the sampler's epoch only at its first block.
    blocks = Blocks(_blocks_from(_drawn(sampler, sampler.epoch), copy.copy(sampler), start))
    blocks.each = sampler.num_replicas
    return blocks


def _blocks_from(draw: _Draw, sampler: Any, start: int) -> Iterator[Indices]:
    ranks = sampler.num_replicas
    # Another number of ranks may have come as far as ``start``: what is left is shared by the present ones.
    left = _share(sampler, _num_samples(sampler) - start)
    count = FIRST_BLOCK
    while left > 0:
        some = min(count, left)
        yield draw(start + sampler.rank, some, ranks)
        start += some * ranks
        left -= some
        count = BLOCK


def num_ranks(sampler: Any) -> int:
    """Return the number of ranks that share an order which :func:`global_rounds` knows; 1 for others."""
    return int(sampler.num_replicas) if type(sampler) in (DistributedSampler, KeyedSampler) else 1


def rank_share(sampler: Any, rank: int, ranks: int, *, drop_last: bool, epoch: int = 0) -> Any:
    """Return a sampler of one rank's share of what ``sampler`` yields; None if it cannot be shared.

    Shares are as those of torch's ``DistributedSampler``. ``epoch`` is for a sampler that has none of its own.

    >>> list(rank_share(SequentialSampler(range(5)), 1, 2, drop_last=False))
    [1, 3, 0]
    """
    if type(sampler) is SequentialSampler:
        source: Any = sampler.data_source
        places: Any = DistributedSampler(source, ranks, rank, shuffle=False, drop_last=drop_last)
        places.set_epoch(epoch)
        return places
    if getattr(sampler, "num_replicas", None) != 1:
        return None
    share = copy.copy(sampler)
    share.num_replicas, share.rank, share.drop_last = ranks, rank, drop_last
    return share


# A mock, which has any attribute, has samplers within it without end.
_MOST_NESTED = 16


def nested_samplers(*samplers: Any) -> list[Any]:
    """Return samplers, and those within them as torch's and Accelerate's batch samplers hold them, each once."""
    found: dict[int, Any] = {}
    left = list(samplers)
    while left and len(found) < _MOST_NESTED:
        sampler = left.pop(0)
        if sampler is not None and id(sampler) not in found:
            found[id(sampler)] = sampler
            left += [getattr(sampler, "sampler", None), getattr(sampler, "batch_sampler", None)]
    return list(found.values())


def global_rounds(
    sampler: DistributedSampler[Any] | KeyedSampler,
    epoch: int,
    taken: Ranges | None = None,
    skip: LeftOut | None = None,
    left_out: Ranges | None = None,
) -> Iterator[Indices]:
    """Return the order that all ranks share, in blocks of whole rounds, drawn as they are needed.

    Rank r of R loads ``block[r::R]`` of each block, as with torch's sampler.

    Args:
        sampler: one rank's sampler.
        epoch: the epoch.
        taken: positions that are left out, merged; perhaps delivered before, with another number of ranks.
        skip: samples that are left out.
        left_out: a list for the positions of these samples, as far as the order has been drawn.
    """
    samples = skip if skip is not None and skip.has_samples else None
    # Not a generator, as above.
    return _rounds(
        _drawn(sampler, epoch), copy.copy(sampler), taken or [], samples, [] if left_out is None else left_out
    )


def _rounds(draw: _Draw, sampler: Any, taken: Ranges, skip: LeftOut | None, left_out: Ranges) -> Iterator[Indices]:
    size, ranks = _num_samples(sampler), sampler.num_replicas
    begin = taken[0][1] if taken and taken[0][0] == 0 else 0
    count = max(1, FIRST_BLOCK // ranks) * ranks
    rest = np.zeros(0, np.int64)
    while begin < size:
        end = min(size, begin + count)
        block, keep = draw(begin, end - begin, 1), np.ones(end - begin, np.bool_)
        for first, last in taken:
            keep[max(0, first - begin) : max(0, last - begin)] = False
        if skip is not None:
            found = keep & skip.mask(block)
            left_out += [(place, place + 1) for place in (begin + np.flatnonzero(found)).tolist()]
            keep &= ~found
        rest = np.concatenate([rest, block[keep]])
        whole = len(rest) // ranks * ranks
        yield rest[:whole]
        rest = rest[whole:]
        begin, count = end, max(1, BLOCK // ranks) * ranks
    # Equal shares: missing samples are taken from the beginning again, or those of an incomplete round left out.
    if len(rest) and not sampler.drop_last:
        yield np.concatenate([rest, _beginning(draw, size, ranks - len(rest), skip)])


def _beginning(draw: _Draw, size: int, count: int, skip: LeftOut | None) -> Indices:
    """Return so many samples from the beginning of an epoch's order, over and over if it has fewer."""
    found = np.zeros(0, np.int64)
    for begin in range(0, size, BLOCK):
        block = draw(begin, min(size - begin, BLOCK), 1)
        found = np.concatenate([found, block if skip is None else block[~skip.mask(block)]])
        if len(found) >= count:
            break
    return np.resize(found, count)


def _drawn(sampler: DistributedSampler[Any] | KeyedSampler, epoch: int) -> _Draw:
    """Return a function that gives every ``step``-th index of all ranks' order, which begins anew after its end.

    Its arguments are the first position, the number of indices, and the step.
    """
    if isinstance(sampler, KeyedSampler):
        of_epoch = copy.copy(sampler)
        of_epoch.epoch = epoch
        return of_epoch.of_all_ranks
    size = _num_samples(sampler)

    def places(begin: int, count: int, step: int) -> Indices:
        return (begin + step * np.arange(count, dtype=np.int64)) % size

    if not sampler.shuffle:
        return places
    generator = torch.Generator()
    generator.manual_seed(sampler.seed + epoch)
    order = torch.randperm(size, generator=generator).numpy()  # torch's order; there is no part of it by itself
    return lambda begin, count, step: order[places(begin, count, step)]


def _num_samples(sampler: Any) -> int:
    return len(sampler.data_source if isinstance(sampler, KeyedSampler) else sampler.dataset)


def _share(sampler: Any, samples: int) -> int:
    """Return the number of samples that each rank gets of so many."""
    samples, ranks = max(0, samples), int(sampler.num_replicas)
    return samples // ranks if sampler.drop_last else -(-samples // ranks)


def global_batches(
    sampler: DistributedSampler[Any] | KeyedSampler,
    epoch: int,
    batch_size: int,
    drop_last: bool,
    router: Router | None = None,
    taken: Ranges | None = None,
    skip: LeftOut | None = None,
    left_out: Ranges | None = None,
) -> Iterator[Indices]:
    """Yield an epoch's global batches, drawn as they are needed, after the swaps if there is a router.

    The arguments are those of :func:`global_rounds`. Row r of each batch is what rank r loads.
    """
    rounds = global_rounds(sampler, epoch, taken, skip, left_out)
    return _batches_of(rounds, copy.copy(sampler), batch_size, drop_last, router)


def _batches_of(
    blocks: Iterator[Indices], sampler: Any, batch_size: int, drop_last: bool, router: Router | None
) -> Iterator[Indices]:
    ranks = sampler.num_replicas
    for batch in _cut(blocks, batch_size * ranks):
        rounds = batch.reshape(-1, ranks)
        if len(rounds) == batch_size or not drop_last:
            yield rounds.T if router is None else router.route_rounds(rounds)


def _cut(blocks: Iterator[Indices], size: int) -> Iterator[Indices]:
    """Yield pieces of so many indices; the last one may be shorter."""
    rest = np.zeros(0, np.int64)
    for block in blocks:
        rest = np.concatenate([rest, block])
        whole = len(rest) // size * size
        for begin in range(0, whole, size):
            yield rest[begin : begin + size]
        rest = rest[whole:]
    if len(rest):
        yield rest
