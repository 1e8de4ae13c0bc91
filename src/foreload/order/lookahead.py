"""What a loader will ask for, found out without changing any of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from foreload._torch import draw_seed
from foreload.checks import Indices
from foreload.order.mixture import MixtureSampler
from foreload.order.samplers import KeyedSampler, global_batches

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


__all__ = ["KNOWN_SAMPLERS", "asks_once", "look_ahead"]


# Whose order is known before it is asked for: torch's and foreload's own samplers, but no class derived from them.
KNOWN_SAMPLERS = frozenset(
    {
        SequentialSampler,
        RandomSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
        DistributedSampler,
        KeyedSampler,
        MixtureSampler,
    }
)


def _sampler(loader: DataLoader[Any]) -> Any:
    batch_sampler = loader._index_sampler
    return batch_sampler.sampler if type(batch_sampler) is BatchSampler else batch_sampler


def asks_once(loader: DataLoader[Any], ranks: Sequence[int] = ()) -> bool:
    """Tell whether every epoch asks for the same samples, each once; by these ranks together."""
    sampler = _sampler(loader)
    kind = type(sampler)
    if kind is DistributedSampler:
        return bool(len(ranks) == sampler.num_replicas)
    if kind is RandomSampler:
        return not sampler.replacement and bool(sampler.num_samples == len(sampler.data_source))
    if kind is MixtureSampler:
        return bool(sampler.once)
    return kind in (SequentialSampler, KeyedSampler, SubsetRandomSampler)


def look_ahead(
    loader: DataLoader[Any],
    epochs: int,
    *,
    draws: tuple[bool, bool] = (False, True),
    ranks: Sequence[int] = (),
) -> list[Indices] | None:
    """Tell what the epoch that begins now asks for, and the ones after it, without changing any of it.

    Samplers of torch and of foreload are run ahead, and the generators that they draw from are set back. Later
    epochs are known where the order is a function of the epoch, or comes from a generator of the user's own, as
    long as nobody else draws from that. What a user's own sampler will do is not known, and None is returned.

    Args:
        loader: whose order.
        epochs: how many to look ahead; fewer may be given back.
        ranks: those of a ``DistributedSampler`` that use the cache; the loader's own if none are given.
        draws: whether the coming epoch, and each later one, still draws a base seed from ``loader.generator``.

    Returns:
        The samples of the coming epoch in order, and of later ones as far as they are known.
    """
    batch_sampler = loader._index_sampler
    sampler = _sampler(loader)
    whole = type(batch_sampler) is not BatchSampler or not batch_sampler.drop_last
    kind = type(sampler)
    if kind not in KNOWN_SAMPLERS:
        return None
    if kind is DistributedSampler and type(batch_sampler) is BatchSampler:
        return _of_ranks(sampler, batch_sampler, ranks or [sampler.rank], epochs)
    if kind is MixtureSampler and sampler.num_replicas > 1 and len(ranks) > 1:
        return None  # the others' shares are dealt by samplers of their own
    if kind in (DistributedSampler, KeyedSampler, MixtureSampler):
        ahead_of_time = [_of_epoch(sampler, sampler.epoch + ahead) for ahead in range(epochs)]
        return [_list(later, whole, batch_sampler) for later in ahead_of_time]
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
    return known


def _of_ranks(
    sampler: DistributedSampler[Any],
    batch_sampler: BatchSampler,
    ranks: Sequence[int],
    epochs: int,
) -> list[Indices]:
    size, drop_last = batch_sampler.batch_size, batch_sampler.drop_last
    known = []
    for epoch in range(sampler.epoch, sampler.epoch + epochs):
        dealt = global_batches(sampler, epoch, size, drop_last)
        known.append(np.concatenate([np.zeros(0, np.int64), *(parts[rank] for parts in dealt for rank in ranks)]))
    return known


def _of_epoch(sampler: Any, epoch: int) -> Any:
    other = copy.copy(sampler)
    other.epoch = epoch
    return other


def _list(sampler: Any, whole: bool, batch_sampler: Any) -> Indices:
    if type(sampler) in (KeyedSampler, MixtureSampler):
        indices: Indices = sampler.positions(0, len(sampler))
    else:
        indices = np.fromiter(iter(sampler), np.int64)
    return indices if whole else indices[: len(indices) // batch_sampler.batch_size * batch_sampler.batch_size]
