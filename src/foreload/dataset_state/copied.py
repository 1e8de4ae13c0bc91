"""A record of all that samples are made from, as it was when worker processes got copies of it."""

from __future__ import annotations

import ctypes
import dis
import functools
import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from operator import is_
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from foreload._torch import tensor_version
from foreload.checks import optional
from foreload.dataset_state.digest import digest
from foreload.dataset_state.values import spread
from foreload.dataset_state.walk import CONTAINERS, PLAIN, generators, is_installed, names_used

__all__ = ["CopiedState"]

# The most objects that are looked at, and the values of a container that are looked into.
_MOST_OBJECTS, _MOST_INNER = 2_000, 256

# Containers and arrays up to these sizes are compared as a whole; of larger ones, values at so many places, or in
# a file.
_MOST_ITEMS, _MOST_BYTES, _MOST_PLACES, _MOST_IN_FILE = 100_000, 1 << 18, 1_024, 64

# Larger lists are compared with less care for what is equal, but of another type.
_SHORT = 2_000

# What ctypes holds in memory, also values that processes share.
_C_DATA: Any = ctypes.Structure.__base__

_MISSING = object()

# Returns whether something is the same as before; what names it if not.
_IsSame = Callable[[], bool]


class CopiedState:
    """The values that samples are made from: a dataset's attributes, and what its containers, tensors and arrays
    hold; the global variables and attributes of classes that its code uses.

    Each batch can be preceded by a look at them, so large ones are not compared as a whole.

    Args:
        parts: the dataset, and what is applied to its samples.

    >>> class Scaled:
    ...     factor, weights = 1, [1, 2]
    >>> dataset = Scaled(); dataset.weights = [1, 2]
    >>> held = CopiedState(dataset)
    >>> held.changed(), dataset.weights.append(3), held.changed()
    (None, None, 'weights')
    """

    def __init__(self, *parts: Any) -> None:
        self._looks: list[Callable[[], str | None]] = []
        seen: dict[int, Any] = {}  # held, so that nothing else gets their ids
        self._left: deque[tuple[str, Any]] = deque((type(part).__name__, part) for part in parts)
        while self._left and len(seen) < _MOST_OBJECTS:
            name, value = self._left.popleft()
            if not isinstance(value, PLAIN) and id(value) not in seen:
                seen[id(value)] = value
                self._watch(name, value)
        self._left.clear()
        self._held = list(seen.values())

    def changed(self) -> str | None:
        """Return the name of what has been changed since; None if nothing has."""
        return next((name for look in self._looks if (name := look()) is not None), None)

    def _watch(self, name: str, value: Any) -> None:
        if isinstance(value, (torch.Tensor, np.ndarray)):
            for is_same in _numbers_of(value):
                self._add(name, is_same)
        elif isinstance(value, (bytearray, array, _C_DATA)):
            before = digest(value)
            self._add(name, lambda: bool(digest(value) == before))
        elif isinstance(value, FunctionType):
            self._watch_function(name, value)
        elif isinstance(value, MethodType):
            self._left += [(name, value.__self__), (name, value.__func__)]
        elif isinstance(value, functools.partial):
            self._left += [(name, value.func), (name, value.args), (name, value.keywords)]
        elif isinstance(value, type):
            self._watch_class(value)
        elif not isinstance(value, (ModuleType, logging.Logger, TorchDataLoader, *generators())):
            if isinstance(value, CONTAINERS) and _iterates_plainly(type(value)):
                self._watch_container(name, value)
            if type(value) not in CONTAINERS:
                self._watch_object(name, value)

    def _add(self, name: str, is_same: _IsSame) -> None:
        self._looks.append(lambda: None if is_same() else name)

    def _watch_object(self, name: str, value: Any) -> None:
        own = optional(value, "__dict__")
        if isinstance(own, dict):
            self._looks.append(_Attributes(own))
            self._left += ((str(key), inner) for key, inner in own.items())
        slots = [slot for kind in type(value).__mro__ for slot in _slots_of(kind)]
        for slot in slots:
            self._watch_slot(value, slot)
        # A table of pandas keeps its columns where no attribute of Python's shows them.
        self._left += ((name, part) for part in optional(optional(value, "_mgr"), "arrays") or ())
        self._left += ((kind.__name__, kind) for kind in type(value).__mro__[:-1])

    def _watch_slot(self, value: Any, slot: str) -> None:
        before = getattr(value, slot, _MISSING)
        self._add(slot, lambda: _is_same(getattr(value, slot, _MISSING), before))
        self._left.append((slot, before))

    def _watch_names(self, own: Mapping[str, Any], names: Iterable[str]) -> None:
        """Watch some variables of a module, or attributes of a class."""
        for name in names:
            self._watch_name(own, name, own[name])

    def _watch_name(self, own: Mapping[str, Any], name: str, before: Any) -> None:
        self._add(name, lambda: _is_same(own.get(name, _MISSING), before))
        self._left.append((name, before))

    def _watch_container(self, name: str, value: Any) -> None:
        if not isinstance(value, (tuple, frozenset)):
            self._add(name, _contents_of(value))
        inside = list(islice(value.values() if isinstance(value, dict) else value, _MOST_ITEMS))
        if not all(issubclass(kind, PLAIN) for kind in set(map(type, inside))):
            self._left += ((name, part) for part in inside[:_MOST_INNER])

    def _watch_class(self, kind: type) -> None:
        if is_installed(kind.__module__):
            return
        own = vars(kind)
        self._watch_names(
            own,
            [key for key, value in own.items() if not key.startswith("__") or isinstance(value, FunctionType)],
        )
        for member in own.values():
            function = getattr(member, "fget" if isinstance(member, property) else "__func__", None)
            if isinstance(function, FunctionType):
                self._left.append((function.__name__, function))

    def _watch_function(self, name: str, function: FunctionType) -> None:
        if is_installed(function.__globals__.get("__name__", "")):
            return
        self._left += ((name, value) for value in (function.__defaults__, function.__kwdefaults__, vars(function)))
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._watch_cell(variable, cell)
        known = function.__globals__
        used = [each for each in _globals_read(function.__code__) if each in known]
        self._watch_names(known, used)
        for module in (known[each] for each in used if isinstance(known[each], ModuleType)):
            if not is_installed(module.__name__):
                self._watch_names(vars(module), names_used(function.__code__) & vars(module).keys())

    def _watch_cell(self, variable: str, cell: Any) -> None:
        before = optional(cell, "cell_contents")
        self._add(variable, lambda: _is_same(optional(cell, "cell_contents"), before))
        self._left.append((variable, before))


class _Attributes:
    """Returns the name of an attribute that is not the same as before; None if all are."""

    def __init__(self, own: dict[str, Any]) -> None:
        self._own, self._names, self._values = own, list(own), list(own.values())

    def __call__(self) -> str | None:
        own = self._own
        if list(own) == self._names and all(map(is_, own.values(), self._values)):
            return None
        before = dict(zip(self._names, self._values, strict=True))
        names = [*before, *(name for name in own if name not in before)]
        return next((n for n in names if not _is_same(own.get(n, _MISSING), before.get(n, _MISSING))), None)


def _is_same(value: Any, before: Any) -> bool:
    return value is before or (type(value) is type(before) and isinstance(value, PLAIN) and value == before)


def _are_same(values: list[Any], before: list[Any]) -> bool:
    return len(values) == len(before) and all(map(_is_same, values, before))


def _slots_of(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else [slot for slot in slots if isinstance(slot, str)]
    return [name for name in names if not name.startswith("__")]


def _iterates_plainly(kind: type) -> bool:
    return any(optional(kind, "__iter__") is known.__iter__ for known in CONTAINERS)


def _contents_of(value: Any) -> _IsSame:
    """Compare the values of a container, all of them if there are not too many."""
    size = len(value)
    if isinstance(value, set):
        members = set(value) if size <= _MOST_ITEMS else None
        return lambda: len(value) == size and (members is None or value == members)
    if isinstance(value, dict):
        keys, values = list(islice(value, _MOST_ITEMS)), list(islice(value.values(), _MOST_ITEMS))
        return lambda: (
            len(value) == size
            and _are_items(list(islice(value, _MOST_ITEMS)), keys)
            and _are_items(list(islice(value.values(), _MOST_ITEMS)), values)
        )
    if size <= _MOST_ITEMS:
        items = list(value)
        return lambda: len(value) == size and _are_items(value, items)
    places = spread(size, _MOST_PLACES)
    some = [value[place] for place in places]
    return lambda: len(value) == size and _are_items([value[place] for place in places], some)


def _are_items(values: Any, before: list[Any]) -> bool:
    if len(before) > _SHORT:
        try:
            return bool((values if type(values) is list else list(values)) == before)
        except Exception:  # a comparison of the user's objects may raise anything
            return False
    return all(map(is_, values, before)) or _are_same(list(values), before)


def _numbers_of(value: Any) -> Iterator[_IsSame]:
    """Compare the numbers of a tensor or an array, all of them unless they are many."""
    numbers: Any = value
    if isinstance(value, torch.Tensor):
        version = tensor_version(value)
        yield lambda: bool(tensor_version(value) == version)
        try:
            numbers = value.detach().numpy()
        except (TypeError, RuntimeError):  # of a device, or a layout or dtype that NumPy does not have
            return
    if not numbers.size:
        return
    if numbers.dtype.hasobject:
        if numbers.size <= _MOST_ITEMS:
            items = numbers.ravel().tolist()
            yield lambda: _are_items(numbers.ravel().tolist(), items)
        return
    in_file = isinstance(numbers, np.memmap) or isinstance(numbers.base, np.memmap)
    if in_file and not numbers.flags.writeable:
        return
    if numbers.nbytes <= _MOST_BYTES and numbers.flags.c_contiguous and not in_file:
        flat = numbers.reshape(-1).view(np.uint8)
        before = flat.copy()
        yield lambda: bool(np.array_equal(flat, before))
        return
    places = np.array(spread(numbers.size, _MOST_IN_FILE if in_file else _MOST_PLACES))
    at = np.unravel_index(places, numbers.shape)
    some = numbers[at].tobytes()
    yield lambda: bool(numbers[at].tobytes() == some)


@functools.lru_cache(maxsize=4096)
def _globals_read(code: CodeType) -> tuple[str, ...]:
    """Return the global variables that code reads, and functions defined in it."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for value in code.co_consts:
        if isinstance(value, CodeType):
            names.update(_globals_read(value))
    return tuple(sorted(names))
