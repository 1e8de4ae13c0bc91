"""The batches of a user's own sampler, iterated as torch iterates it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler

from foreload._torch import draw_seed
from foreload.checks import Indices
from foreload.errors import warn_user
from foreload.nested import snapshot
from foreload.order.known import KNOWN_SAMPLERS, draws_at_once, kept_generators
from foreload.order.resume import Ranges, Start, has_state

__all__ = ["SamplerBatches", "generator_states", "set_generator_states"]


class SamplerBatches(Iterator[Any]):
    """The batches of a user's sampler or batch sampler, iterated as torch iterates it.

    If it or its iterator has ``state_dict`` and ``load_state_dict``, it resumes from its state. From any other
    sampler the first batches are drawn again, with the generators set back to their states of then.

    Attributes:
        drawn: the states that generators had when drawing began; None if the sampler has a state of its own.
        size: positions per batch: its samples, or 1 if the user's own sampler makes the batches.
        ready: batches that can be had without drawing from the sampler: none.
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
            self._items = self._resumed(start)
        self._stateful = self._items if has_state(self._items) else self._inner if stateful else None

    def _resumed(self, start: Start) -> Iterator[Any]:
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
            f"{type(self._inner).__name__} has no state_dict() and load_state_dict(): what it yielded before is "
            "drawn again (no sample is loaded for that)"
        )
        now = generator_states(self._inner)
        set_generator_states(self._inner, start.drawn)
        items = iter(self._inner)
        if start.drew:
            draw_seed()
        if hasattr(self._inner, "__len__"):
            # Draw the rest now: generators that others use can then be set back.
            items = iter(list(items))
            own = getattr(self._inner, "generator", None)
            kept = None if own is None else own.get_state()
            set_generator_states(self._inner, now)
            if own is not None:
                own.set_state(kept)
        return _without(items, start.given)

    def __next__(self) -> Any:
        """Return the indices of the next batch."""
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
        # As it is now: batches are asked for ahead, and the sampler may fill the same list for the next one.
        return iter(snapshot(list(batch))) if isinstance(batch, Iterator) else snapshot(batch)

    def peek(self) -> Indices | None:
        """Return all indices of the epoch without consuming them, before its first batch.

        None for samplers of the user's own, whose order is not known before it is drawn.
        """
        if type(self._inner) not in KNOWN_SAMPLERS:
            return None
        if self._whole and not draws_at_once(self._inner):
            with kept_generators(self._inner.generator):
                return np.array(list(self._inner), np.int64)
        # Of the iterator that is there: it may have looked at the sampler's epoch already, or go on from a state.
        items = list(self._items)
        self._items = iter(items)
        if not self._cuts:
            return np.array(items, np.int64)
        known = np.array([index for batch in items for index in batch] if self._whole else items, np.int64)
        return known[: len(known) // self.size * self.size] if self._sampler.drop_last else known

    def state(self, batches: int) -> Any:
        """Return what is needed to resume after the first ``batches`` batches of this iteration."""
        for number in [number for number in self._states if number < batches - 1]:
            del self._states[number]
        if self._stateful is None:
            return self.drawn
        return self._states.get(batches - 1, {"state": None})


def _without(items: Iterator[Any], given: Ranges) -> Iterator[Any]:
    for position, item in enumerate(items):
        if not any(begin <= position < end for begin, end in given):
            yield item


def generator_states(sampler: Any) -> dict[str, Any]:
    """Return the states of all generators that a sampler may draw from."""
    own = getattr(sampler, "generator", None)
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],
        "own": own.get_state() if isinstance(own, torch.Generator) else None,
    }


def set_generator_states(sampler: Any, states: dict[str, Any]) -> None:
    """Set all generators that a sampler may draw from to these states."""
    torch.set_rng_state(states["torch"])
    random.setstate(_as_tuples(states["python"]))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), *rest))
    own = getattr(sampler, "generator", None)
    if isinstance(own, torch.Generator) and states["own"] is not None:
        own.set_state(states["own"])


def _as_tuples(state: Sequence[Any]) -> Any:
    # JSON and weights-only loads turn tuples into lists.
    return tuple(_as_tuples(part) if isinstance(part, (list, tuple)) else part for part in state)
