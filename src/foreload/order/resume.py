"""The place where an interrupted epoch goes on, and the batches that were delivered before it."""

from __future__ import annotations

import operator
import sys
from dataclasses import dataclass, field
from typing import Any

from foreload.order.own_sampler.end import SamplerEnd

__all__ = [
    "BEGINNING",
    "Given",
    "Ranges",
    "Start",
    "kept_whole",
    "merged",
    "read_whole",
]

Ranges = list[tuple[int, int]]


@dataclass(frozen=True)
class Start:
    """The place where an interrupted epoch goes on.

    Attributes:
        given: positions of the order that were delivered before, as sorted ranges (begin, end).
        drawn: what its random order was drawn from.
        begun: whether the order had been drawn from the loop's generators. Otherwise that is done now, to leave
            them as they should be, but ``drawn`` decides.
        over: whether ``drawn`` is the state of a sampler whose epoch was over; this is the next one.
        drew: whether the base seed of the workers is drawn from torch's global generator.
        seeds: the generator of the user's that it is drawn from; None: it is not drawn from one.
        is_fresh: whether this is the beginning of an epoch of the same loader.
        left: whether the loop has left the epoch before it in its middle, where samplers then are.
        ended: how a sampler with a state ended the epoch before it.
    """

    given: Ranges = field(default_factory=list)
    drawn: Any = None
    begun: bool = True
    over: bool = False
    drew: bool = False
    seeds: Any = None
    is_fresh: bool = False
    left: bool = False
    ended: SamplerEnd | None = None

    @property
    def prefix(self) -> int:
        """The number of positions that were delivered without a gap, from the first on."""
        return self.given[0][1] if self.given and self.given[0][0] == 0 else 0


BEGINNING = Start(is_fresh=True)


def kept_whole(own: dict[str, Any]) -> tuple[dict[str, Any]]:
    """Return a part of a state whose keys depend on the moment, in the form in which it is saved.

    ``torch.distributed.checkpoint`` takes nested dicts apart, and loads only the keys that the state of a new
    loader has; but it keeps tuples whole.

    >>> saved = kept_whole({"generators": {"next": None}})
    >>> saved, read_whole(saved), read_whole([7])
    (({'generators': {'next': None}},), {'generators': {'next': None}}, [7])
    """
    return (own,)


def read_whole(saved: Any) -> Any:
    """Return what :func:`kept_whole` was given; anything else as it is. (``json`` makes lists of tuples.)"""
    is_whole = isinstance(saved, (list, tuple)) and len(saved) == 1 and isinstance(saved[0], dict)
    return saved[0] if is_whole else saved


def merged(ranges: Ranges) -> Ranges:
    """Return ranges sorted, those that meet as one, without empty ones.

    >>> merged([(8, 9), (0, 4), (3, 6), (6, 7), (2, 2)])
    [(0, 7), (8, 9)]
    """
    result: Ranges = []
    for begin, end in sorted(ranges):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        elif begin < end:
            result.append((begin, end))
    return result


class BatchBounds:
    """The first positions of the batches of an order, also if the batch size changes on the way.

    Args:
        size: positions per batch.

    >>> bounds = BatchBounds(2)
    >>> bounds.change(3, 5); [bounds[batch] for batch in range(6)], bounds.batches(11), bounds.batches(12)
    ([0, 2, 4, 6, 11, 16], 4, 5)
    """

    def __init__(self, size: int) -> None:
        self._changes = [(0, 0, size)]  # batch, position, and size from there on

    @property
    def size(self) -> int:
        """Positions per batch, at present."""
        return self._changes[-1][2]

    def look(self, sampler: Any, batch: int) -> int:
        """Return the size of a batch: the ``batch_size`` that this sampler has now; None: it does not change."""
        if sampler is not None:
            size = sys.maxsize if sampler.batch_size is None else operator.index(sampler.batch_size)
            if size < 0:
                raise ValueError(f"batch_size must not be negative, got {size}")
            if size != self.size:
                self.change(batch, size)
        return self.size

    def change(self, batch: int, size: int) -> None:
        """Note the size from a batch on that has not begun."""
        self._changes.append((batch, self[batch], size))

    def share(self, other: BatchBounds) -> None:
        """Be what another one is, now and later."""
        self._changes = other._changes

    def __getitem__(self, batch: int) -> int:
        """Return the position at which a batch begins."""
        first, at, size = next(change for change in reversed(self._changes) if change[0] <= batch)
        return at + (batch - first) * size

    def batches(self, positions: int) -> int:
        """Return how many batches hold so many positions, the last maybe not full."""
        first, at, size = next(change for change in reversed(self._changes) if change[1] <= positions)
        return first - (at - positions) // max(1, size)


class Given:
    """The positions of an order that have been delivered.

    Args:
        start: what was delivered before.
        bounds: where batches begin.
        each: positions of the whole order per position: the number of ranks that share it.
        left_out: positions that are not delivered at all; the order may add to them as far as it has been drawn.
        total: the number of positions, if it is known.

    >>> given = Given(Start([(0, 4), (6, 8)]), BatchBounds(2))
    >>> given.add(0); given.add(2); given.ranges()
    [(0, 8), (10, 12)]
    """

    def __init__(
        self,
        start: Start,
        bounds: BatchBounds,
        each: int = 1,
        left_out: Ranges | None = None,
        total: int | None = None,
    ) -> None:
        self._start = start
        self._bounds = bounds
        self._each = each
        self._left_out: Ranges = [] if left_out is None else left_out
        self._total = total
        self._batches = 0  # delivered without a gap
        self._later: set[int] = set()

    def add(self, batch: int) -> None:
        """Record that a batch was delivered; the first after the start has number 0."""
        if batch == self._batches and not self._later:
            self._batches += 1
            return
        self._later.add(batch)
        while self._batches in self._later:
            self._batches += 1  # first: at no time is a batch in neither
            self._later.remove(self._batches - 1)

    def __contains__(self, batch: int) -> bool:
        return batch < self._batches or batch in self._later

    @property
    def first(self) -> int:
        """The number of batches that were delivered without a gap, from the first on."""
        return self._batches

    @property
    def count(self) -> int:
        """The number of positions of :meth:`ranges`."""
        if self._later or self._start.given or self._left_out or self._total is None:
            return sum(end - begin for begin, end in self.ranges())
        return min(self._bounds[self._batches] * self._each, self._total)

    def ranges(self) -> Ranges:
        """Return all positions that were delivered, before the start too, and those left out between them."""
        spans = [
            (0, self._bounds[self._batches]),
            *((self._bounds[k], self._bounds[k + 1]) for k in [*self._later]),
        ]  # another thread may add to it
        holes = merged([*self._start.given, *self._left_out])
        placed: Ranges = []
        for begin, end in spans:
            placed += self._placed(begin * self._each, end * self._each, holes)
        # What is left out further on is still to come: the next run may leave out something else.
        reached = max((end for begin, end in placed if begin < end), default=0)
        passed = [(begin, end) for begin, end in self._left_out if begin < reached]
        given = merged([*self._start.given, *placed, *passed])
        if self._total is None:
            return given
        return [(begin, min(end, self._total)) for begin, end in given if begin < self._total]

    def _placed(self, begin: int, end: int, holes: Ranges) -> Ranges:
        """Return the places in the whole order of positions counted in what is left without the holes."""
        placed: Ranges = []
        at = 0  # of the whole order
        for taken, free_again in [*holes, (None, 0)]:
            free = None if taken is None else taken - at
            if begin < end and (free is None or begin < free):
                until = end if free is None else min(end, free)
                placed.append((at + begin, at + until))
                begin = until
            if free is not None:
                begin, end, at = begin - free, end - free, free_again
        return placed
