"""Samplers of the user's that may be asked for batches before the loop requests them, and those that may not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from foreload.errors import warn_user
from foreload.order.generator_states import own_generator

__all__ = ["Lookahead"]


class _Generators(Protocol):
    """The generators that the loop draws from."""

    def save(self) -> None: ...

    def have_drawn(self) -> bool: ...


class Lookahead:
    """Finds out whether a sampler may be asked ahead of the loop, so that nobody can tell that it was.

    It may not if it draws from the loop's generators with each batch: the loop draws in between, and both would
    get other numbers than without workers. Most samplers draw when they are asked for the first batch, or never.

    Args:
        generators: the loop's.

    Attributes:
        is_allowed: whether it may be asked ahead now.

    >>> import random
    >>> from foreload.batch.generators.loops import LoopGenerators
    >>> lookahead = Lookahead(LoopGenerators())
    >>> lookahead.begin(sampler=None)
    >>> with lookahead.watched(ahead=False): number = random.random()
    >>> lookahead.is_allowed
    False
    >>> with lookahead.watched(ahead=False): pass
    >>> lookahead.is_allowed
    True
    """

    def __init__(self, generators: _Generators) -> None:
        self._generators = generators
        self._num_watched, self._overlaps = 0, False  # by threads that iterate over one loader at a time
        self.is_allowed = False
        self._is_refused = False  # for the coming epochs too
        self._num_drawing = 0  # batches of this epoch for which the sampler drew
        self._sampler: Any = None

    def begin(self, sampler: Any) -> None:
        """Begin an epoch."""
        self._sampler = sampler
        self._num_drawing = 0
        self.is_allowed = False

    @contextmanager
    def watched(self, *, ahead: bool) -> Iterator[None]:
        """Watch the sampler while it is asked for a batch.

        Args:
            ahead: whether the loop has not requested that batch yet.
        """
        before = self._own_state()
        self._num_watched += 1
        self._overlaps |= self._num_watched > 1
        self._generators.save()
        try:
            yield
        finally:
            has_drawn = self._overlaps or self._generators.have_drawn() or self._own_state() != before
            self._num_watched -= 1
            self._overlaps = self._overlaps and self._num_watched > 0
            self._note(has_drawn=has_drawn, ahead=ahead)

    def _note(self, *, has_drawn: bool, ahead: bool) -> None:
        self._num_drawing += has_drawn
        if self._num_drawing > 1 and not self._is_refused:
            self._is_refused = True
            if ahead:
                warn_user(
                    f"{type(self._sampler).__name__} drew random numbers from the loop's generators for a batch "
                    "that the loop had not requested yet; for the one before it had drawn none. Its numbers and "
                    "the loop's depend on when that is: give it a generator of its own, or pass num_workers=0 "
                    "or num_workers=N"
                )
        self.is_allowed = not (has_drawn or self._is_refused)

    def _own_state(self) -> bytes | None:
        own = own_generator(self._sampler)
        return None if own is None else own.get_state().numpy().tobytes()
