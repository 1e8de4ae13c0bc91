"""The samplers whose order is known before it is drawn, and the generators that they draw from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from foreload.order.mixture import MixtureSampler
from foreload.order.samplers import KeyedSampler

__all__ = ["KNOWN_SAMPLERS", "draws_at_once", "kept_generators"]

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


@contextmanager
def kept_generators(*generators: torch.Generator | None) -> Iterator[None]:
    """Set generators back to their present states at the end of the block."""
    states = [(generator, generator.get_state()) for generator in generators if generator is not None]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)
