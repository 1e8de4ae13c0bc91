"""The order that ranks share, and the swaps between them, found by tables of all samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from foreload import _native
from foreload.checks import Indices
from foreload.order.resume import Ranges
from foreload.order.samplers import KeyedSampler
from foreload.order.skip import LeftOut

__all__ = ["PlainRouter", "plain_order"]


def plain_order(
    sampler: Any,
    epoch: int,
    taken: Ranges | None = None,
    skip: LeftOut | None = None,
    left_out: Ranges | None = None,
) -> Indices:
    """Return the order of all ranks, of which rank r of R loads ``order[r::R]``."""
    order = _whole(sampler, epoch)
    keep = np.ones(len(order), np.bool_)
    for begin, end in taken or ():
        keep[begin:end] = False
    again = order
    if skip is not None and skip.has_samples:
        found = np.array([index in set(skip.samples.tolist()) for index in order.tolist()], np.bool_)
        if left_out is not None:
            left_out += [(place, place + 1) for place in np.flatnonzero(found & keep).tolist()]
        keep &= ~found
        again = order[~found]
    rest, ranks = order[keep], sampler.num_replicas
    shares = len(rest) // ranks if sampler.drop_last else -(-len(rest) // ranks)
    return np.concatenate([rest[: shares * ranks], np.resize(again, max(0, shares * ranks - len(rest)))])


def _whole(sampler: Any, epoch: int) -> Indices:
    if isinstance(sampler, KeyedSampler):
        order = np.empty(len(sampler.data_source), np.int64)
        if len(order):
            _native.permute(len(order), sampler.seed, epoch & 0xFFFFFFFF, 0, order)
        return order
    size = len(sampler.dataset)
    generator = torch.Generator().manual_seed(sampler.seed + epoch)
    return torch.randperm(size, generator=generator).numpy() if sampler.shuffle else np.arange(size)


class PlainRouter:
    """A :class:`~foreload.order.ranks.Router` that holds the position of every sample."""

    def __init__(self, samples: int, ranks: int, seed: int = 0) -> None:
        self.ranks = ranks
        self.by_position = np.empty(samples, np.int64)
        if samples:
            _native.permute(samples, seed, 0, 0, self.by_position)
        self._position = np.argsort(self.by_position)

    def owned_by(self, rank: int) -> Indices:
        return self.by_position[rank :: self.ranks]

    def route(self, parts: Sequence[Indices]) -> list[Indices]:
        batch = np.concatenate(parts)
        order = np.argsort(self._position[batch], kind="stable")
        owner = self._position[batch[order]] % self.ranks
        wanted = [order[owner == rank] for rank in range(self.ranks)]
        taken = [own[: len(part)] for own, part in zip(wanted, parts, strict=True)]
        rest = np.sort(np.concatenate([own[len(part) :] for own, part in zip(wanted, parts, strict=True)]))
        routed = []
        for part, own in zip(parts, taken, strict=True):
            missing = len(part) - len(own)
            routed.append(batch[np.sort(np.concatenate([own, rest[:missing]]))])
            rest = rest[missing:]
        return routed
