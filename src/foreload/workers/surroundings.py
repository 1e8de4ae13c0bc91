"""Surroundings of samples by kind of worker: random generators, and the context of the training loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foreload.batch.context import LoopContext
from foreload.batch.generators import KeyedGenerators
from foreload.batch.thread_generators import keyed_generators, present_generators, with_own_generators

__all__ = ["ProcessSurroundings", "ThreadSurroundings"]


class ProcessSurroundings:
    """For samples that the calling thread loads, of the loop or of a worker process.

    They draw from the global generators, keyed; in a worker thread, where a loader may be nested, from its own.

    Args:
        key: (seed, epoch).
        is_pure: whether loading a sample is known to change nothing in the dataset.
    """

    def __init__(self, key: tuple[int, int], *, is_pure: bool) -> None:
        self._generators = present_generators(key, is_pure=is_pure)

    def generators(self) -> KeyedGenerators:
        """See :class:`~foreload.batch.samples.Surroundings`."""
        return self._generators

    def enter(self) -> None:
        """See :class:`~foreload.batch.samples.Surroundings`."""


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
