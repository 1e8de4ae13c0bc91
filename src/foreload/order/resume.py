"""Stage ``resume``: what an epoch has given so far, and how another one goes on from there."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler

from foreload._torch import draw_seed
from foreload.errors import warn_user

__all__ = ["BEGINNING", "Given", "Ranges", "SamplerBatches", "Start", "has_state"]

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


class SamplerBatches(Iterator[Any]):
    """The batches of a user's sampler or batch sampler, iterated as torch iterates it.

    One with ``state_dict`` and ``load_state_dict``, itself or its iterator, goes on from its state. Of any other
    the first batches are drawn again, from the random numbers of then.

    Attributes:
        drawn: the states of the generators that it may have drawn from.
        size: positions per batch: its samples, or 1 where batches are the user's own.
        ready: how many batches can be had without asking the sampler: none.
    """

    ready = 0

    def __init__(self, sampler: Any, start: Start) -> None:
        self._sampler = sampler
        self._cuts = type(sampler) is BatchSampler
        self.size = sampler.batch_size if self._cuts else 1
        self._inner = sampler.sampler if self._cuts else sampler
        self._states: dict[int, Any] = {}
        self._asked = 0
        stateful = has_state(self._inner)
        if start.drawn is None or start.drawn.get("state", self) is None:
            self.drawn: Any = None if stateful else generator_states(self._inner)
            self._items = iter(self._inner) if stateful else iter(sampler)
            self._whole = not stateful
        else:
            self.drawn = start.drawn
            self._whole = False
            self._items = self._again(start)
        self._stateful = self._items if has_state(self._items) else self._inner if stateful else None

    def _again(self, start: Start) -> Iterator[Any]:
        state = start.drawn.get("state")
        if start.drawn.get("over"):
            return iter(())
        if state is not None:
            if has_state(self._inner):
                self._inner.load_state_dict(state)
                return iter(self._inner)
            items: Any = iter(self._inner)
            if has_state(items):
                items.load_state_dict(state)
                return iter(items)
        warn_user(
            f"{type(self._inner).__name__} has no state_dict() and load_state_dict(): what it gave before is "
            "drawn again (no sample is loaded for that)"
        )
        now = generator_states(self._inner)
        set_generator_states(self._inner, start.drawn)
        items = iter(self._inner)
        if start.drew:
            draw_seed()
        if hasattr(self._inner, "__len__"):
            # Then nothing more is drawn from generators that others use.
            items = iter(list(items))
            own = getattr(self._inner, "generator", None)
            kept = None if own is None else own.get_state()
            set_generator_states(self._inner, now)
            if own is not None:
                own.set_state(kept)
        return _left_out(items, start.given)

    def __next__(self) -> Any:
        """Give what the next batch is made of."""
        if self._whole or not self._cuts:
            batch = next(self._items)
        else:
            batch = list(islice(self._items, self.size))
            if not batch or (len(batch) < self.size and self._sampler.drop_last):
                raise StopIteration
        if self._stateful is not None:
            over = self._cuts and len(batch) < self.size
            self._states[self._asked] = {"state": self._stateful.state_dict(), "over": over}
        self._asked += 1
        # A user's own batch sampler may yield anything that can be iterated, once perhaps.
        return iter(list(batch)) if isinstance(batch, Iterable) and not isinstance(batch, Sized) else batch

    def state(self, batches: int) -> Any:
        """Give what it needs to go on after so many batches of this iteration."""
        for number in [number for number in self._states if number < batches - 1]:
            del self._states[number]
        if self._stateful is None:
            return self.drawn
        return self._states.get(batches - 1, {"state": None})


def _left_out(items: Iterator[Any], given: Ranges) -> Iterator[Any]:
    for position, item in enumerate(items):
        if not any(begin <= position < end for begin, end in given):
            yield item


def generator_states(sampler: Any) -> dict[str, Any]:
    """Give the states of all generators that a sampler may draw from."""
    own = getattr(sampler, "generator", None)
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],
        "own": own.get_state() if isinstance(own, torch.Generator) else None,
    }


def set_generator_states(sampler: Any, states: dict[str, Any]) -> None:
    """Set them all back."""
    torch.set_rng_state(states["torch"])
    random.setstate(_as_tuples(states["python"]))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), *rest))
    own = getattr(sampler, "generator", None)
    if isinstance(own, torch.Generator) and states["own"] is not None:
        own.set_state(states["own"])


def _as_tuples(state: Sequence[Any]) -> Any:
    # Through JSON or a weights-only load they come back as lists.
    return tuple(_as_tuples(part) if isinstance(part, (list, tuple)) else part for part in state)
