"""The order of samples from several datasets, mixed in exact proportions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, SupportsIndex

import numpy as np
from torch.utils.data import Sampler

from foreload import _native
from foreload.checks import Indices, check_int, check_seed, check_state_int
from foreload.order.mixture.proportions import choose_datasets, scramble
from foreload.order.ranks import assign_ranks
from foreload.order.resume import BEGINNING
from foreload.order.samplers import Blocks
from foreload.protocol import ArraySampler, OrderStart

__all__ = ["MixtureSampler"]

_FIRST_BLOCK, _BLOCK = 1 << 10, 1 << 13

# Positions that are split among the ranks together.
_RANKS_BLOCK = 1 << 16


class MixedDatasets(Protocol):
    """Several datasets as one, whose shares of an epoch are fixed: :class:`foreload.Mixture`."""

    @property
    def shares(self) -> tuple[int, ...]:
        """The samples of each dataset in ``sum(shares)`` samples of the mixture."""
        ...

    @property
    def sizes(self) -> list[int]:
        """The number of samples of each dataset."""
        ...

    @property
    def num_samples(self) -> int:
        """The number of samples in an epoch."""
        ...

    def set_weights(self, weights: Any) -> None:
        """Change the shares."""
        ...

    def __len__(self) -> int: ...


class MixtureSampler(Sampler[int], ArraySampler):
    """The order of a :class:`~foreload.Mixture`: a pure function of (seed, epoch, weights), made as it is needed.

    After any number of samples ``t``, less than one sample lies between what a dataset has given and its share
    ``weight * t``. Each dataset's own samples come in random order, all of them before any comes again, and then
    in another order. If the proportions leave a choice of what comes next, the seed decides.

    Ranks share the order in rounds of one sample each, so that the proportions hold on each rank too (in an epoch
    of more than 65,536 samples whose weights are not small whole numbers, within each 65,536). An epoch whose
    length is not a multiple of the number of ranks is lengthened by the samples that come next, or cut short with
    ``drop_last``.

    Used by ``foreload.DataLoader(mixture, shuffle=True, seed=...)``; in a stock DataLoader, call
    :meth:`set_epoch` before each epoch, as with ``DistributedSampler``.

    Every prefix has its proportions because each sample has a window of positions: from where its dataset would
    otherwise lag behind its share to where it would run ahead, and the sample of the earliest end is taken first
    (Baruah et al., "Proportionate progress", Algorithmica 15, 1996; Tijdeman, "The chairman assignment
    problem", Discrete Mathematics 32, 1980).

    Args:
        mixture: what is sampled.
        seed: from 0 to 2**64 - 1.
        num_replicas: how many ranks share the order.
        rank: which of them this is.
        drop_last: leave out a last round that does not have a sample for every rank.
        epoch: the epoch to begin with.

    Attributes:
        chosen: whether :meth:`set_epoch` has chosen the next epoch since a loader began one.

    Raises:
        ValueError, TypeError: an argument is of the wrong type or out of range.

    >>> from foreload import Mixture
    >>> mixture = Mixture({"web": range(90), "books": range(10)}, weights=[3, 1], num_samples=8)
    >>> [mixture.where(index)[0] for index in MixtureSampler(mixture, seed=0)].count("books")
    2
    """

    chosen = False

    def __init__(
        self,
        mixture: MixedDatasets,
        seed: SupportsIndex,
        *,
        num_replicas: int = 1,
        rank: int = 0,
        drop_last: bool = False,
        epoch: int = 0,
    ) -> None:
        if not hasattr(mixture, "shares"):
            raise TypeError(f"mixture must be a foreload.Mixture, got {type(mixture).__name__}")
        num_replicas = check_int("num_replicas", num_replicas, 1)
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank must be from 0 to {num_replicas - 1}, got {rank}")
        self.data_source = mixture
        self.seed = check_seed(seed)
        self.num_replicas = num_replicas
        self.rank = rank
        self.drop_last = drop_last
        self.epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = check_int("epoch", epoch, least=0)
        self.chosen = True

    def positions(self, start: int, count: int) -> Indices:
        """Return the indices at this rank's positions ``start`` to ``start + count`` of this epoch, as int64.

        No sample is loaded for that, and memory does not depend on ``start``. Time does, about 0.5 us per position
        before it, unless the weights are small numbers.

        Raises:
            IndexError: the epoch has fewer positions.
        """
        if start < 0 or count < 0 or start + count > len(self):
            raise IndexError(f"positions {start} to {start + count} lie outside an epoch of {len(self)} samples")
        blocks = _MixedBlocks(self, BEGINNING, skip=start)
        parts: list[Indices] = [np.zeros(0, np.int64)]
        while count > 0:
            parts.append(next(blocks)[:count])
            count -= len(parts[-1])
        return np.concatenate(parts)

    @property
    def once(self) -> bool:
        """Whether an epoch has every sample of the mixture exactly once."""
        mixture = self.data_source
        whole = self.num_replicas == 1 and mixture.num_samples == len(mixture)
        total = sum(mixture.shares)
        return whole and all(
            share * len(mixture) == size * total for share, size in zip(mixture.shares, mixture.sizes, strict=True)
        )

    def restore_drawn(self, drawn: Any) -> None:
        """Set the mixture to the weights of an interrupted run.

        Raises:
            ValueError: it had a mixture of other datasets.
        """
        if not isinstance(drawn, dict) or "next_shares" not in drawn:
            raise ValueError(
                "the state is of a loader whose sampler was not a MixtureSampler; load a state of a mixture"
            )
        for name, length in (("sizes", None), ("shares", len(self.data_source.sizes)), ("dealt", 2)):
            values = drawn.get(name)
            if not isinstance(values, (list, tuple)) or length not in (None, len(values)):
                raise ValueError(f"the state's {name!r} of a mixture must be a list, got {repr(values)[:100]}")
            for value in values:
                check_state_int(name, value, 1 if name == "shares" else 0, 1 << 63)
        if drawn["dealt"][1] < 1:
            raise ValueError(f"the state's 'dealt' must have a number of ranks, got {drawn['dealt']!r}")
        if list(drawn["sizes"]) != self.data_source.sizes:
            raise ValueError(
                f"the state is of a mixture of datasets with {list(drawn['sizes'])} samples, but these have "
                f"{self.data_source.sizes}"
            )
        try:
            self.data_source.set_weights(drawn["next_shares"])
        except (TypeError, ArithmeticError) as error:
            raise ValueError(f"the state's 'next_shares' makes no sense: {error}") from error

    def order_blocks(self, start: OrderStart) -> Blocks | None:
        """Return this epoch's indices as arrays."""
        return _MixedBlocks(self, start) if type(self) is MixtureSampler else None

    def __iter__(self) -> Iterator[int]:
        """Iterate over this rank's indices of this epoch, also when another one is chosen meanwhile."""
        blocks = _MixedBlocks(self, BEGINNING)  # made now, not at the first index
        return (index for block in blocks for index in block.tolist())

    def __len__(self) -> int:
        """Count the samples of this rank's epoch."""
        return self._rounds(0)

    def _rounds(self, begin: int) -> int:
        left = max(0, self.data_source.num_samples - begin)
        return left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)


class _MixedBlocks(Blocks):
    """One rank's share of an epoch, in blocks."""

    def __init__(self, sampler: MixtureSampler, start: OrderStart, skip: int = 0) -> None:
        self.each = sampler.num_replicas
        self._mixture = sampler.data_source
        self._shares, begin = self._mixture.shares, 0
        if start.drawn is not None:
            self._shares = tuple(start.drawn["shares"])
            begin, ranks = start.drawn["dealt"]
            if ranks != self.each:
                begin = start.prefix  # what is left is split anew
        self._begin = begin
        order = _Order(self._shares, self._mixture.sizes, sampler.seed, sampler.epoch)
        # (A state counts no further than an epoch would go that had these ranks from its beginning.)
        done = skip + -(-(start.prefix - begin) // self.each)
        rounds = sampler._rounds(begin)
        if self.each == 1:
            super().__init__(_blocks_of_all(order, begin + done, begin + rounds))
        else:
            super().__init__(_blocks_of_rank(order, begin, done, rounds, sampler.rank, self.each))

    @property
    def drawn(self) -> dict[str, Any]:
        """Plain numbers from which this order can be made again."""
        return {
            "shares": list(self._shares),
            "next_shares": list(self._mixture.shares),
            "sizes": list(self._mixture.sizes),
            "dealt": [self._begin, self.each],
        }


def _blocks_of_all(order: _Order, begin: int, end: int) -> Iterator[Indices]:
    # The first block is short, so that the first batch need not wait for a long one.
    count = _FIRST_BLOCK
    while begin < end:
        count = min(count, end - begin)
        yield order.take(begin, count)[1]
        begin += count
        count = _BLOCK


def _blocks_of_rank(order: _Order, begin: int, done: int, rounds: int, rank: int, ranks: int) -> Iterator[Indices]:
    each = max(1, _RANKS_BLOCK // ranks)
    period = sum(order.shares)
    if period <= each:
        each -= each % period  # every rank then has exactly its shares
    for first in range(done // each * each, rounds, each):
        count = min(each, rounds - first)
        choices, indices = order.take(begin + first * ranks, count * ranks)
        names = np.empty(ranks, np.int64)
        _native.permute(ranks, order.key, order.epoch, 0, names)
        own = indices[names[assign_ranks(choices, ranks)] == rank]
        yield own[max(0, done - first) :]


class _Order:
    """The endless order of one epoch, which goes on from where it was read last."""

    def __init__(self, shares: tuple[int, ...], sizes: list[int], seed: int, epoch: int) -> None:
        self.shares, self._sizes = shares, sizes
        self._offsets = np.concatenate([[0], np.cumsum(sizes)])
        self.key, self.epoch = seed, epoch & 0xFFFFFFFF
        self._at, self._counts = 0, [0] * len(shares)

    def take(self, begin: int, count: int) -> tuple[Indices, Indices]:
        """Return the datasets, and the indices in the mixture, of ``count`` positions from ``begin`` on."""
        self._seek(begin)
        parts = [self._next(min(_BLOCK, begin + count - at)) for at in range(begin, begin + count, _BLOCK)]
        choices = np.concatenate([part[0] for part in parts])
        return choices, np.concatenate([part[1] for part in parts])

    def _seek(self, begin: int) -> None:
        # At a multiple of the sum of all shares, every dataset has had exactly its share.
        total = sum(self.shares)
        periods = begin // total
        if not periods * total <= self._at <= begin:
            self._at, self._counts = periods * total, [periods * share for share in self.shares]
        while self._at < begin:
            self._choose(min(_BLOCK, begin - self._at))

    def _choose(self, count: int) -> Indices:
        key = self.key ^ (self.epoch * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
        choices = choose_datasets(self.shares, self._counts, self._at, count, key)
        seen = np.bincount(choices, minlength=len(self.shares))
        self._counts = [int(n) for n in seen + self._counts]
        self._at += count
        return choices

    def _next(self, count: int) -> tuple[Indices, Indices]:
        before = self._counts
        choices = self._choose(count)
        indices = np.empty(count, np.int64)
        for dataset, (begin, end) in enumerate(zip(before, self._counts, strict=True)):
            if begin < end:
                indices[choices == dataset] = self._samples(dataset, begin, end) + self._offsets[dataset]
        return choices, indices

    def _samples(self, dataset: int, begin: int, end: int) -> Indices:
        """Return a dataset's samples in its own order: one permutation after another."""
        size = self._sizes[dataset]
        out = np.empty(end - begin, np.int64)
        passes = np.arange(begin // size, (end - 1) // size + 1, dtype=np.uint64)
        keys = scramble(scramble(np.uint64(self.key) + scramble(np.array([dataset + 1], np.uint64))) + passes)
        for number, key in zip(passes.tolist(), keys.tolist(), strict=True):
            first, last = max(begin, number * size), min(end, (number + 1) * size)
            _native.permute(size, key, self.epoch, first - number * size, out[first - begin : last - begin])
        return out
