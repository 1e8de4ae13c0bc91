"""The samplers whose order is known before it is drawn."""

from __future__ import annotations

from typing import Any

from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from foreload.order.mixture import MixtureSampler
from foreload.order.samplers import KeyedSampler

__all__ = ["KNOWN_SAMPLERS", "draws_at_once"]

# Torch's and foreload's own samplers, but no class derived from them, which may do anything.
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


def draws_at_once(sampler: Any) -> bool:
    """Whether drawing a whole epoch at its first index is what torch does, or cannot be noticed.

    ``RandomSampler`` draws block by block from a generator of the user's, who may read it in between.
    """
    return type(sampler) is not RandomSampler or sampler.generator is None
