"""The order of torch's ``RandomSampler``: the same draws, at the same moments where somebody could see them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import RandomSampler

from foreload._torch import draw_seed
from foreload.checks import Indices
from foreload.order.generator_states import generator_text, kept_generators, set_generator
from foreload.order.known import draws_at_once
from foreload.order.observed import observed_blocks
from foreload.order.randomized.permutations import permutations
from foreload.order.resume import Start
from foreload.order.samplers import Blocks, concatenated

__all__ = ["RandomBlocks"]

# The numbers that torch draws at a time, if they may be drawn again.
_DRAWN = 32


class RandomBlocks(Blocks):
    """The indices that torch's ``RandomSampler`` yields, in blocks.

    Args:
        sampler: the sampler.
        start: where to begin.
    """

    def __init__(self, sampler: RandomSampler, start: Start) -> None:
        self._source = _Source(sampler, start)
        super().__init__(observed_blocks(sampler, _draw(self._source)))

    @property
    def drawn(self) -> Any:
        """The seed, or the state of the user's generator, that the order is drawn from; fixed from now on."""
        source = self._source
        generator = source.sampler.generator
        if source.drawn is None and generator is None:
            with kept_generators(torch.default_generator):
                source.drawn = draw_seed()
        return generator_text(generator) if source.drawn is None else source.drawn

    def peek(self) -> Indices:
        """Return all indices that are still to come, without consuming them."""
        sampler = self._source.sampler
        if draws_at_once(sampler):
            return super().peek()
        # Torch draws block by block; the user's generator must not be ahead of that here either.
        with kept_generators(sampler.generator):
            return concatenated(_draw(self._source))


class _Source:
    """The sampler and the random state that an order is drawn from.

    An object of its own: blocks that are drawn by a method of what holds them would stay, after an epoch that was
    left, until the garbage collector runs.

    Attributes:
        sampler: the sampler.
        start: where to begin.
        drawn: the seed, or the state of the user's generator; None: not fixed yet.
    """

    def __init__(self, sampler: RandomSampler, start: Start) -> None:
        self.sampler, self.start, self.drawn = sampler, start, start.drawn


def _draw(source: _Source) -> Iterator[Indices]:
    # The same draws as RandomSampler.__iter__, and at the same moments: a user's generator may be shared.
    skip = source.start.prefix
    for block in _of_own(source) if source.sampler.generator is None else _of_users(source):
        if skip < len(block):
            yield block[skip:]
        skip = max(0, skip - len(block))


def _of_own(source: _Source) -> Iterator[Indices]:
    """Draw from a generator that nothing else draws from, so that it is not seen when that happens."""
    sampler, start = source.sampler, source.start
    size, wanted = len(sampler.data_source), sampler.num_samples
    # A seed that was fixed for a state counts, but the loop's generator goes on as it would without that.
    seed = draw_seed() if start.drawn is None or not start.begun else 0
    if source.drawn is None:
        source.drawn = seed
    if not sampler.replacement:
        whole = wanted - wanted % size if size else 0
        return permutations(size, whole, source.drawn, partial(_last, sampler, size))
    generator = torch.Generator()
    generator.manual_seed(source.drawn)
    return _with_replacement(sampler, size, generator)


def _of_users(source: _Source) -> Iterator[Indices]:
    sampler = source.sampler
    size, generator = len(sampler.data_source), sampler.generator
    if source.start.drawn is not None:
        set_generator(generator, source.start.drawn)
    source.drawn = generator_text(generator)
    if sampler.replacement:
        yield from _with_replacement(sampler, size, generator)
        return
    for _ in range(sampler.num_samples // size):
        yield torch.randperm(size, generator=generator).numpy()
    # (It may be of no numbers, but is drawn.)
    yield torch.randperm(size, generator=generator).numpy()[: _last(sampler, size)]


def _with_replacement(sampler: RandomSampler, size: int, generator: torch.Generator) -> Iterator[Indices]:
    for _ in range(sampler.num_samples // _DRAWN):
        yield torch.randint(high=size, size=(_DRAWN,), dtype=torch.int64, generator=generator).numpy()
    count = _last(sampler, _DRAWN)
    yield torch.randint(high=size, size=(count,), dtype=torch.int64, generator=generator).numpy()


def _last(sampler: RandomSampler, each: int) -> int:
    """Return how many numbers torch's sampler draws in the end: its dataset may have grown since it began."""
    return sampler.num_samples % each if each else 0
