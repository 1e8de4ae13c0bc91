"""The parts of a batch that something else goes on to refer to, so that what a loop writes to them stays."""

from __future__ import annotations

import bisect
import enum
import gc
import logging
import sys
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from foreload._torch import address_of, base_of, storage_uses
from foreload.dataset_state.memory import BUFFERS, Span, span_of, storages_of
from foreload.nested.constants import is_constant

__all__ = ["HELD", "find_held", "foreign_memory"]

# Why copies of a dataset might not do.
HELD = "the dataset or other code goes on to hold a {} of a batch, which copies of it would not share"

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
_NAMED = (type, FunctionType, BuiltinFunctionType, ModuleType, enum.Enum, logging.Logger, np.ufunc)
_CONSTANTS_OF_PANDAS = ("Index", "Timestamp", "Timedelta", "Period", "NaTType", "NAType", "BlockPlacement")


def find_held(
    batch: list[Any], others: Sequence[Any] = (), is_owned: Callable[[list[Span]], bool] = lambda _: False
) -> str | None:
    """Return the class of a part of a batch that something else refers to; None: nothing does.

    Told by the counts of references to objects and to the memory of tensors; constants do not count.

    Args:
        batch: a list that holds the batch, to which nothing else of the caller's refers.
        others: what may refer to parts of it.
        is_owned: whether some of the memory at several places is the dataset's; asked for that of tensors which
            torch has not allocated, such as an array's.

    >>> records = [{"text": "a"}]
    >>> find_held([records[0]]), find_held([records[0]], [records]), find_held([dict(records[0])])
    ('dict', None, None)
    >>> rows = torch.zeros(2, 3)
    >>> find_held([rows[0]]), find_held([rows[0].clone()])
    ('Tensor', None)
    """
    found = _find(batch, others, is_owned)
    if found is not None:  # perhaps only by what is garbage
        gc.collect()
        found = _find(batch, others, is_owned)
    return found


def foreign_memory(batch: list[Any]) -> set[int]:
    """Return the addresses of the tensors in a batch that lie in memory that torch has not allocated."""
    parts = _Parts()
    parts.walk(batch)
    return {begin for begin, _ in parts.foreign()}


def _find(batch: list[Any], others: Sequence[Any], is_owned: Callable[[list[Span]], bool]) -> str | None:
    parts = _Parts()
    parts.walk(batch)
    judged, storages, foreign = list(parts.all), list(parts.storages), parts.foreign()
    for other in others:
        parts.walk(other)
    for key in judged:
        if parts.others(key) > 0:
            return type(parts.all[key]).__name__
    if any(map(parts.is_shared, storages)) or (foreign and is_owned(foreign)):
        return "Tensor"
    return None


class _Parts:
    """The parts of objects that can be changed or recognised.

    Attributes:
        all: by identity.
        references: to each of them, from the others.
        bases: of those, the tensors that others are views of.
        storages: the memory of tensors, and how many of them lie in it, by its place in torch.
    """

    def __init__(self) -> None:
        self.all: dict[int, Any] = {}
        self.references: dict[int, int] = {}
        self.bases: set[int] = set()
        self.storages: dict[int, tuple[torch.UntypedStorage, int]] = {}
        self._begins: list[int] | None = None  # of foreign memory, once all is walked through

    def walk(self, holder: Any) -> None:
        """Add the parts of what is not itself one."""
        waiting: list[Any] = [holder]
        while waiting:
            value = waiting.pop()
            for part in _inside(value):
                if type(part) not in _ATOMS and not _is_settled(part):
                    self.references[id(part)] = self.references.get(id(part), 0) + 1
                    self._add(part, waiting)
            if isinstance(value, torch.Tensor):
                self._add_tensor(value, waiting)

    def _add(self, part: Any, waiting: list[Any]) -> None:
        if id(part) not in self.all:
            self.all[id(part)] = part
            waiting.append(part)

    def _add_tensor(self, tensor: torch.Tensor, waiting: list[Any]) -> None:
        for storage in storages_of(tensor):
            place = address_of(storage)
            self.storages[place] = storage, self.storages.get(place, (storage, 0))[1] + 1
        base = base_of(tensor)
        if base is not None:  # which only torch refers to, unless something else does
            self.bases.add(id(base))
            self.references.setdefault(id(base), 0)
            self._add(base, waiting)

    def others(self, key: int) -> int:
        """Return the number of references to a part from elsewhere."""
        count = _count(self.all, key) - self.references[key] - (_OF_BASE if key in self.bases else 0)
        if count > 0 and isinstance(self.all[key], BUFFERS):
            # Each tensor over memory of an array holds that array, or one over the same memory.
            if self._begins is None:
                self._begins = sorted(begin for begin, _ in self.foreign())
            begin, end = span_of(self.all[key])
            count -= bisect.bisect_left(self._begins, end) - bisect.bisect_left(self._begins, begin)
        return count

    def foreign(self) -> list[Span]:
        """Return the memory of tensors that torch has not allocated."""
        storages = [storage for storage, _ in self.storages.values()]
        return [span_of(storage) for storage in storages if storage.nbytes() and not storage.resizable()]

    def is_shared(self, place: int) -> bool:
        """Whether something else lies in the memory of tensors, or holds it."""
        held = self.storages[place]
        references = _storage_count(held) - _OF_STORAGE - self.references.get(id(held[0]), 0)
        return references > 0 or storage_uses(place) - 1 > held[1]


def _count(objects: dict[int, Any], key: int) -> int:
    return sys.getrefcount(objects[key]) - _OWN


def _storage_count(held: tuple[torch.UntypedStorage, int]) -> int:
    return sys.getrefcount(held[0])


# What is counted of an object that only the dictionary refers to; and of a tensor for that others are views of it.
_OWN = 0
_OWN = _count({0: object()}, 0)
_VIEW = torch.zeros(2)[:1]
_OF_BASE = _count({0: base_of(_VIEW)}, 0)


def _inside(value: Any) -> list[Any]:
    """Return what an object refers to, as often as it does."""
    if isinstance(value, np.memmap) and _is_read_only(value):
        return []  # (It has the file as an attribute.)
    inside = gc.get_referents(value)
    if isinstance(value, (np.ndarray, np.void)):  # which the collector does not know
        if value.base is not None:
            inside += () if _is_read_only(value) else (value.base,)
        elif value.dtype.hasobject:
            inside.extend(value.reshape(-1) if value.dtype == object else _OBJECTS)
    return inside


def _is_read_only(value: Any) -> bool:
    """Whether neither an array nor what it is a view of can be written to; a record of an array can."""
    memory = value
    while isinstance(memory, np.ndarray) and not memory.flags.writeable:
        memory = memory.base
    return not isinstance(memory, (np.ndarray, np.void))


# In place of the objects in the fields of an array, of which nothing is known: something that is referred to here.
_OBJECTS: tuple[Any] = ([],)


def _is_settled(value: Any, depth: int = 4) -> bool:
    """Whether nobody changes an object, or what it holds, or knows it by its identity."""
    kind = type(value)
    if issubclass(kind, tuple) or kind is frozenset:
        # (A deeper one is looked into as other objects are.)
        return (
            depth > 0
            and not hasattr(value, "__dict__")
            and all(type(part) in _ATOMS or _is_settled(part, depth - 1) for part in value)
        )
    if isinstance(value, torch.Tensor):
        return kind is torch.Tensor and value.numel() == 0 and not value.requires_grad and not vars(value)
    if isinstance(value, (*_NAMED, np.generic)):
        return isinstance(value, (logging.Logger, np.ufunc)) or is_constant(value)
    module = str(kind.__module__)
    if module.partition(".")[0] == "pandas":
        return kind.__name__.endswith(_CONSTANTS_OF_PANDAS)
    # (One of a user's class that is derived from a constant's may have attributes.)
    is_derived = isinstance(value, (str, bytes, int, float, complex)) and kind not in _ATOMS
    return not is_derived and is_constant(value)


def _of_new_storage() -> int:
    parts = _Parts()
    parts.walk([torch.zeros(1)])
    return sum(map(_storage_count, parts.storages.values()))


# What is counted of the storage of a new tensor.
_OF_STORAGE = _of_new_storage()
