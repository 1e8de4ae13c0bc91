"""Whether what is asked for is what was foreseen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property

import numpy as np

from foreload.checks import Array

__all__ = ["DriftWatch"]

# So many more requests that were not foreseen than ones that were are no accident.
_MAX_SURPRISES = 16

# A request was foreseen about now, if that is within this part of the mean distance between two requests for its
# sample. By chance one in three is.
_NEAR_SHARE = 1 / 8


class DriftWatch:
    """Compares what workers ask for with what was foreseen.

    A thread that loads whole batches follows the foreseen requests one by one, with a jump after each batch. What
    is reached by a jump was foreseen if it lies near to where the thread was, or near to where all workers are.

    Args:
        accesses: what was foreseen.
        samples: how many there are in the dataset.
        asked: tells how often all workers have asked; by default only the caller's own requests count.
    """

    def __init__(self, accesses: Array, samples: int, asked: Callable[[], int] | None = None) -> None:
        self._accesses = accesses
        self._samples = samples
        self._asked = asked
        self._mine = threading.local()

    @cached_property
    def _places(self) -> tuple[Array, Array]:
        """The positions of all samples, and where each sample's begin."""
        order = np.argsort(self._accesses, kind="stable")
        return order, np.searchsorted(self._accesses[order], np.arange(self._samples + 1))

    def is_surprised(self, sample: int) -> bool:
        """Take note of a request; True once there have been too many others than foreseen."""
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
                return bool(mine["surprises"] >= _MAX_SURPRISES)
            place = found
        mine.update(at=place, before=sample, surprises=max(0, mine.get("surprises", 0) - 1))
        return False

    def _find(self, sample: int, at: int, asked: int) -> int | None:
        """Find where this request was foreseen, after the thread's last one or about now."""
        order, begins = self._places
        places = order[begins[sample] : begins[sample + 1]]
        if not len(places):
            return None
        # Who has lost the thread finds it by two requests in a row.
        pairs = places[(places > 0) & (self._accesses[places - 1] == self._mine.__dict__.get("before", -1))]
        if len(pairs):
            return int(pairs[np.abs(pairs - at).argmin()])
        near = max(1, int(_NEAR_SHARE * len(self._accesses) / len(places)))
        ahead = places[(places > at) & (places <= at + near)]
        if len(ahead):
            return int(ahead[0])
        closest = int(places[np.abs(places - asked).argmin()])
        return closest if abs(closest - asked) <= near else None
