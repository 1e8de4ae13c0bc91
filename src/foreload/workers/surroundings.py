"""The environment in which samples are loaded, by kind of worker: random generators, and the loop's context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foreload.batch.context import LoopContext
from foreload.batch.generators.keyed import KeyedGenerators, loading
from foreload.batch.generators.threads import (
    draws_from_global,
    keyed_generators,
    present_trio,
    with_lent_generators,
    with_own_generators,
)
from foreload.batch.generators.twisters import Trio

__all__ = ["LoopSurroundings", "ProcessSurroundings", "ThreadSurroundings"]


class ProcessSurroundings:
    """For samples that the calling thread loads, of the loop or of a worker process.

    They draw from the global generators, keyed. These belong to the main thread: in a worker thread, where a
    loader may be nested, samples draw from its own, and in a thread of the user's from generators lent to it.

    Args:
        key: (seed, epoch).
        is_pure: whether loading a sample is known to change nothing in the dataset.
    """

    def __init__(self, key: tuple[int, int], *, is_pure: bool) -> None:
        self._key = key
        self._is_pure = is_pure
        self._keyed: tuple[Trio | None, KeyedGenerators] | None = None

    def generators(self) -> KeyedGenerators:
        """See :class:`~foreload.batch.samples.Surroundings`."""
        trio, keyed = present_trio(), self._keyed
        if keyed is None or keyed[0] is not trio:
            keyed = self._keyed = trio, KeyedGenerators(self._key, trio, is_pure=self._is_pure)
        return keyed[1]

    def enter(self) -> Callable[..., Any] | None:
        """See :class:`~foreload.batch.samples.Surroundings`."""
        return None if draws_from_global() or present_trio() is not None else with_lent_generators


class LoopSurroundings:
    """For samples that the loop's thread loads as torch does, from the generators as they are.

    Args:
        key: (seed, epoch), for a dataset that loads ahead.
    """

    def __init__(self, key: tuple[int, int]) -> None:
        self._key = key

    def generators(self) -> None:
        """See :class:`~foreload.batch.samples.Surroundings`."""

    def enter(self) -> Callable[..., Any]:
        """See :class:`~foreload.batch.samples.Surroundings`."""
        return self._call

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        outer, loading.epoch = loading.epoch, self._key
        try:
            return function(*args)
        finally:
            loading.epoch = outer


class ThreadSurroundings:
    """For samples that worker threads load: generators of their own, keyed, and the context of the loop.

    Args:
        key: (seed, epoch).
    """

    def __init__(self, key: tuple[int, int]) -> None:
        self._key = key

    def generators(self) -> KeyedGenerators:
        """See :class:`~foreload.batch.samples.Surroundings`."""
        return keyed_generators(self._key)

    def enter(self) -> Callable[..., Any]:
        """See :class:`~foreload.batch.samples.Surroundings`."""
        context = LoopContext()
        return lambda *call: context.run(with_own_generators, *call)
