"""Samplers whose draws are observed, in whichever loader they draw."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch.utils.data import Sampler

from foreload.checks import Indices

__all__ = ["Observer", "observe", "observed_blocks"]

Draw = Callable[[Any], Iterator[Any]]
Note = Callable[[Any], None]


class Observer(Protocol):
    """Is told of each epoch that a sampler draws."""

    def begin(self, sampler: Any, draw: Draw) -> Note | None:
        """Return what to call with each index that is drawn; None if this sampler is none of its own.

        Args:
            sampler: is about to draw the first index of an epoch.
            draw: returns an iterator of such a sampler that nobody observes.
        """


_observers: weakref.WeakKeyDictionary[type, tuple[Draw, weakref.WeakSet[Any]]] = weakref.WeakKeyDictionary()


def observe(kind: type[Sampler[int]], observer: Observer) -> None:
    """Tell ``observer`` of all epochs that samplers of a class draw, for as long as it lives.

    What they draw, and when, stays as it is.

    >>> from torch.utils.data import SequentialSampler
    >>> class Printing:
    ...     def begin(self, sampler, draw): print("begins", list(draw(sampler))); return print
    >>> printing = Printing(); observe(SequentialSampler, printing)
    >>> indices = iter(SequentialSampler("ab"))
    begins [0, 1]
    >>> next(indices)
    0
    0
    """
    if kind not in _observers:
        _observers[kind] = kind.__iter__, weakref.WeakSet()
        kind.__iter__ = _observable(kind, kind.__iter__)  # type: ignore[method-assign]
    _observers[kind][1].add(observer)


def _observable(kind: type, draw: Draw) -> Draw:
    # A generator draws nothing before it is asked for the first index; other iterators may have drawn all.
    is_lazy = inspect.isgeneratorfunction(draw)

    def noted(sampler: Any) -> Iterator[Any]:
        notes = _begin(kind, sampler)
        for index in draw(sampler):
            for note in notes:
                note(index)
            yield index

    @functools.wraps(draw)
    def iterate(sampler: Any) -> Iterator[Any]:
        if is_lazy:
            return noted(sampler)
        notes = _begin(kind, sampler)
        iterator = draw(sampler)
        # An iterator with a state of its own, which a loader may ask for, stays what it is.
        return iterator if hasattr(iterator, "state_dict") else _each_noted(iterator, notes)

    return iterate


def _each_noted(iterator: Iterator[Any], notes: list[Note]) -> Iterator[Any]:
    for index in iterator:
        for note in notes:
            note(index)
        yield index


def _begin(kind: type, sampler: Any) -> list[Note]:
    draw, observers = _observers[kind]
    notes = (observer.begin(sampler, draw) for observer in list(observers))
    return [note for note in notes if note is not None]


def observed_blocks(sampler: Any, blocks: Iterator[Indices]) -> Iterator[Indices]:
    """Yield blocks of indices that are drawn for a sampler without its ``__iter__``, and tell its observers."""
    notes = _begin(type(sampler), sampler) if type(sampler) in _observers else []
    for block in blocks:
        for note in notes:
            for index in block.tolist():
                note(index)
        yield block
