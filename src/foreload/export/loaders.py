"""Loaders that a log, a metrics page or a trace observes: by name, and without keeping them alive."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from foreload.record.spans import Spans
from foreload.record.stats import Stats

__all__ = ["LoaderRefs", "ObservedLoader", "named"]


class ObservedLoader(Protocol):
    """The part of a loader that exporters use."""

    @property
    def spans(self) -> Spans:
        """The spans of each worker: its activities and their times."""
        ...

    def stats(self) -> Stats:
        """Return the figures so far."""
        ...


def named(loaders: Any) -> dict[str, ObservedLoader]:
    """Return loaders by name: those of a dict, or a single one as ``"loader"``.

    Raises:
        TypeError: something is not a foreload loader.
        ValueError: the dict is empty.
    """
    by_name = dict(loaders) if isinstance(loaders, Mapping) else {"loader": loaders}
    if not by_name:
        raise ValueError("loaders is empty: pass a loader, or a dict of names and loaders")
    for name, loader in by_name.items():
        if not isinstance(name, str):
            raise TypeError(f"the names of loaders must be str, got {name!r}")
        if not callable(getattr(loader, "stats", None)) or not hasattr(loader, "spans"):
            raise TypeError(
                f"{name!r} must be a foreload.DataLoader, got {type(loader).__name__}; "
                "`foreload profile SCRIPT` observes those of torch"
            )
    return by_name


class LoaderRefs:
    """Weak references to loaders, by name.

    Args:
        loaders: a loader, or a dict of names and loaders.
        over: called when the last loader is gone (by the garbage collector, so at any point of the program) or
            the interpreter exits; not called in a fork.
    """

    def __init__(self, loaders: Any, over: Callable[[], None]) -> None:
        by_name = named(loaders)
        self._loaders = {name: weakref.ref(loader) for name, loader in by_name.items()}
        self._over = over
        self._process = os.getpid()
        self._ends = [weakref.finalize(loader, self._gone) for loader in by_name.values()]

    @property
    def is_here(self) -> bool:
        """Whether this is the process that made them: in a fork, threads and sockets are the parent's."""
        return os.getpid() == self._process

    def _gone(self) -> None:
        if self.is_here and not any(end.alive for end in self._ends):
            self._over()

    def alive(self) -> dict[str, ObservedLoader]:
        """Return the loaders that still exist, by name."""
        there = {name: reference() for name, reference in self._loaders.items()}
        return {name: loader for name, loader in there.items() if loader is not None}

    def release(self) -> None:
        """Drop the references; ``over`` is not called any more."""
        for end in self._ends:
            end.detach()
