"""Readers, locks and decoders that each process makes for itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

__all__ = ["PerProcess"]

T = TypeVar("T")


class PerProcess(Generic[T]):
    """An object that each process makes when it first needs it; neither pickled nor used by a forked process.

    No sample depends on what is in here, so it is no state of the dataset that holds it. A fork keeps what its
    parent has made, since to end that is the parent's.

    >>> readers = PerProcess[list[int]]()
    >>> readers.get(list) is readers.get(list)
    True
    """

    def __init__(self) -> None:
        self._made: dict[tuple[int, Hashable], T] = {}

    def get(self, make: Callable[[], T], key: Hashable = None) -> T:
        """Return what this process has made under a key, or make it; of several threads, all get that of one."""
        place = os.getpid(), key
        found = self._made.get(place)
        return self._made.setdefault(place, make()) if found is None else found

    def pop(self, key: Hashable = None) -> T | None:
        """Return what this process has made under a key, and forget it; None if there is nothing."""
        return self._made.pop((os.getpid(), key), None)

    def __reduce__(self) -> Any:
        return PerProcess, ()
