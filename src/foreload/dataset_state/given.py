"""The parts of a batch that something else goes on to refer to, so that what a loop writes to them stays."""

from __future__ import annotations

import enum
import functools
import gc
import logging
import math
import sys
import weakref
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from mmap import mmap
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from foreload._torch import address_of, base_of, uses_of
from foreload.checks import module_of, optional, package_of
from foreload.dataset_state.installed import is_installed
from foreload.dataset_state.memory import Owner, chain, is_foreign, object_under, owner_of, uses_of_storage
from foreload.dataset_state.walk import slots_of
from foreload.nested.constants import FILE_OF_MAP, is_constant

__all__ = ["find_held", "find_reference"]

# Why copies of a dataset might not do.
_HELD = "the dataset or other code goes on to hold a {} of a batch, which copies of it would not share"
_UNTOLD = {
    Owner.file: "a batch lies in a file that is mapped to be written to, which a copy of it would not",
    Owner.unknown: "a batch lies in memory of which Python does not know whose it is, as another library's buffer",
}
_NAN = "a batch holds math.nan or numpy.nan, which may be known by its identity, and no copy of it would be"
_COMPOSED = (
    "it cannot be seen whether a sparse, nested or quantized tensor of a batch shares its parts with others"
)

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
# What is known by its name, and so may have attributes.
_NAMED = (enum.Enum, type, FunctionType, BuiltinFunctionType, ModuleType)
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
    judged, storages, untold = list(parts.judged), list(parts.storages), parts.untold
    for other in others:
        parts.walk(other)
    for key in judged:
        if parts.is_held(key):
            return _HELD.format(type(parts.all[key]).__name__)
    if untold is not None:
        return untold
    return _HELD.format("Tensor") if any(map(parts.is_shared, storages)) else None


class _Parts:
    """The parts of objects that can be changed or recognised.

    Args:
        is_lent: as for :func:`find_held`.

    Attributes:
        all: by identity, with the memory that they lie in.
        judged: those to which nothing else may refer.
        references: to each of them, from the others.
        bases: of those, the tensors that others are views of, and how many are.
        storages: the memory of tensors, and how many of them lie in it, by its place in torch.
        weak: by what they refer to, the weak references among the parts.
        untold: why it cannot be told by references whether others share a part; None: it can.
    """

    def __init__(self, is_lent: Callable[[int], bool]) -> None:
        self.all: dict[int, Any] = {}
        self.judged: set[int] = set()
        self.references: dict[int, int] = {}
        self.bases: dict[int, int] = {}
        self.storages: dict[int, tuple[torch.UntypedStorage, int]] = {}
        self.weak: dict[int, set[int]] = {}
        self.untold: str | None = None
        self._is_lent = is_lent
        self._followed: set[int] = set()  # arrays of which it has been counted that they refer to their bases

    def walk(self, holder: Any) -> None:
        """Add the parts of what is not itself one."""
        waiting: list[Any] = [holder]
        while waiting:
            value = waiting.pop()
            for part in _inside(value):
                if type(part) is bytes:
                    self._count(part)
                elif type(part) in _ATOMS:
                    self.untold = _NAN if part is math.nan or part is np.nan else self.untold
                elif not _is_settled(part):
                    self._count(part)
                    self._judge(part, waiting)
            if isinstance(value, torch.Tensor):
                self._add_tensor(value, waiting)
            elif isinstance(value, weakref.ref):
                self.weak.setdefault(id(value()), set()).add(id(value))
            elif isinstance(value, torch.UntypedStorage):
                self._add_storage(value, 0, waiting)
            elif isinstance(value, (np.ndarray, np.void, memoryview)):
                self._follow(value)
                # (Objects in an array that is read-only can be changed all the same.)
                if not _is_read_only(value) or (not isinstance(value, memoryview) and value.dtype.hasobject):
                    self._judge_memory(value, waiting)
            elif _is_image_over(value) or _is_buffer(value):
                self.untold = self.untold or _UNTOLD[Owner.unknown]

    def _count(self, part: Any) -> None:
        self.references[id(part)] = self.references.get(id(part), 0) + 1
        self.all.setdefault(id(part), part)

    def _judge(self, part: Any, waiting: list[Any]) -> None:
        if id(part) not in self.judged:
            self.judged.add(id(part))
            waiting.append(part)

    def _follow(self, memory: Any) -> None:
        """Count the references of arrays to what they are views of. (The collector does not know of them.)"""
        for view, base in pairwise(chain(memory)):
            if isinstance(view, (np.ndarray, np.void)) and id(view) not in self._followed:
                self._followed.add(id(view))
                self._count(base)

    def _judge_memory(self, memory: Any, waiting: list[Any]) -> None:
        """Judge what an array, a view or a buffer lies in, to which somebody can write."""
        owner = owner_of(memory)
        if owner is Owner.nobody:
            return
        self.untold = self.untold or _UNTOLD.get(owner)
        for base in chain(memory):
            if not isinstance(base, mmap):  # which has been asked whose it is
                self.all.setdefault(id(base), base)
                self.references.setdefault(id(base), 0)
                self._judge(base, waiting)

    def _add_tensor(self, tensor: torch.Tensor, waiting: list[Any]) -> None:
        is_strided = tensor.layout is torch.strided and not tensor.is_nested
        if is_strided and (not tensor.is_quantized or tensor.qscheme() is torch.per_tensor_affine):
            self._add_storage(tensor.untyped_storage(), 1, waiting)
        elif tensor.device.type == "cpu" and tensor.layout is not torch.jagged:
            self.untold = self.untold or _COMPOSED
        base = base_of(tensor)
        if base is not None:  # which only torch refers to, unless something else does
            self.bases[id(base)] = self.bases.get(id(base), 0) + 1
            self.references.setdefault(id(base), 0)
            self.all.setdefault(id(base), base)
            self._judge(base, waiting)

    def _add_storage(self, storage: torch.UntypedStorage, tensors: int, waiting: list[Any]) -> None:
        if storage.device.type != "cpu":
            return
        place = address_of(storage)
        is_new = place not in self.storages
        self.storages[place] = storage, self.storages.get(place, (storage, 0))[1] + tensors
        if is_new and is_foreign(storage) and not self._is_lent(storage.data_ptr()):
            self._add_under(storage, waiting)

    def _add_under(self, storage: torch.UntypedStorage, waiting: list[Any]) -> None:
        """Add the array or buffer that a storage lies in, and holds. Who has the tensor can write to it."""
        memory = object_under(storage)
        if memory is None:
            self.untold = self.untold or _UNTOLD[Owner.unknown]
            return
        self._count(memory)
        self._follow(memory)
        self._judge_memory(memory, waiting)

    def is_held(self, key: int) -> bool:
        """Whether there are references to a part from elsewhere, weak ones and those of C++ included."""
        views = self.bases.get(key, 0)
        of_views = _OF_BASE if views else 0
        if _count(self.all, key) - of_views > self.references[key]:
            return True
        part = self.all[key]  # (a reference that would count)
        is_used = isinstance(part, torch.Tensor) and uses_of(part) > 1 + views
        # (Those to objects of pandas are of its own, which so knows who shares a column.)
        weak = weakref.getweakrefcount(part) - len(self.weak.get(key, ()))
        return is_used or (weak > 0 and package_of(type(part)) != "pandas")

    def is_shared(self, place: int) -> bool:
        """Whether something else lies in the memory of tensors, or holds it."""
        held = self.storages[place]
        references = _storage_count(held) - _OF_STORAGE - self.references.get(id(held[0]), 0)
        return references > 0 or uses_of_storage(place) - 1 > held[1]


def _count(objects: dict[int, Any], key: int) -> int:
    return sys.getrefcount(objects[key]) - _OWN


def _storage_count(held: tuple[torch.UntypedStorage, int]) -> int:
    return sys.getrefcount(held[0])


# What is counted of an object that only the dictionary refers to; and of a tensor for that others are views of it.
_OWN = 0
_OWN = _count({0: object()}, 0)
with torch.inference_mode(False):  # in which views have no base
    _VIEW = torch.zeros(2, device="cpu")[:1]
_OF_BASE = _count({0: base_of(_VIEW)}, 0)


def _inside(value: Any) -> list[Any]:
    """Return what an object refers to, as often as it does."""
    if isinstance(value, np.memmap) and value.mode in ("r", "c"):
        own = vars(value).items()  # (It has its file as an attribute, which is not written to.)
        return [part for name, part in own if name not in FILE_OF_MAP]
    if _is_of_pandas(type(value), _NAMED_OF_PANDAS):
        return []
    inside = gc.get_referents(value)
    if isinstance(value, (np.ndarray, np.void)) and value.base is None and value.dtype.hasobject:
        inside.extend(value.reshape(-1) if value.dtype == object else _OBJECTS)
    return inside


def _is_read_only(value: Any) -> bool:
    """Whether neither an array or a view nor what it lies in can be written to; a record of an array can."""
    memory: Any = None
    for memory in chain(value):
        if isinstance(memory, np.ndarray) and memory.flags.writeable:
            return False
        if isinstance(memory, memoryview):
            with suppress(ValueError):  # it has been released
                if not memory.readonly:
                    return False
    if isinstance(memory, np.ndarray):
        return bool(memory.flags.owndata)
    return isinstance(memory, (bytes, memoryview)) or owner_of(memory) is Owner.nobody


def _is_image_over(value: Any) -> bool:
    """Whether an image of Pillow may lie in an array or a file, which it does not refer to."""
    return str(type(value).__module__).startswith("PIL.") and bool(optional(value, "readonly"))


def _is_buffer(value: Any) -> bool:
    """Whether one can write into memory through another library's object, of which the collector sees nothing."""
    if gc.is_tracked(value) or isinstance(value, (bytearray, array, mmap)):
        return False
    try:
        with memoryview(value) as view:
            return not view.readonly
    except (TypeError, ValueError, BufferError):  # it is none
        return False


# In place of the objects in the fields of an array, of which nothing is known: something that is referred to here.
_HELD_HERE: list[Any] = []
_OBJECTS = (_HELD_HERE,)


def _is_settled(value: Any, depth: int = 4) -> bool:
    """Whether nobody changes an object, or what it holds, or knows it by its identity."""
    kind: Any = type(value)
    if issubclass(kind, tuple) or kind is frozenset:
        # (A deeper one is looked into as other objects are.)
        return (
            depth > 0
            and kind.__dictoffset__ == 0
            and all(_is_atom(part) or _is_settled(part, depth - 1) for part in gc.get_referents(value))
        )
    if kind is float:
        return bool(value == value)
    if kind is slice:
        return all(map(_is_atom, gc.get_referents(value)))
    if isinstance(value, (logging.Logger, np.ufunc)) or _is_of_pandas(kind, _CONSTANTS_OF_PANDAS):
        return True
    # (One of a user's class that is derived from a constant's may have attributes.)
    has_none = kind.__dictoffset__ == 0 and not _has_slots(kind)
    return (has_none or isinstance(value, _NAMED)) and is_constant(value)


def _is_atom(value: Any) -> bool:
    """Whether a value is of those that only what they are tells apart, as no NaN is told."""
    return type(value) in _ATOMS and (type(value) is not float or value == value)


@functools.lru_cache(maxsize=4096)
def _has_slots(kind: type) -> bool:
    return any(slots_of(base) for base in kind.__mro__[:-1] if not is_installed(module_of(base)))


def _is_of_pandas(kind: type, names: set[str]) -> bool:
    """Whether a class is one of pandas' that has one of these names, or is derived from one."""
    is_pandas = str(kind.__module__).partition(".")[0] == "pandas"
    return is_pandas and any(each.__name__ in names for each in kind.__mro__)


def _of_new_storage() -> int:
    parts = _Parts(_is_not_lent)
    parts.walk([torch.zeros(1, device="cpu")])
    return sum(map(_storage_count, parts.storages.values()))


# What is counted of the storage of a new tensor.
_OF_STORAGE = _of_new_storage()
