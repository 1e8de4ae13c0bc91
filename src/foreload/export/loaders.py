"""The loaders that a log, a metrics page or a trace is about: by name, and without keeping them alive."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["LoaderRefs", "named"]


def named(loaders: Any) -> dict[str, Any]:
    """Give loaders by name: those of a dict, or the only one as ``"loader"``.

    Raises:
        TypeError: something is no loader of foreload's.
        ValueError: there is none.
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
                "`foreload profile SCRIPT` looks at stock ones"
            )
    return by_name


class LoaderRefs:
    """Loaders, as long as somebody else keeps them.

    Args:
        loaders: a loader, or a dict of names and loaders.
        over: called when the last of them is gone (by the garbage collector, so possibly in the middle of
            anything) or the interpreter exits, but not in a fork.
    """

    def __init__(self, loaders: Any, over: Callable[[], None]) -> None:
        by_name = named(loaders)
        self._loaders = {name: weakref.ref(loader) for name, loader in by_name.items()}
        self._over = over
        self._process = os.getpid()
        self._ends = [weakref.finalize(loader, self._gone) for loader in by_name.values()]

    @property
    def is_here(self) -> bool:
        """Whether this is the process that began to watch: in a fork, threads and sockets are somebody else's."""
        return os.getpid() == self._process

    def _gone(self) -> None:
        if self.is_here and not any(end.alive for end in self._ends):
            self._over()

    def alive(self) -> dict[str, Any]:
        """Give the loaders that are still there, by name."""
        there = {name: reference() for name, reference in self._loaders.items()}
        return {name: loader for name, loader in there.items() if loader is not None}

    def release(self) -> None:
        """Watch no longer; ``over`` is not called any more."""
        for end in self._ends:
            end.detach()
