"""The parts of a batch that something else goes on to refer to, so that what a loop writes to them stays."""

from __future__ import annotations

import enum
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from foreload._torch import address_of, base_of, coo_parts, storage_uses
from foreload.dataset_state.walk import walk
from foreload.nested.constants import is_constant

__all__ = ["HELD", "OwnedMemory", "find_held"]

# Why copies of a dataset might not do.
HELD = "the dataset or other code goes on to hold a {} of a batch, which copies of it would not share"

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
_NAMED = (type, FunctionType, BuiltinFunctionType, ModuleType, enum.Enum)

# The most values of the dataset among which the memory of a tensor is looked for.
_MOST_VALUES = 2_000


def find_held(
    batch: list[Any], others: Sequence[Any] = (), is_owned: Callable[[int], bool] = lambda _: False
) -> str | None:
    """Return the class of a part of a batch that something else refers to; None: nothing does.

    Told by the counts of references to objects and to the memory of tensors; constants do not count.

    Args:
        batch: a list that holds the batch, to which nothing else of the caller's refers.
        others: what may refer to parts of it.
        is_owned: whether memory at an address is the dataset's; it is asked for that of tensors that torch has not
            allocated, as that of an array.

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


class OwnedMemory:
    """The memory of the arrays and tensors that a dataset holds.

    Looked for at the first question, and again whenever that takes but a small part of the time since then.

    Args:
        owners: the dataset and what is applied to its samples.

    >>> values = np.zeros(3)
    >>> memory = OwnedMemory([values])
    >>> memory.holds(values[2:].ctypes.data), memory.holds(np.zeros(3).ctypes.data)
    (True, False)
    """

    _SHARE = 50

    def __init__(self, *owners: Any) -> None:
        self._owners = owners
        self._spans: list[tuple[int, int]] = []
        self._next = 0.0

    def holds(self, address: int) -> bool:
        """Whether memory at an address is part of it."""
        now = time.monotonic()
        if now >= self._next:
            self._spans = [span for owner in self._owners for span in _spans_of(owner)]
            done = time.monotonic()
            self._next = done + self._SHARE * (done - now)
        return any(begin <= address < end for begin, end in self._spans)


def _spans_of(owner: Any) -> Iterator[tuple[int, int]]:
    for _, value in islice(walk(owner, None, _MOST_VALUES), _MOST_VALUES):
        if isinstance(value, np.ndarray) and value.size:
            steps = [(side - 1) * stride for side, stride in zip(value.shape, value.strides, strict=True)]
            first, before = value.ctypes.data, sum(step for step in steps if step < 0)
            yield first + before, first + sum(steps) - before + value.itemsize
        elif isinstance(value, torch.Tensor):
            for storage in _storages(value):
                yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _find(batch: list[Any], others: Sequence[Any], is_owned: Callable[[int], bool]) -> str | None:
    parts = _Parts()
    parts.walk(batch)
    judged, storages = list(parts.all), list(parts.storages)
    for other in others:
        parts.walk(other)
    for key in judged:
        if parts.others(key) > 0:
            return type(parts.all[key]).__name__
    for place in storages:
        storage, tensors = parts.storages[place]
        is_foreign = storage.nbytes() > 0 and not storage.resizable()
        if storage_uses(place) - 1 > tensors or (is_foreign and is_owned(storage.data_ptr())):
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
        for storage in _storages(tensor):
            place = address_of(storage)
            self.storages[place] = storage, self.storages.get(place, (storage, 0))[1] + 1
        base = base_of(tensor)
        if base is not None:  # which only torch refers to, unless something else does
            self.bases.add(id(base))
            self.references.setdefault(id(base), 0)
            self._add(base, waiting)

    def others(self, key: int) -> int:
        """Return the number of references to a part from elsewhere."""
        return _count(self.all, key) - self.references[key] - (_OF_BASE if key in self.bases else 0)


def _count(objects: dict[int, Any], key: int) -> int:
    return sys.getrefcount(objects[key]) - _OWN


# What is counted of an object that only the dictionary refers to; and of a tensor for that others are views of it.
_OWN = 0
_OWN = _count({0: object()}, 0)
_VIEW = torch.zeros(2)[:1]
_OF_BASE = _count({0: base_of(_VIEW)}, 0)


def _inside(value: Any) -> list[Any]:
    """Return what an object refers to, as often as it does."""
    inside = gc.get_referents(value)
    if isinstance(value, np.ndarray):  # which the collector does not know
        if value.base is not None:
            inside.append(value.base)
        elif value.dtype.hasobject:
            inside.extend(value.reshape(-1) if value.dtype == object else _OBJECTS)
    return inside


# In place of the objects in the fields of an array, of which nothing is known: something that is referred to here.
_OBJECTS: tuple[Any] = ([],)


def _is_settled(value: Any) -> bool:
    """Whether nobody changes an object, or what it holds, or knows it by its identity."""
    kind = type(value)
    if kind in (tuple, frozenset):
        return all(type(part) in _ATOMS or _is_settled(part) for part in value)
    if isinstance(value, _NAMED):
        return is_constant(value)
    if str(kind.__module__).partition(".")[0] == "pandas" and kind.__name__.endswith("Index"):
        return True
    return is_constant(value) and not getattr(value, "__dict__", None)


def _storages(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    if tensor.device.type != "cpu" or tensor.is_nested:
        return []
    if tensor.layout is torch.strided:
        return [tensor.untyped_storage()]
    if tensor.layout is torch.sparse_coo:
        return [part.untyped_storage() for part in coo_parts(tensor)]
    return []
