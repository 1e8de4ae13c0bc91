"""Batches in the memory of Ray's object store, as the loop gets them: neither copied nor shared.

Ray hands out read-only views of its store, because several processes may read an object. A batch has one reader:
its only reference is held here until it is taken, and dropped then. So its tensors may be written to, as those of
any other worker; the store keeps the memory for as long as one of them lives. Where the store should be mapped
without write access, batches are copied.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from foreload.checks import Array
from foreload.forks.count import fork_count, may_be_in_child

__all__ = ["lease_parts"]

# Smaller parts are copied. Ray keeps small objects in the memory of the process, not in its store.
_LEASED_BYTES = 100 << 10

# Memory that a child of this process may have too. The store would use it again for other batches.
_kept: list[Array] = []


class _StoreLease:
    """Holds memory of the store for as long as anything made from it lives."""

    __slots__ = ("__array_interface__", "_array", "_forks", "_process")

    def __init__(self, array: Array) -> None:
        self._array = array
        self._forks = fork_count()
        self._process = os.getpid()
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # A child has the parent's connection to the store, on which it must not free anything.
        if is_ending():  # when this module's functions may be gone before batches are
            return
        if may_be_in_child(self._forks) or os.getpid() != self._process:
            _kept.append(self._array)


class _Mappings:
    """The ranges of memory that this process may write to, as far as they have been looked up."""

    def __init__(self) -> None:
        self._known: list[tuple[int, int]] = []

    def has(self, address: int, size: int) -> bool:
        if not self._is_known(address, size):
            self._known = list(_writable_ranges())
        return self._is_known(address, size)

    def _is_known(self, address: int, size: int) -> bool:
        return any(begin <= address and address + size <= end for begin, end in self._known)


def _writable_ranges() -> list[tuple[int, int]]:
    """Return the writable mappings of this process, neighbours as one (proc(5), maps)."""
    ranges: list[tuple[int, int]] = []
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, access = line.split()[:2]
            begin, end = (int(address, 16) for address in span.split("-"))
            if access[1] != "w":
                continue
            if ranges and ranges[-1][1] == begin:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((begin, end))
    return ranges


_mappings = _Mappings()


def lease_parts(parts: Sequence[Array]) -> list[Any]:
    """Return the parts of a batch as memory that may be written to: large ones without copying them.

    >>> frozen = np.zeros(1 << 20, np.uint8)
    >>> frozen.flags.writeable = False
    >>> (part,) = lease_parts([frozen])
    >>> part.flags.writeable, np.shares_memory(part, frozen)
    (True, True)
    """
    return [_leased(part) for part in parts]


def _leased(part: Array) -> Any:
    if part.nbytes < _LEASED_BYTES:
        return bytearray(part)
    if not _mappings.has(part.ctypes.data, part.nbytes):
        return part.copy()
    return np.asarray(_StoreLease(part))
