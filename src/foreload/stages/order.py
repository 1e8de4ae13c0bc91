"""Stage ``order``: which samples make up which batch. Torch's order exactly, or foreload's own from a seed.

Samplers that torch's DataLoader builds are read as whole arrays, by the same draws from the same generators;
anything else is iterated as torch iterates it.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from foreload import _native
from foreload.stages.route import RoutedBatches, Router, global_batches
from foreload.stages.transform import draw_seed

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

__all__ = ["ArrayBatches", "Foreseen", "Indices", "KeyedSampler", "batches", "foresee"]

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


class Foreseen(NamedTuple):
    """What will be asked for.

    Attributes:
        epochs: the samples of the coming epoch in order, and of later ones as far as they are known.
        once: whether every epoch asks for the same samples, each once.
    """

    epochs: list[Indices]
    once: bool


def foresee(
    loader: DataLoader[Any],
    epochs: int,
    *,
    draws: tuple[bool, bool] = (False, True),
    ranks: Sequence[int] = (),
    router: Router | None = None,
) -> Foreseen | None:
    """Tell what the epoch that begins now asks for, and the ones after it, without changing any of it.

    Samplers of torch and of foreload are run ahead, and the generators that they draw from are set back. Later
    epochs are known where the order is a function of the epoch, or comes from a generator of the user's own, as
    long as nobody else draws from that. What a user's own sampler will do is not known, and None is returned.

    Args:
        loader: whose order.
        epochs: how many to look ahead; fewer may be given back.
        ranks: those of a ``DistributedSampler`` that use the cache; the loader's own if none are given.
        router: swaps samples between them.
        draws: whether the coming epoch, and each later one, still draws a base seed from ``loader.generator``.
    """
    batch_sampler = loader._index_sampler
    if type(batch_sampler) is BatchSampler:
        sampler: Any = batch_sampler.sampler
        whole = not batch_sampler.drop_last
    else:
        sampler, whole = batch_sampler, True
    kind = type(sampler)
    if kind not in (
        SequentialSampler,
        RandomSampler,
        KeyedSampler,
        WeightedRandomSampler,
        SubsetRandomSampler,
        DistributedSampler,
    ):
        return None
    once = kind in (SequentialSampler, KeyedSampler, SubsetRandomSampler) or (
        kind is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    )
    if once:
        # Which of the same samples comes when makes no difference to what is best kept.
        epochs = 1
    if kind is DistributedSampler and type(batch_sampler) is BatchSampler:
        return _of_ranks(sampler, batch_sampler, ranks or [sampler.rank], epochs, router)
    if kind in (DistributedSampler, KeyedSampler):
        ahead_of_time = [_of_epoch(sampler, sampler.epoch + ahead) for ahead in range(epochs)]
        return Foreseen([_list(later, whole, batch_sampler) for later in ahead_of_time], once)
    generator = getattr(sampler, "generator", None)
    drawn_from = [
        torch.default_generator,
        *{id(g): g for g in (generator, loader.generator) if g is not None}.values(),
    ]
    states = [source.get_state() for source in drawn_from]
    known = []
    try:
        for ahead in range(epochs if generator is not None else 1):
            if draws[ahead > 0]:
                draw_seed(loader.generator)
            known.append(_list(sampler, whole, batch_sampler))
    finally:
        for source, state in zip(drawn_from, states, strict=True):
            source.set_state(state)
    return Foreseen(known, once)


def _of_ranks(
    sampler: DistributedSampler[Any],
    batch_sampler: BatchSampler,
    ranks: Sequence[int],
    epochs: int,
    router: Router | None,
) -> Foreseen:
    once = len(ranks) == sampler.num_replicas
    size, drop_last = batch_sampler.batch_size, batch_sampler.drop_last
    known = []
    for epoch in range(sampler.epoch, sampler.epoch + (1 if once else epochs)):
        dealt = global_batches(sampler, epoch, size, drop_last, router)
        known.append(np.concatenate([np.zeros(0, np.int64), *(parts[rank] for parts in dealt for rank in ranks)]))
    return Foreseen(known, once)


def _of_epoch(sampler: Any, epoch: int) -> Any:
    other = copy.copy(sampler)
    other.epoch = epoch
    return other


def _list(sampler: Any, whole: bool, batch_sampler: Any) -> Indices:
    if type(sampler) is KeyedSampler:
        indices = sampler.positions(0, len(sampler))
    else:
        indices = np.fromiter(iter(sampler), np.int64)
    return indices if whole else indices[: len(indices) // batch_sampler.batch_size * batch_sampler.batch_size]
