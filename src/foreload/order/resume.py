"""Stage ``resume``: what an epoch has given so far, and how another one goes on from there."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BEGINNING", "Given", "Ranges", "Start", "has_state"]

Ranges = list[tuple[int, int]]


@dataclass(frozen=True)
class Start:
    """Where an epoch begins that was begun before.

    Attributes:
        given: positions of the order that were given already, as sorted ranges from and to.
        drawn: what its random order was made from.
        drew: whether torch's base seed was drawn after that, from the same global generator.
    """

    given: Ranges = field(default_factory=list)
    drawn: Any = None
    drew: bool = False

    @property
    def prefix(self) -> int:
        """How many positions at the beginning were given without a gap."""
        return self.given[0][1] if self.given and self.given[0][0] == 0 else 0


BEGINNING = Start()


class Given:
    """Keeps account of the positions that have been given.

    Args:
        start: what was given before.
        size: positions per batch.
        each: positions of the whole order for one of these, where ranks share it.

    >>> given = Given(Start([(0, 4), (6, 8)]), size=2)
    >>> given.add(0); given.add(2); given.ranges()
    [(0, 8), (10, 12)]
    """

    def __init__(self, start: Start, size: int, each: int = 1) -> None:
        self._start = start
        self._size = size
        self._each = each
        self._batches = 0  # so many from the first on
        self._later: set[int] = set()

    def add(self, batch: int) -> None:
        """Note that a batch, counted from 0 at the start, was given."""
        if batch == self._batches and not self._later:
            self._batches += 1
            return
        self._later.add(batch)
        while self._batches in self._later:
            self._later.remove(self._batches)
            self._batches += 1

    @property
    def first(self) -> int:
        """Count the batches from the first on that were given without a gap."""
        return self._batches

    def ranges(self) -> Ranges:
        """List all that was given, before the start too."""
        spans = [(0, self._batches * self._size), *((k * self._size, (k + 1) * self._size) for k in self._later)]
        given = list(self._start.given)
        for begin, end in spans:
            given += self._placed(begin, end)
        merged: Ranges = []
        for begin, end in sorted(given):
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            elif begin < end:
                merged.append((begin, end))
        return merged

    def _placed(self, begin: int, end: int) -> Ranges:
        """Find where in the whole order these positions of what was left at the start lie."""
        begin, end = begin * self._each, end * self._each
        placed: Ranges = []
        at = 0  # of the whole order
        for taken, free_again in [*self._start.given, (None, 0)]:
            free = None if taken is None else taken - at
            if begin < end and (free is None or begin < free):
                until = end if free is None else min(end, free)
                placed.append((at + begin, at + until))
                begin = until
            if free is not None:
                begin, end, at = begin - free, end - free, free_again
        return placed


def has_state(thing: object) -> bool:
    """Whether it can tell and take up its state, in the way of torchdata."""
    tell, take = getattr(thing, "state_dict", None), getattr(thing, "load_state_dict", None)
    if not (callable(tell) and callable(take)):
        return False
    try:
        inspect.signature(tell).bind()
    except TypeError:
        return False  # it wants to be told something: another protocol
    except ValueError:
        pass  # a builtin, which does not say
    return True
