"""The generators that the training loop draws from, and whether it, or anybody else, has drawn from them."""

from __future__ import annotations

from typing import Any

from foreload._libraries import bit_generator
from foreload.batch.generators.keyed import global_trio
from foreload.batch.generators.twisters import GeneratorStates, states_of

__all__ = ["LoopGenerators", "of_the_loop"]


class LoopGenerators:
    """Python's, NumPy's and torch's global generators; in a few microseconds, since it is asked for each batch.

    >>> import random
    >>> generators = LoopGenerators(); generators.save()
    >>> generators.have_drawn(), random.random() < 1, generators.have_drawn()
    (False, True, True)
    """

    def __init__(self) -> None:
        self._of: tuple[Any, ...] = ()  # held: their memory is looked into
        self._states: GeneratorStates | None = None
        self._normal: Any = None  # the second of two numbers that Python makes together, and keeps

    def save(self) -> None:
        """Note the present states."""
        of = of_the_loop()
        if self._states is None or any(map(_are_two, of, self._of)):
            self._of, self._states = of, states_of(global_trio())
        self._normal = of[0].gauss_next
        self._states.save()

    def have_drawn(self) -> bool:
        """Whether one has drawn, or been seeded, since :meth:`save`."""
        of = of_the_loop()
        is_same = not any(map(_are_two, of, self._of)) and of[0].gauss_next == self._normal
        return not is_same or self._states is None or self._states.changed()


def of_the_loop() -> tuple[Any, ...]:
    """Return the generators that the loop draws from as it likes, and what NumPy's draws from in turn."""
    trio = global_trio()
    return *trio, bit_generator(trio.numpy)


def _are_two(one: Any, other: Any) -> bool:
    return one is not other
