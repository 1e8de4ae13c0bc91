"""The order of coming epochs, found without changing it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from foreload._torch import draw_seed, item_sampler
from foreload.checks import Indices
from foreload.order.epoch_order import EpochOrder
from foreload.order.generator_states import kept_generators
from foreload.order.known import KNOWN_SAMPLERS
from foreload.order.mixture import MixtureSampler
from foreload.order.ranks import Router
from foreload.order.resume import BEGINNING, Start
from foreload.order.samplers import KeyedSampler, concatenated, global_batches, num_ranks
from foreload.order.skip import LeftOut

__all__ = ["asks_once", "look_ahead", "repeats_nothing", "step_indices"]


def asks_once(sampler: Any, ranks: Sequence[int] = ()) -> bool:
    """Whether every epoch of a sampler has the same samples, each once; on these ranks together."""
    kind = type(sampler)
    if kind is DistributedSampler or (kind is KeyedSampler and sampler.num_replicas > 1):
        return sorted(ranks) == list(range(sampler.num_replicas))
    if kind is RandomSampler:
        return not sampler.replacement and bool(sampler.num_samples == len(sampler.data_source))
    if kind is MixtureSampler:
        return bool(sampler.once)
    return kind in (SequentialSampler, KeyedSampler, SubsetRandomSampler)


def repeats_nothing(sampler: Any, ranks: Sequence[int] = ()) -> bool:
    """Whether no epoch of a sampler has a sample twice, but to fill its end; on these ranks together."""
    kind = type(sampler)
    if kind in (DistributedSampler, KeyedSampler) and sampler.num_replicas > 1:
        return len(set(ranks)) == len(ranks)
    if kind is RandomSampler and not sampler.replacement:
        return bool(sampler.num_samples <= len(sampler.data_source))
    return asks_once(sampler, ranks)


def look_ahead(
    order: EpochOrder, epochs: int, *, draws_seed: bool = True, ranks: Sequence[int] = ()
) -> list[Indices] | None:
    """Return the samples of an epoch that is about to begin, and of later ones as far as they are known.

    Those of the coming epoch are the very indices that are delivered (see :meth:`EpochOrder.peek`). Later ones are
    known if the order is a function of the epoch, or comes from a generator of the user's that nothing else draws
    from meanwhile; generators are set back to their present state.

    Args:
        order: of the coming epoch.
        epochs: the most epochs to return.
        draws_seed: whether each later epoch first draws a base seed from the loader's generator.
        ranks: those of a ``DistributedSampler`` that use the cache, one as often as processes have it; the
            loader's own if none are given.

    Returns:
        The samples of each epoch in order; None for a sampler of the user's own.
    """
    sampler = order.item_sampler
    kind = type(sampler)
    if kind not in KNOWN_SAMPLERS:
        return None
    if num_ranks(sampler) > 1 and type(order.sampler) is BatchSampler:
        return _of_ranks(order, ranks or [sampler.rank], epochs)
    if kind is MixtureSampler and sampler.num_replicas > 1 and len(ranks) > 1:
        return None  # the other ranks have samplers of their own
    coming = order.peek()
    if coming is None:
        return None
    if kind in (DistributedSampler, KeyedSampler, MixtureSampler):
        assert order.epoch is not None
        later_epochs = range(order.epoch + 1, order.epoch + epochs)
        return [coming, *(_listed(_of_epoch(sampler, epoch), order, epoch) for epoch in later_epochs)]
    return [coming, *_drawn_later(order, epochs - 1, draws_seed=draws_seed)]


def _drawn_later(order: EpochOrder, epochs: int, *, draws_seed: bool) -> list[Indices]:
    sampler = order.item_sampler
    generator = getattr(sampler, "generator", None)
    if generator is None:
        return []  # what else draws from torch's global generator before the next epoch is not known
    sources = {id(source): source for source in (torch.default_generator, generator, order.generator)}
    known = []
    with kept_generators(*sources.values()):
        if not order.drew_at_once:
            _listed(sampler, order)  # the coming epoch itself
        for _ in range(epochs):
            if draws_seed:
                draw_seed(order.generator)
            known.append(_listed(sampler, order))
    return known


def _of_ranks(order: EpochOrder, ranks: Sequence[int], epochs: int) -> list[Indices]:
    sampler: Any = order.item_sampler
    batches: BatchSampler = order.sampler
    assert order.epoch is not None
    known = []
    for epoch in range(order.epoch, order.epoch + epochs):
        skip = None if order.skip is None else order.skip(epoch)
        taken = None if skip is None else skip.positions(batches.batch_size * sampler.num_replicas)
        all_batches = global_batches(sampler, epoch, batches.batch_size, batches.drop_last, taken=taken, skip=skip)
        known.append(concatenated(parts[rank] for parts in all_batches for rank in ranks))
    return known


def _of_epoch(sampler: Any, epoch: int) -> Any:
    other = copy.copy(sampler)
    other.epoch = epoch
    return other


def _listed(sampler: Any, order: EpochOrder, epoch: int | None = None) -> Indices:
    """Return the indices of a sampler's epoch, without what is left out and a last batch that is dropped."""
    if isinstance(sampler, (KeyedSampler, MixtureSampler)):
        indices = sampler.positions(0, len(sampler))
    else:
        indices = np.fromiter(iter(sampler), np.int64)
    batches = order.sampler
    skip = None if order.skip is None or epoch is None else order.skip(epoch)
    if skip is not None:
        indices = skip.remaining(indices, batches.batch_size if type(batches) is BatchSampler else 1)
    if type(batches) is BatchSampler and batches.drop_last:
        return indices[: len(indices) // batches.batch_size * batches.batch_size]
    return indices


def step_indices(
    sampler: Any,
    epoch: int,
    step: int,
    *,
    router: Router | None = None,
    skip: Callable[[int], LeftOut | None] | None = None,
) -> list[int]:
    """Return the samples of one batch of an epoch whose order is a function of its number.

    Args:
        sampler: the batch sampler of a DataLoader, or its sampler without batching.
        epoch: the number of the epoch.
        step: the number of the batch.
        router: swaps samples between the ranks of a ``DistributedSampler``.
        skip: returns what is left out of an epoch, which is not counted.

    Raises:
        ValueError: the order is not a function of the epoch.
        IndexError: the epoch has fewer batches.
    """
    inner = item_sampler(sampler)
    if type(inner) not in (SequentialSampler, DistributedSampler, KeyedSampler, MixtureSampler):
        raise ValueError(
            f"the order of {type(inner).__name__} is not known without drawing it; with seed= (and shuffle=True) "
            "it is a function of (seed, epoch)"
        )
    other = _of_epoch(inner, epoch) if hasattr(inner, "epoch") else inner
    is_batched = type(sampler) is BatchSampler
    batches = BatchSampler(other, sampler.batch_size if is_batched else 1, is_batched and sampler.drop_last)
    left_out = None if skip is None else skip(epoch)
    first = 0
    if left_out is None or not left_out.has_samples:
        # Steps keep their samples, so the order need not be made from its beginning.
        first = step if left_out is None else left_out.original(step)
    size = batches.batch_size * getattr(inner, "num_replicas", 1)
    start = Start([(0, first * size)]) if first else BEGINNING
    order = EpochOrder(batches, router=router, start=start, skip=skip, number=epoch)
    found = next(islice(order, 0 if first else step, None), None)
    if found is None:
        left = "" if order.present_skip is None else ", with those left out"
        raise IndexError(f"epoch {epoch} has no step {step}: it has {len(order)}{left}")
    indices: list[int] = found.tolist()
    return indices
