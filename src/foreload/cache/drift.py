"""Detection of requests that drift from the order that the cache was planned for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property

import numpy as np

from foreload.checks import Array

__all__ = ["DriftWatch"]

# With this many more unpredicted requests than predicted ones, the prediction is taken to be wrong.
_TOO_MANY_SURPRISES = 16

# A request counts as predicted if it was expected this near, as a share of the mean distance between two requests
# for its sample. One in three is by chance.
_NEAR_SHARE = 1 / 8


class DriftWatch:
    """Compares the requests of workers with those that were predicted.

    A thread that loads whole batches follows the predicted requests one by one, with a jump after each batch. A
    request after a jump counts as predicted if it lies near the thread's last one, or near where all workers are.

    Args:
        accesses: the samples of the predicted requests, in order.
        samples: the number of samples in the dataset.
        asked: returns the number of requests of all workers; by default only the caller's own count.
    """

    def __init__(self, accesses: Array, samples: int, asked: Callable[[], int] | None = None) -> None:
        self._accesses = accesses
        self._samples = samples
        self._asked = asked
        self._mine = threading.local()

    @cached_property
    def _places(self) -> tuple[Array, Array]:
        """The positions of all requests sorted by sample, and where those of each sample begin."""
        order = np.argsort(self._accesses, kind="stable")
        return order, np.searchsorted(self._accesses[order], np.arange(self._samples + 1))

    def is_surprised(self, sample: int) -> bool:
        """Record a request; return True once too many were not predicted."""
        mine = self._mine.__dict__
        at = mine.get("at", -1)
        mine["asked"] = mine.get("asked", -1) + 1
        if at + 1 < len(self._accesses) and self._accesses[at + 1] == sample:
            place = at + 1
        else:
            found = self._find(sample, at, mine["asked"] if self._asked is None else self._asked())
            if found is None:
                mine["surprises"] = mine.get("surprises", 0) + 1
                mine["before"] = sample
                return bool(mine["surprises"] >= _TOO_MANY_SURPRISES)
            place = found
        mine.update(at=place, before=sample, surprises=max(0, mine.get("surprises", 0) - 1))
        return False

    def _find(self, sample: int, at: int, asked: int) -> int | None:
        """Return where a request was predicted, after the thread's last one or near all workers; else None."""
        order, begins = self._places
        places = order[begins[sample] : begins[sample + 1]]
        if not len(places):
            return None
        # A thread whose place is lost is found again by two requests in a row.
        pairs = places[(places > 0) & (self._accesses[places - 1] == self._mine.__dict__.get("before", -1))]
        if len(pairs):
            return int(pairs[np.abs(pairs - at).argmin()])
        near = max(1, int(_NEAR_SHARE * len(self._accesses) / len(places)))
        ahead = places[(places > at) & (places <= at + near)]
        if len(ahead):
            return int(ahead[0])
        closest = int(places[np.abs(places - asked).argmin()])
        return closest if abs(closest - asked) <= near else None
