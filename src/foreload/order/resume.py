"""The place where an interrupted epoch goes on, and the batches that were delivered before it."""

from __future__ import annotations

import copy
import inspect
import operator
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from foreload.checks import optional

__all__ = [
    "AFTER_LEFT",
    "BEGINNING",
    "Given",
    "Ranges",
    "Start",
    "UntakenState",
    "has_state",
    "is_same_state",
    "merged",
    "require_taken",
    "state_of",
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
        left: whether the loop has left the epoch before it in its middle, where samplers then are.
    """

    given: Ranges = field(default_factory=list)
    drawn: Any = None
    begun: bool = True
    over: bool = False
    drew: bool = False
    seeds: Any = None
    left: bool = False

    @property
    def prefix(self) -> int:
        """The number of positions that were delivered without a gap, from the first on."""
        return self.given[0][1] if self.given and self.given[0][0] == 0 else 0


BEGINNING, AFTER_LEFT = Start(), Start(left=True)


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
    """Where the batches of an order begin, also if their size changes on the way.

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


def has_state(thing: object) -> bool:
    """Whether an object saves and restores its state by ``state_dict()`` and ``load_state_dict(state)``."""
    save, restore = optional(thing, "state_dict"), optional(thing, "load_state_dict")
    if not (callable(save) and callable(restore)):
        return False
    try:
        inspect.signature(save).bind()
    except TypeError:
        return False  # it has required arguments: another protocol
    except ValueError:
        pass  # a builtin without a signature
    return True


@dataclass(frozen=True)
class UntakenState:
    """Stands for a state that an object of the user's could not give, which only those need know who ask for it.

    Attributes:
        why: the object's class, and the error.
    """

    why: str


def state_of(thing: Any) -> Any:
    """Return a copy of an object's state, which later samples do not change."""
    try:
        return copy.deepcopy(thing.state_dict())
    except Exception as error:  # of the user's code
        return UntakenState(
            f"the state of {type(thing).__name__} cannot be taken: {type(error).__name__}: {error}"
        )


def require_taken(states: Any) -> None:
    """Raise RuntimeError if one of the states that a dict has was not taken.

    >>> require_taken({"dataset": UntakenState("the state of Clips cannot be taken: OSError: gone")})
    Traceback (most recent call last):
    RuntimeError: the state of Clips cannot be taken: OSError: gone
    """
    for state in states.values() if isinstance(states, dict) else ():
        if isinstance(state, UntakenState):
            raise RuntimeError(state.why)


def is_same_state(one: Any, other: Any) -> bool:
    """Whether two states are equal, as far as that can be told; ``json`` makes lists of tuples.

    >>> is_same_state({"at": (1, torch.arange(2))}, {"at": [1, torch.arange(2)]}), is_same_state(1, 1.5)
    (True, False)
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same_state(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(is_same_state, one, other))
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    try:
        return bool(one == other)
    except Exception:  # of a class of the user's
        return False
