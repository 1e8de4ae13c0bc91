"""Ranks swap samples within each global batch, so that each goes to a rank that keeps it.

The gradient of a step is averaged over all ranks, so it makes no difference which rank computes a sample's share
of it. Every rank works out the same swaps from the same numbers; nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from foreload import _native

__all__ = ["Router", "global_batches", "global_order"]

Indices = np.ndarray[Any, np.dtype[np.int64]]


class Router:
    """Where each sample is at home.

    A keyed permutation gives every sample a position; its home is the rank ``position % ranks``, and each rank
    keeps the samples of lowest positions that are at home there.

    Args:
        samples: how many there are.
        ranks: how many ranks.
        seed: of the permutation; the same on every rank.

    >>> router = Router(8, ranks=2)
    >>> swapped = router.route([np.array([0, 1]), np.array([2, 3])])
    >>> sorted(np.concatenate(swapped).tolist()), [len(part) for part in swapped]
    ([0, 1, 2, 3], [2, 2])
    """

    def __init__(self, samples: int, ranks: int, seed: int = 0) -> None:
        self.ranks = ranks
        self.by_position = np.empty(samples, np.int64)
        if samples:
            _native.permute(samples, seed, 0, 0, self.by_position)
        self._position = np.empty(samples, np.int64)
        self._position[self.by_position] = np.arange(samples)

    def at_home(self, rank: int) -> Indices:
        """List the samples that are at home at ``rank``, those to be kept first at the beginning."""
        return self.by_position[rank :: self.ranks]

    def held(self, rank: int, capacity: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Tell for each sample whether ``rank`` keeps it, if it has room for ``capacity`` of them."""
        held = np.zeros(len(self.by_position), np.bool_)
        held[self.at_home(rank)[:capacity]] = True
        return held

    def route(self, parts: Sequence[Indices]) -> list[Indices]:
        """Swap the samples of one global batch.

        Args:
            parts: what each rank would load.

        Returns:
            What each rank loads instead: as many, the same ones together. Samples go home, those that are kept
            first, until the rank has as many as it must have; what is left over fills the other places.
        """
        batch = np.concatenate(parts)
        order = np.argsort(self._position[batch], kind="stable")
        home = self._position[batch[order]] % self.ranks
        taken: list[Indices] = []
        left: list[Indices] = []
        for rank, part in enumerate(parts):
            wanted = order[home == rank]
            taken.append(wanted[: len(part)])
            left.append(wanted[len(part) :])
        rest = np.sort(np.concatenate(left))
        routed = []
        for part, own in zip(parts, taken, strict=True):
            missing = len(part) - len(own)
            routed.append(batch[np.sort(np.concatenate([own, rest[:missing]]))])
            rest = rest[missing:]
        return routed


def global_order(sampler: DistributedSampler[Any], epoch: int, begin: int = 0) -> Indices:
    """Give the samples of all ranks: rank r of R is given ``order[r::R]``, as torch's sampler deals them.

    From position ``begin`` on, which may have been reached by another number of ranks.
    """
    size = len(sampler.dataset)  # type: ignore[arg-type]
    if sampler.shuffle:
        generator = torch.Generator()
        generator.manual_seed(sampler.seed + epoch)
        order = torch.randperm(size, generator=generator).numpy()
    else:
        order = np.arange(size)
    # What is missing for equal shares is taken from the beginning again; what is too much is left out.
    rest, ranks = max(0, size - begin), sampler.num_replicas
    shares = rest // ranks if sampler.drop_last else -(-rest // ranks)
    return np.resize(order, begin + shares * ranks)[begin:]


def global_batches(
    sampler: DistributedSampler[Any],
    epoch: int,
    batch_size: int,
    drop_last: bool,
    router: Router | None = None,
    begin: int = 0,
) -> Iterator[list[Indices]]:
    """Iterate over an epoch's global batches: what each rank loads, after the swaps if there is a router."""
    ranks = sampler.num_replicas
    order = global_order(sampler, epoch, begin)
    each = len(order) // ranks
    for start in range(0, each, batch_size):
        if drop_last and start + batch_size > each:
            return
        batch = order[start * ranks : (start + batch_size) * ranks]
        parts = [batch[rank::ranks] for rank in range(ranks)]
        yield parts if router is None else router.route(parts)
