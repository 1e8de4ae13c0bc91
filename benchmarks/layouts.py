"""Hits and traffic of a cluster's caches, simulated with foreload's own orders, routers and plans.

A cluster consists of machines of a few ranks each. Each machine has one cache, and loads what is its ranks' part
of each global batch. The parts come from :func:`foreload.order.samplers.global_batches`, the plans from
:func:`foreload.cache.plan.compile_plan` with the residents that the epoch before has left, as in a loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler

from foreload.cache.loader_cache import _MAX_ACCESSES_AHEAD, _MAX_EPOCHS_AHEAD
from foreload.cache.plan import compile_plan
from foreload.order.epoch_order import EpochOrder
from foreload.order.lookahead import asks_once, look_ahead
from foreload.order.ranks import Router
from foreload.order.samplers import KeyedSampler, global_batches

__all__ = ["CACHES", "Layout", "Traffic", "hits", "traffic"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layout:
    """A cluster and its data.

    Attributes:
        ranks: in all.
        samples: of the dataset, all of one size.
        capacity: the samples that a machine can keep.
        batch: samples per rank and step.
        per_machine: ranks of a machine, next to each other.
        seed: of the order.
    """

    ranks: int
    samples: int
    capacity: int
    batch: int = 32
    per_machine: int = 8
    seed: int = 0

    @property
    def machines(self) -> int:
        """The number of machines."""
        return self.ranks // self.per_machine

    def ranks_of(self, machine: int) -> range:
        """Return the ranks of a machine."""
        return range(machine * self.per_machine, (machine + 1) * self.per_machine)

    def sampler(self, epoch: int) -> KeyedSampler:
        """Return the order of an epoch, as ``DataLoader(shuffle=True, seed=)`` has it."""
        return KeyedSampler(range(self.samples), self.seed, epoch, num_replicas=self.ranks)

    def accesses(self, machine: int, epoch: int, router: Router | None = None) -> Array:
        """Return what a machine loads in an epoch, in order."""
        own = self.ranks_of(machine)
        batches = global_batches(self.sampler(epoch), epoch, self.batch, False, router)
        return np.concatenate([parts[own.start : own.stop].T.ravel() for parts in batches])


def _kept(layout: Layout, machine: int, epochs: int, members: Array, router: Router | None) -> Iterator[float]:
    """Yield the hits of a cache that keeps these samples from the first time on, as many as fit."""
    present = np.zeros(layout.samples, np.bool_)
    for epoch in range(epochs):
        accesses = layout.accesses(machine, epoch, router)
        yield float(present[accesses].mean())
        first = accesses[np.sort(np.unique(accesses, return_index=True)[1])]
        new = first[members[first] & ~present[first]]
        present[new[: layout.capacity - int(present.sum())]] = True


def first_come(layout: Layout, machine: int, epochs: int) -> Iterator[float]:
    """Samples that came first, kept for good: the cache of a loader with more than two million samples."""
    return _kept(layout, machine, epochs, np.ones(layout.samples, np.bool_), None)


def routed(layout: Layout, machine: int, epochs: int) -> Iterator[float]:
    """Samples that the machine's ranks own, which are swapped to them: ``Cache(route=True)``."""
    router, members = Router(layout.samples, layout.ranks), np.zeros(layout.samples, np.bool_)
    for rank in layout.ranks_of(machine):
        members[router.owned_by(rank, layout.capacity // layout.per_machine)] = True
    return _kept(layout, machine, epochs, members, router)


def planned(layout: Layout, machine: int, epochs: int) -> Iterator[float]:
    """The cache of a loader with up to two million samples: a plan as far ahead as it looks."""
    ranks = list(layout.ranks_of(machine))
    if asks_once(layout.sampler(0), ranks):
        yield from first_come(layout, machine, epochs)
        return
    present = np.zeros(layout.samples, np.bool_)
    ahead = max(1, min(_MAX_EPOCHS_AHEAD, _MAX_ACCESSES_AHEAD // layout.samples))
    for epoch in range(epochs):
        order = EpochOrder(BatchSampler(layout.sampler(epoch), layout.batch, drop_last=False))
        known = look_ahead(order, ahead, ranks=ranks)
        assert known is not None
        plan = compile_plan(
            np.concatenate(known), layout.samples, layout.capacity, "opt", resident=present, tail=True
        )
        now = len(known[0])
        yield float(plan.hits[:now].mean())
        present &= plan.retained
        present[known[0]] = plan.keep[:now]  # no epoch has a sample twice, but for a few at its end


def recent(layout: Layout, machine: int, epochs: int) -> Iterator[float]:
    """The samples that were used last: about what a page cache keeps of files that are read whole, too."""
    each = [layout.accesses(machine, epoch) for epoch in range(epochs)]
    plan = compile_plan(np.concatenate(each), layout.samples, layout.capacity, "lru")
    ends = np.cumsum([len(accesses) for accesses in each])
    yield from (float(part.mean()) for part in np.split(plan.hits, ends[:-1]))


def nothing(layout: Layout, machine: int, epochs: int) -> Iterator[float]:
    """No cache."""
    yield from [0.0] * epochs


def pooled(layout: Layout, machine: int, epochs: int) -> Iterator[float]:
    """One cache over all machines, each with a part of it, which send each other samples."""
    yield 0.0
    yield from [min(1.0, layout.machines * layout.capacity / layout.samples)] * (epochs - 1)


CACHES = {
    "none": nothing,
    "LRU": recent,
    "static shards": pooled,  # as many hits, all of them on the machine itself
    "pooled": pooled,
    "foreload, more than 2 million samples": first_come,
    "foreload, planned": planned,
    "foreload, routed": routed,
}


def hits(cache: str, layout: Layout, machine: int, epochs: int) -> list[float]:
    """Return the share of hits of a machine in each epoch, wherever in the cluster the sample is."""
    return list(CACHES[cache](layout, machine, epochs))


@dataclass(frozen=True)
class Traffic:
    """The data that an epoch moves, as multiples of the dataset's size.

    Attributes:
        hits: the share of samples that come from a cache.
        storage: read from storage, by all machines together.
        between: sent from machine to machine.
        per_machine: received over the network by one machine, if storage is behind it too.
    """

    hits: float
    storage: float
    between: float
    per_machine: float


def traffic(cache: str, layout: Layout, hit_rate: float) -> Traffic:
    """Return what an epoch with so many hits moves."""
    between = hit_rate * (1 - 1 / layout.machines) if cache == "pooled" else 0.0
    storage = 1 - hit_rate
    return Traffic(hit_rate, storage, between, (storage + between) / layout.machines)
