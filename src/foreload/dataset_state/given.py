"""The parts of a batch that something else goes on to refer to, so that what a loop writes to them stays."""

from __future__ import annotations

import enum
import gc
import logging
import sys
from array import array
from collections.abc import Callable, Sequence
from mmap import mmap
from typing import Any

import numpy as np
import torch

from foreload._torch import address_of, base_of, storage_uses
from foreload.dataset_state.memory import is_foreign, owner_of, storages_of
from foreload.nested.constants import is_constant

__all__ = ["find_held", "find_reference"]

# Why copies of a dataset might not do.
_HELD = "the dataset or other code goes on to hold a {} of a batch, which copies of it would not share"
_IN_FILE = "a batch lies in a file that is mapped to be written to, which a copy of it would not"
_UNKNOWN = "a tensor of a batch lies in memory of which is not known whose it is, as that of torch.from_dlpack()"

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
# What nobody changes; and what has names that can be set, but values that cannot, which views of it share.
_CONSTANTS_OF_PANDAS = {
    "BlockPlacement",
    "ExtensionDtype",
    "NAType",
    "NaTType",
    "Period",
    "Timedelta",
    "Timestamp",
}
_NAMED_OF_PANDAS = {"Index"}

# The bases of arrays to which no other array leads without a reference to them.
_WITH_MEMORY = (np.ndarray, np.void, torch.Tensor, bytes, bytearray, memoryview, array)


def _is_not_lent(address: int) -> bool:
    return False


def find_held(
    batch: list[Any], others: Sequence[Any] = (), is_lent: Callable[[int], bool] = _is_not_lent
) -> str | None:
    """Return that something else refers to a part of a batch, as a sentence; None: nothing does.

    Told by the counts of references to objects and to the memory of tensors; constants do not count. Memory that
    is a file's, or of which it is not known whose it is, as that of ``torch.from_dlpack()``, counts as held.

    Args:
        batch: a list that holds the batch, to which nothing else of the caller's refers.
        others: what may refer to parts of it.
        is_lent: whether an address is in memory of the caller's, which lends it to the batch.

    >>> records = [{"text": "a"}]
    >>> find_held([records[0]])
    'the dataset or other code goes on to hold a dict of a batch, which copies of it would not share'
    >>> find_held([records[0]], [records]), find_held([dict(records[0])])
    (None, None)
    """
    found = find_reference(batch, others, is_lent)
    if found is not None:  # perhaps only by what is garbage
        gc.collect()
        found = find_reference(batch, others, is_lent)
    return found


def find_reference(
    batch: list[Any], others: Sequence[Any] = (), is_lent: Callable[[int], bool] = _is_not_lent
) -> str | None:
    """Return what :func:`find_held` does, where garbage that has not been collected counts too."""
    parts = _Parts(is_lent)
    parts.walk(batch)
    judged, storages, is_unknown = list(parts.all), list(parts.storages), parts.is_unknown
    for other in others:
        parts.walk(other)
    for key in judged:
        if parts.is_held(key):
            return _HELD.format(type(parts.all[key]).__name__)
        if isinstance(parts.all[key], mmap):
            return _IN_FILE
    if is_unknown:
        return _UNKNOWN
    return _HELD.format("Tensor") if any(map(parts.is_shared, storages)) else None


class _Parts:
    """The parts of objects that can be changed or recognised.

    Args:
        is_lent: as for :func:`find_held`.

    Attributes:
        all: by identity.
        references: to each of them, from the others.
        bases: of those, the tensors that others are views of.
        storages: the memory of tensors, and how many of them lie in it, by its place in torch.
        is_unknown: whether it is not known to whom the memory of some tensor belongs.
    """

    def __init__(self, is_lent: Callable[[int], bool]) -> None:
        self.all: dict[int, Any] = {}
        self.references: dict[int, int] = {}
        self.bases: set[int] = set()
        self.storages: dict[int, tuple[torch.UntypedStorage, int]] = {}
        self.is_unknown = False
        self._is_lent = is_lent
        self._written: set[int] = set()  # read-only arrays that tensors lie in, by identity

    def walk(self, holder: Any) -> None:
        """Add the parts of what is not itself one."""
        waiting: list[Any] = [holder]
        while waiting:
            value = waiting.pop()
            for part in _inside(value):
                if type(part) not in _ATOMS and not _is_settled(part):
                    self._refer(part, waiting)
            if isinstance(value, torch.Tensor):
                self._add_tensor(value, waiting)

    def _refer(self, part: Any, waiting: list[Any]) -> None:
        self.references[id(part)] = self.references.get(id(part), 0) + 1
        self._add(part, waiting)

    def _add(self, part: Any, waiting: list[Any]) -> None:
        if id(part) not in self.all:
            self.all[id(part)] = part
            waiting.append(part)

    def _add_tensor(self, tensor: torch.Tensor, waiting: list[Any]) -> None:
        for storage in storages_of(tensor):
            place = address_of(storage)
            count = self.storages.get(place, (storage, 0))[1]
            self.storages[place] = storage, count + 1
            if count == 0 and is_foreign(storage) and not self._is_lent(storage.data_ptr()):
                self._add_owner(owner_of(storage), waiting)
        base = base_of(tensor)
        if base is not None:  # which only torch refers to, unless something else does
            self.bases.add(id(base))
            self.references.setdefault(id(base), 0)
            self._add(base, waiting)

    def _add_owner(self, owner: Any, waiting: list[Any]) -> None:
        """Add the object in whose memory a tensor lies, and which its storage holds; None: it is not known."""
        if owner is None:
            self.is_unknown = True
            return
        self._refer(owner, waiting)
        # Who has the tensor can write to arrays that are read-only.
        while isinstance(owner, np.ndarray) and _is_read_only(owner) and id(owner) not in self._written:
            self._written.add(id(owner))
            if owner.base is None or (isinstance(owner, np.memmap) and owner.mode == "r"):
                return
            owner = owner.base
            self.is_unknown |= not isinstance(owner, _WITH_MEMORY)
            self._refer(owner, waiting)

    def is_held(self, key: int) -> bool:
        """Whether there are references to a part from elsewhere."""
        of_views = _OF_BASE if key in self.bases else 0
        return _count(self.all, key) - of_views > self.references[key]

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
    if isinstance(value, np.memmap) and value.mode in ("r", "c"):
        # (It has its file as an attribute, which is not written to.)
        return [value.base] if value.mode == "c" and isinstance(value.base, np.ndarray) else []
    if _is_of_pandas(type(value), _NAMED_OF_PANDAS):
        return []
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
    if isinstance(value, (logging.Logger, np.ufunc)) or _is_of_pandas(kind, _CONSTANTS_OF_PANDAS):
        return True
    # (One of a user's class that is derived from a constant's may have attributes.)
    is_derived = isinstance(value, (str, bytes, int, float, complex)) and kind not in _ATOMS
    is_known = isinstance(value, enum.Enum) or kind.__module__ == "numpy"
    return (is_known or not is_derived) and is_constant(value)


def _is_of_pandas(kind: type, names: set[str]) -> bool:
    """Whether a class is one of pandas' that has one of these names, or is derived from one."""
    is_pandas = str(kind.__module__).partition(".")[0] == "pandas"
    return is_pandas and any(each.__name__ in names for each in kind.__mro__)


def _of_new_storage() -> int:
    parts = _Parts(_is_not_lent)
    parts.walk([torch.zeros(1)])
    return sum(map(_storage_count, parts.storages.values()))


# What is counted of the storage of a new tensor.
_OF_STORAGE = _of_new_storage()
