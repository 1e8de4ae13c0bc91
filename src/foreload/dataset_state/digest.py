"""Digests of what a dataset holds, which tell what loading samples changes in it.

Copies of a dataset are as good as the dataset only if they cannot go different ways.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import random
import zlib
from array import array
from collections import OrderedDict
from contextvars import ContextVar
from itertools import islice
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from foreload._torch import tensor_version
from foreload.checks import optional, package_of
from foreload.dataset_state.handles import is_iterator, is_open
from foreload.dataset_state.kept import LRU_CACHE
from foreload.dataset_state.settings import Settings
from foreload.dataset_state.walk import (
    CONTAINERS,
    MOST_VALUES,
    PLAIN,
    generators,
    leaves,
    value_of,
    values_of,
    walk,
)
from foreload.datasets.mapped_files import mapping_of_large

__all__ = ["CHANGES", "StateWatch", "changed", "checksum", "contents", "digest", "digests_of", "made_of"]

# Why copies of a dataset might load other samples.
CHANGES = "loading samples changes {!r}, which copies of the dataset would not share"

# The most bytes of one array that are compared.
_MOST_BYTES = 1 << 20

# The most bytes of one array that are added up.
_MOST_SUMMED = 1 << 26

# The most bytes that are looked at of a larger file that is mapped into memory: a disk may have to find each.
_MOST_IN_FILE = 16

# The most values that are looked at in each epoch.
_MOST_PARTS = 2_000

# A number of ctypes; numbers, arrays and structures of its may lie in shared memory.
_NUMBER: Any = ctypes.c_int.__base__

NOTHING = ("value", None)


def digests_of(dataset: Any, most: int = MOST_VALUES) -> dict[str, Any]:
    """Return the values that a dataset holds, and the global variables that its methods use, by name.

    Args:
        dataset: of any class.
        most: the most values that are looked at.

    >>> class Counter:
    ...     calls = 0
    ...     def __getitem__(self, index):
    ...         self.calls += 1
    ...         return self.calls
    >>> counter = Counter()
    >>> before = digests_of(counter); _ = counter[0]
    >>> changed(before, digests_of(counter))
    'calls'
    """
    return {name: digest(value) for name, value in walk(dataset, _is_method_of_a_part, most)}


def _is_method_of_a_part(value: Any) -> bool:
    """Whether a value is a method of a part of foreload's, which loading may change as it likes."""
    if not isinstance(value, MethodType):
        return False
    kind = type(value.__self__)
    return package_of(kind) == "foreload" and not issubclass(kind, Dataset)


def changed(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """Return the name of a value that differs; None if all are the same, or were None and are something now.

    A file that is opened when it is first needed is what worker processes are good for: each opens its own. But
    what a generator or an iterator gives that is made then depends on the samples before.
    """
    is_whole = len(after) < MOST_VALUES // 2  # or what is looked at may have been left out this time
    for name, value in before.items():
        if value != NOTHING and after.get(name, NOTHING if is_whole else value) != value:
            return name
    for name, value in after.items():
        if before.get(name, NOTHING) == NOTHING and value[0] == "generator":
            return name
    for name in after.keys() - before.keys():
        parent = name.rpartition(".")[0] if not name.endswith("]") else name.rpartition("[")[0]
        if name.endswith("]") and before.get(parent) not in (None, NOTHING):
            return parent  # a container has more values
    return None


class StateWatch:
    """A watch over what loading changes in a dataset.

    Args:
        parts: the dataset, of which nothing was loaded yet, and what is applied to its samples.

    Attributes:
        change: the name of a value that loading changes; None if none was seen to change.

    >>> class Counter:
    ...     def __getitem__(self, index):
    ...         self.calls = getattr(self, "calls", 0) + 1
    ...         return self.calls
    >>> counter = Counter()
    >>> watch = StateWatch(counter)
    >>> _ = counter[0]; watch.compare(); watch.change  # made when it was first needed
    >>> _ = counter[1]; watch.compare(); watch.change
    'calls'
    """

    def __init__(self, *parts: Any) -> None:
        self._parts = parts
        self._last = self._snapshots()
        self._settings: Settings | None = None
        self.change: str | None = None

    def compare(self) -> None:
        """Compare the dataset with what it was the last time."""
        present = self._snapshots()
        self.change = self.change or changed(self._last, present)
        self._last = present
        if self._settings is None:  # libraries set some when they are first used
            self._settings = Settings(environment=())
        self.change = self.change or self._settings.changed()

    def _snapshots(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for position, part in enumerate(self._parts):
            prefix = f"{optional(part, '__name__') or type(part).__name__}." if position else ""
            found |= {f"{prefix}{name}": value for name, value in digests_of(part).items()}
        return found


def digest(value: Any) -> Any:
    """Return what is equal as long as a value is the same, and has not been changed."""
    if isinstance(value, PLAIN):
        return "value", value
    if isinstance(value, torch.Tensor):
        return "tensor", id(value), tensor_version(value), checksum(value)
    if isinstance(value, np.ndarray):
        return "array", id(value), value.shape, checksum(value)
    if isinstance(value, np.void):
        return "array", id(value), zlib.crc32(value.tobytes())
    if isinstance(value, ContextVar):
        return "variable", id(value_of(value))
    if isinstance(value, random.Random):
        return "generator", hash(value.getstate())
    if isinstance(value, torch.Generator):
        return "generator", value.get_state().numpy().tobytes()
    if isinstance(value, np.random.Generator):
        return digest(value.bit_generator)
    if isinstance(value, np.random.BitGenerator):
        return "generator", *_state_of(value.state), getattr(value.seed_seq, "n_children_spawned", 0)
    if isinstance(value, np.random.SeedSequence):
        return "generator", value.n_children_spawned
    if isinstance(value, np.random.RandomState):
        return "generator", *_state_of(value.get_state(legacy=False))
    if is_iterator(value):
        return "generator", id(value)
    if isinstance(value, (ctypes.Array, ctypes.Structure, _NUMBER)):
        return "array", zlib.crc32(bytes(value))
    if isinstance(value, (bytearray, array, memoryview)):
        return "array", id(value), len(value), checksum(memoryview(value))
    if isinstance(value, (mmap.mmap, io.BytesIO, io.StringIO)):
        return "array", id(value), *contents(value)
    if isinstance(value, LRU_CACHE):
        size = value.cache_info().currsize
        return ("container", type(value), size) if size else NOTHING
    if isinstance(value, OrderedDict):
        return "container", type(value), len(value), hash(tuple(map(id, value)))
    if isinstance(value, CONTAINERS):
        return "container", type(value), len(value)
    return "object", id(value)


def _state_of(state: Any) -> list[Any]:
    """Return the numbers of a generator's state; to write them all out takes milliseconds."""
    inner = (
        each for value in state.values() for each in (value.values() if isinstance(value, dict) else (value,))
    )
    return [each.tobytes() if isinstance(each, np.ndarray) else repr(each) for each in inner]


def contents(value: Any, most: int = _MOST_BYTES) -> tuple[Any, ...]:
    """Return where a file in memory is at, and what tells if it is written to; nothing if it is closed.

    Args:
        value: a ``mmap``, ``BytesIO`` or ``StringIO``.
        most: the most bytes that are looked at.
    """
    try:
        if isinstance(value, io.StringIO):
            return value.tell(), hash(value.getvalue())
        with memoryview(value if isinstance(value, mmap.mmap) else value.getbuffer()) as data:
            if isinstance(value, mmap.mmap) and data.readonly:
                return value.tell(), len(data)
            if isinstance(value, mmap.mmap) and len(data) > _MOST_SUMMED:
                most = min(most, _MOST_IN_FILE)
            step = max(1, len(data) // most)
            return value.tell(), len(data), zlib.crc32(bytes(data[::step]))
    except (ValueError, BufferError):
        return ()


def checksum(array: Any) -> int:
    """Return what tells whether an array or tensor has been written to; of large files, by few places."""
    try:
        data = np.asarray(array)
        if not data.flags.writeable and _is_mapped(array):
            return 0  # nothing is written to it by that, and there may be many
        is_large = data.nbytes > _MOST_SUMMED
        file = mapping_of_large(data)
        if file is not None and not file.writable:
            return 0
        most = _MOST_BYTES if file is None else _MOST_IN_FILE
        step = max(1, data.nbytes // most)
        if is_large and not data.flags.c_contiguous:
            return zlib.crc32(data.flat[::step].tobytes())  # without a copy of all of it
        data = data.reshape(-1)
        some = zlib.crc32(np.ascontiguousarray(data[::step]).tobytes())
        return some if step == 1 or is_large else some + _sum(data)
    except Exception:  # of a device, sparse, of objects ...
        return 0


def _is_mapped(array: Any) -> bool:
    """Whether an array is known to be a view of a mapped file, or of a part of memory that is handled as one."""
    while array is not None:
        if isinstance(array, (np.memmap, mmap.mmap)):
            return True
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return False


def _sum(data: Any) -> int:
    """Return a sum over all bytes of an array, which takes a tenth of a checksum's time."""
    numbers = np.ascontiguousarray(data).view(np.uint8)
    return int(np.add.reduce(numbers[: numbers.size // 8 * 8].view(np.uint64)))


def made_of(*parts: Any) -> dict[str, Any]:
    """Return the objects that code is made of, by name: they decide what loading changes, its values do not.

    Args:
        parts: a dataset, and what is applied to its samples.

    >>> class Lines: pass
    >>> lines = Lines(); lines.number = 1; before = made_of(lines)
    >>> lines.number = 2; made_of(lines) == before
    True
    >>> lines.file = open(__file__); made_of(lines) == before
    False
    >>> lines.file.close()
    """
    found: dict[str, Any] = {}
    for position, part in enumerate(parts):
        found[str(position)] = type(part), id(part)
        for name, value in walk(part, _holds_leaves, _MOST_PARTS):
            if isinstance(value, generators()):
                found[f"{position}.{name}"] = type(value)
            elif not isinstance(value, (*leaves(), *CONTAINERS)):
                found[f"{position}.{name}"] = type(value), id(value), is_open(value)
    return found


def _holds_leaves(value: Any) -> bool:
    """Whether a container has only values that are compared as a whole, as far as one looks."""
    if not isinstance(value, CONTAINERS):
        return False
    values = islice(values_of(value), _MOST_PARTS)
    return all(issubclass(kind, leaves()) for kind in set(map(type, values)))
