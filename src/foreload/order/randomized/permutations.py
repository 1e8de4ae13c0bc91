"""The permutations of ``torch.randperm``, in blocks: the first batch need not wait until the last one is drawn.

Torch shuffles from the first position on, each of which is final after one step. So the numbers are the same, and
of 100 million of them the first thousand take a millisecond instead of seconds. That depends on how torch draws,
which is tried out once per process; if it draws otherwise, or something stands in its place, it is asked itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch

from foreload import _native
from foreload._torch import has_own_randperm
from foreload.checks import Indices
from foreload.order.samplers import BLOCK, FIRST_BLOCK

__all__ = ["permutations"]


def permutations(size: int, wanted: int, seed: int, more: Callable[[], int] = int) -> Iterator[Indices]:
    """Yield ``wanted`` numbers of permutations of ``range(size)``, as ``RandomSampler`` draws them without others.

    Args:
        size: the length of each permutation.
        wanted: how many numbers; the last permutation is cut short.
        seed: of the generator that all of them are drawn from.
        more: is asked in the end how many numbers come after these.

    >>> blocks = permutations(5, 8, seed=3)
    >>> generator = torch.Generator().manual_seed(3)
    >>> expected = [torch.randperm(5, generator=generator).tolist() for _ in range(2)]
    >>> np.concatenate(list(blocks)).tolist() == (expected[0] + expected[1])[:8]
    True
    """
    if not (0 < size < _native.FisherYates.end and has_own_randperm() and _draws_as_torch()):
        yield from _by_torch(size, wanted, seed, more)
        return
    source, count = _native.FisherYates(size, seed), FIRST_BLOCK
    for left in _asked(wanted, more):
        while left > 0:
            block = np.empty(min(count, left), np.int64)
            source.fill(block)
            yield block
            left -= len(block)
            count = BLOCK


def _by_torch(size: int, wanted: int, seed: int, more: Callable[[], int]) -> Iterator[Indices]:
    generator = torch.Generator()
    generator.manual_seed(seed)
    kept = np.zeros(0, np.int64)
    for left in _asked(wanted, more):
        while left > 0:
            kept = kept if len(kept) else torch.randperm(size, generator=generator).numpy()
            yield kept[:left]
            left, kept = left - len(kept[:left]), kept[left:]


def _asked(wanted: int, more: Callable[[], int]) -> Iterator[int]:
    """Yield how many numbers to draw at first, and then, when these have been taken, how many after them."""
    yield wanted
    yield more()


@cache
def _draws_as_torch() -> bool:
    """Try whether torch draws the same permutations, with more draws than a generator has words."""
    for size, seed in ((1, 5), (2, (1 << 63) - 1), (1000, (1 << 40) + 11)):
        generator = torch.Generator()
        generator.manual_seed(seed)
        source, own = _native.FisherYates(size, seed), np.empty(size, np.int64)
        for _ in range(2):
            source.fill(own)
            if not np.array_equal(own, torch.randperm(size, generator=generator).numpy()):
                return False
    return True
