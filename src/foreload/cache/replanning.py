"""The plan of a store for a sampler's epochs, made anew whenever they do not come as planned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foreload.cache.plan import compile_plan
from foreload.cache.store import SampleStore
from foreload.checks import Array, Indices
from foreload.errors import warn_user

__all__ = ["MAX_PLANNED", "EpochPlans", "fall_back"]

# The longest schedule; beyond it, what is present stays.
MAX_PLANNED = 1 << 26

# The share of an epoch that is dropped from which on a plan of several epochs gains more than it costs.
_MIN_DROPPED = 0.005

# So many requests for samples that nobody has drawn are no mere look at the dataset.
_MAX_STRAY = 16


class EpochPlans:
    """Lets a store follow the epochs of a sampler, of which each is told when it begins.

    A plan reaches beyond the epoch that begins, so that what is kept at its end is what the next ones need first.
    It is kept for as long as epochs are those that it was made for; otherwise another one is made, which begins
    with the samples that are there.

    Args:
        store: of the samples.
        most: the most samples to keep.
    """

    def __init__(self, store: SampleStore, most: int) -> None:
        self._store = store
        self._most = most
        self._schedule: Indices = np.zeros(0, np.int64)
        self._has_schedule = False
        self._position = 0  # in the schedule, of this epoch's first access
        self._now: Indices = self._schedule
        self._planned = 0  # requests that are due in this epoch
        self._unrequested = 0  # indices at the end of an epoch that a loader draws and drops
        self._asked = store.num_requests()  # requests before this epoch
        self._came = 0  # requests in the last one
        self._counted = 0  # draws of this epoch in `_drawn`
        self._drawn: Array = np.zeros(len(store), np.int64)

    @property
    def drops(self) -> bool:
        """Whether a loader leaves out so much of each epoch that it pays to plan with what it leaves out."""
        return self._unrequested >= _MIN_DROPPED * max(1, len(self._now))

    def end(self, num_drawn: int) -> None:
        """Record how many indices of the present epoch were drawn, before another one begins."""
        self._count(num_drawn)
        self._came = self._store.num_requests() - self._asked
        if num_drawn == len(self._now) and len(self._now) - self._came in range(len(self._now) // 2):
            self._unrequested = len(self._now) - self._came

    def begin(self, now: Indices, later: Sequence[Indices], *, was_foreseen: bool, asks_once: bool) -> None:
        """Plan for an epoch that is about to be drawn.

        Args:
            now: its indices.
            later: those of later epochs.
            was_foreseen: whether it was the first of ``later`` the last time, and the others still hold.
            asks_once: whether each epoch has the same samples, each once.
        """
        goes_on = was_foreseen and self._has_schedule and self._came == self._planned
        self._position += self._planned
        self._now, self._asked, self._counted = now, self._store.num_requests(), 0
        self._planned = len(self._requested(now))
        self._store.native.due = self._asked + len(now)
        if asks_once and not self.drops:
            self._has_schedule = False
            self._keep_fixed_set(now)
        elif not goes_on or self._runs_out(later):
            self._plan(now, later)

    def _requested(self, epoch: Indices) -> Indices:
        """Return the accesses of an epoch that the store will be asked for."""
        epoch = epoch[: len(epoch) - self._unrequested] if self._unrequested < len(epoch) else epoch
        inside = (epoch >= 0) & (epoch < len(self._store))
        return epoch if inside.all() else epoch[inside]

    def _runs_out(self, later: Sequence[Indices]) -> bool:
        """Whether more than half of what is known lies beyond the schedule."""
        ahead = len(self._schedule) - self._position - self._planned
        return 2 * ahead < sum(map(len, later))

    def _keep_fixed_set(self, now: Indices) -> None:
        """Keep samples that are there, and those that come first: no set of as many is better."""
        members = self._store.residents()
        members[np.flatnonzero(members)[self._most :]] = False
        first = self._requested(now)
        first = first[~members[first]][: self._most - int(members.sum())]
        members[first] = True
        self._store.native.follow_members(members.view(np.uint8))

    def _plan(self, now: Indices, later: Sequence[Indices]) -> None:
        self._schedule = np.concatenate([self._requested(epoch) for epoch in (now, *later)])[:MAX_PLANNED]
        self._has_schedule = True
        self._position = 0
        self._drawn[:] = 0
        plan = compile_plan(
            self._schedule, len(self._store), self._most, resident=self._store.residents(), tail=True
        )
        self._store.native.follow_accesses(self._schedule, plan.keep.view(np.uint8), plan.retained.view(np.uint8))

    def follows(self, num_drawn: int) -> bool:
        """Whether requests are the sampler's, which has drawn ``num_drawn`` indices of this epoch so far."""
        if not self._has_schedule:
            return True
        self._count(num_drawn)
        uses = np.empty(len(self._store), np.int64)
        self._store.native.uses(uses)
        return int(np.maximum(uses - self._drawn, 0).sum()) <= _MAX_STRAY + self._unrequested

    def _count(self, num_drawn: int) -> None:
        """Count how often each sample has been drawn since the schedule began; it is not requested more often."""
        drawn = self._now[self._counted : num_drawn]
        drawn = drawn[(drawn >= 0) & (drawn < len(self._store))]
        self._drawn += np.bincount(drawn, minlength=len(self._store))
        self._counted = num_drawn

    def give_up(self, why: str) -> None:
        """Keep the samples that were used last, until another epoch begins; warn once if the store is in use."""
        self._has_schedule = False
        fall_back(self._store, why)


def fall_back(store: SampleStore, why: str) -> None:
    """Let a store keep the samples used last; if it is in use, warn once for all processes that share it."""
    store.native.follow_rule("recent")
    if store.num_requests() > 0 and store.native.first_to_tell():
        warn_user(
            f"OPTCache: the requests are not what OPTInit foresaw ({why}); until they are, the cache keeps the "
            "samples that were used last (LRU). Give OPTInit the class of the loader's sampler, its generator "
            "before the first epoch (if it has none, give one to the loader too, as generator=, and leave out "
            "seed=), and n=len(dataset), of the whole dataset if the loader has a Subset (of "
            "which a WeightedRandomSampler or SubsetRandomSampler does not know: give it weights or indices of "
            "the whole instead)"
        )
