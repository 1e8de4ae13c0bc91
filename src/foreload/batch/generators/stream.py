"""Random generators for a stream that the calling thread reads, apart from the loop's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from foreload.batch.generators.keyed import global_trio
from foreload.batch.generators.threads import draws_from_global, lent_generators
from foreload.batch.generators.twisters import states_of

__all__ = ["StreamGenerators"]


class StreamGenerators:
    """Generators from which a stream draws on, from sample to sample, while the loop draws from the global ones.

    Args:
        key: (seed, epoch).

    >>> import random
    >>> stream, same = StreamGenerators((7, 0)), StreamGenerators((7, 0))
    >>> before = random.getstate()
    >>> with stream.active(): first = random.random()
    >>> with same.active(): first == random.random()
    True
    >>> random.getstate() == before
    True
    """

    def __init__(self, key: tuple[int, int]) -> None:
        self._global = global_trio()
        self._own = self._global.like()
        self._states = states_of(self._own)
        self._key = key
        self._is_active = False
        self._states.key(*key, 0)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the stream draw from them in the block, which may be within another one, in a signal's handler."""
        if self._is_active:
            yield
            return
        if not draws_from_global():
            with lent_generators(self._own):
                yield
            return
        self._is_active = True
        self._exchange()
        try:
            yield
        finally:
            self._exchange()
            self._is_active = False

    def key(self) -> None:
        """Let the stream begin its draws again, in the block of :meth:`active`."""
        trio: Any = self._global if draws_from_global() else self._own
        trio.python.gauss_next = None
        states_of(trio).key(*self._key, 0)

    def _exchange(self) -> None:
        states_of(self._global).exchange(self._states)
        python: Any = self._global.python
        own: Any = self._own.python
        python.gauss_next, own.gauss_next = own.gauss_next, python.gauss_next
