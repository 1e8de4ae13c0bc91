"""The orders that are known as arrays: a keyed permutation, and the order that ranks share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler, Sampler

from foreload import _native
from foreload.checks import Indices, check_seed
from foreload.order.ranks import Router
from foreload.order.resume import Ranges
from foreload.order.skip import LeftOut

__all__ = ["BLOCK", "Blocks", "KeyedSampler", "concatenated", "global_batches", "global_order", "keyed_blocks"]

BLOCK = 1 << 16


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
        """Set the epoch of the next iteration."""
        self.epoch = epoch

    def positions(self, start: int, count: int) -> Indices:
        """Return the indices at positions ``start`` to ``start + count`` of this epoch, as int64.

        Raises:
            IndexError: the epoch has fewer positions.
        """
        if start < 0 or count < 0 or start + count > len(self):
            raise IndexError(f"positions {start} to {start + count} lie outside an epoch of {len(self)} samples")
        out = np.empty(count, np.int64)
        if count:
            _native.permute(len(self), self.seed, self.epoch & 0xFFFFFFFF, start, out)
        return out

    def __iter__(self) -> Iterator[int]:
        """Iterate over the indices of this epoch, also when another one is chosen meanwhile."""
        return (index for block in keyed_blocks(self, 0) for index in block.tolist())

    def __len__(self) -> int:
        """Count the samples of an epoch."""
        return len(self.data_source)


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


def keyed_blocks(sampler: KeyedSampler, start: int) -> Iterator[Indices]:
    # Of the present epoch: a generator would read it only at its first block.
    return _blocks_of_epoch(KeyedSampler(sampler.data_source, sampler.seed, sampler.epoch), start)


def _blocks_of_epoch(sampler: KeyedSampler, start: int) -> Iterator[Indices]:
    size = len(sampler)
    # The first block is short, so that the first batch need not wait for a long one.
    count = 1024
    while start < size:
        yield sampler.positions(start, min(count, size - start))
        start += count
        count = BLOCK


def global_order(
    sampler: DistributedSampler[Any],
    epoch: int,
    taken: Ranges | None = None,
    skip: LeftOut | None = None,
    left_out: Ranges | None = None,
) -> Indices:
    """Return the order that all ranks share: rank r of R loads ``order[r::R]``, as with torch's sampler.

    Args:
        sampler: one rank's sampler.
        epoch: the epoch.
        taken: positions that are left out, perhaps delivered before, with another number of ranks.
        skip: samples that are left out.
        left_out: a list for the positions of these samples.
    """
    size = len(sampler.dataset)  # type: ignore[arg-type]
    if sampler.shuffle:
        generator = torch.Generator()
        generator.manual_seed(sampler.seed + epoch)
        order = torch.randperm(size, generator=generator).numpy()
    else:
        order = np.arange(size)
    keep = np.ones(size, np.bool_)
    for begin, end in taken or ():
        keep[begin:end] = False
    again = order
    if skip is not None and skip.has_samples:
        found = skip.mask(order)
        places = np.flatnonzero(found & keep).tolist()
        if left_out is not None:
            left_out += [(place, place + 1) for place in places]
        keep &= ~found
        again = order[~found]
    rest, ranks = order[keep], sampler.num_replicas
    # Equal shares: missing samples are taken from the beginning again, or those of an incomplete round left out.
    shares = len(rest) // ranks if sampler.drop_last else -(-len(rest) // ranks)
    missing = max(0, shares * ranks - len(rest))
    return np.concatenate([rest[: shares * ranks], np.resize(again, missing)])


def global_batches(
    sampler: DistributedSampler[Any],
    epoch: int,
    batch_size: int,
    drop_last: bool,
    router: Router | None = None,
    taken: Ranges | None = None,
    skip: LeftOut | None = None,
) -> Iterator[list[Indices]]:
    """Yield an epoch's global batches: what each rank loads, after the swaps if there is a router."""
    ranks = sampler.num_replicas
    order = global_order(sampler, epoch, taken, skip)
    each = len(order) // ranks
    for start in range(0, each, batch_size):
        if drop_last and start + batch_size > each:
            return
        batch = order[start * ranks : (start + batch_size) * ranks]
        parts = [batch[rank::ranks] for rank in range(ranks)]
        yield parts if router is None else router.route(parts)
