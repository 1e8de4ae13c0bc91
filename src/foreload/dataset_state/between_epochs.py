"""A look at what a script sets in its dataset between epochs, which cached samples do not have."""

from __future__ import annotations

import dis
import functools
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset

from foreload.checks import module_of, optional, package_of, tells_class
from foreload.dataset_state.walk import CONTAINERS, PLAIN, generators, is_installed, names_used

__all__ = ["BetweenEpochs"]

# The most objects and attributes that are looked at, and the most values of a container that are compared.
_MOST_OBJECTS, _MOST_ATTRIBUTES, _MOST_VALUES = 64, 256, 64

# The length from which texts are not held.
_LONG = 1_000

# The methods that load a sample, or are applied to one.
_ENTRIES = ("__getitem__", "__getitems__", "__call__", "__iter__", "__next__", "forward")

# Packages whose objects are no settings.
_NO_SETTINGS = ("multiprocessing", "threading", "ctypes", "logging", "queue", "weakref", "_io", "_thread")

_SETS = ("STORE_ATTR", "DELETE_ATTR")

# An attribute: the id of its owner, and its name.
_Key = tuple[int, str]


class BetweenEpochs:
    """A look at the attributes of a dataset of the user's class, and of the user's objects in it.

    An attribute counts if code that loads samples reads it and does not set it, as it does a count, or a file that
    is opened when it is first needed. Numbers and texts are compared by value, and so are containers that take the
    place of others; what is written into one is not seen. So it is the same whether this process loads or others.

    Args:
        dataset: of any class.

    >>> class Scaled:
    ...     __module__ = "script"
    ...     def __init__(self): self.epoch, self.loads = 0, 0
    ...     def __getitem__(self, index):
    ...         self.loads += 1
    ...         return self.epoch * index
    >>> scaled = Scaled(); look = BetweenEpochs(scaled)
    >>> _ = scaled[3]; scaled.loads = 0; look.changed()
    >>> scaled.epoch = 1; look.changed(), look.changed()
    ('epoch', None)
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._logs: set[_Key] = set()  # containers that have been written into
        self._held: list[Any] = []  # so that nothing else gets their ids
        self._before = self._settings()

    def _settings(self) -> dict[_Key, Any]:
        """Return what stands for the value of each attribute."""
        found: dict[_Key, Any] = {}
        held: list[Any] = []
        # The user's objects may raise anything when they are looked at, and this is no more than a look.
        with suppress(Exception):
            for owner, name, value in islice(_attributes(self._dataset), _MOST_ATTRIBUTES):
                held += [owner, value] if _is_plain_container(value) else [owner]
                found[id(owner), name] = _known(value)
        self._held = held
        return found

    def changed(self) -> str | None:
        """Return the name of an attribute that has been set since the last look; None if none has."""
        before, held = self._before, self._held
        now = self._before = self._settings()
        del held
        # (Where an object is new, what holds it differs.)
        owners = {owner for owner, _ in before} & {owner for owner, _ in now}
        differing = [
            key
            for key in before | now
            if key[0] in owners and not (key in before and key in now and _is_same(now[key], before[key]))
        ]
        self._logs |= {key for key in differing if _is_written_into(now.get(key), before.get(key))}
        return next((key[1] for key in differing if key not in self._logs), None)


class _Values(list[Any]):
    """What stands for a container: its id, and its values."""


def _is_written_into(now: Any, before: Any) -> bool:
    return isinstance(now, _Values) and isinstance(before, _Values) and now[0] == before[0]


def _is_same(now: Any, before: Any) -> bool:
    if isinstance(now, weakref.ref) and isinstance(before, weakref.ref):
        return now() is before() is not None
    if isinstance(now, _Values) and isinstance(before, _Values):
        return now[1:] == before[1:]
    return type(now) is type(before) and bool(now == before)


def _known(value: Any) -> Any:
    """Return what is equal as long as a value is the same; what may be large is not held."""
    kind = type(value)
    if isinstance(value, (str, bytes)) and len(value) > _LONG:
        return kind, len(value), hash(value)
    if isinstance(value, PLAIN):
        return kind, value if value == value else repr(value)  # (nan is not equal to itself)
    if isinstance(value, (range, slice, np.generic, torch.dtype, torch.device)):
        return kind, repr(value)
    if package_of(kind) == "pathlib":
        return kind, str(value)
    if isinstance(value, np.ndarray) and value.size <= _MOST_VALUES and not value.dtype.hasobject:
        return kind, str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, torch.Tensor) and value.numel() <= _MOST_VALUES and value.device.type == "cpu":
        return kind, str(value.dtype), repr(value.tolist())
    if _is_plain_container(value) and len(value) <= _MOST_VALUES:
        parts = list(value.items()) if isinstance(value, dict) else list(value)
        return _Values([id(value), kind, *map(_known, parts)])
    if _is_plain_container(value):
        return _Values([id(value), kind, len(value), id(value)])
    try:
        return weakref.ref(value)
    except TypeError:
        return kind, id(value)


def _is_plain_container(value: Any) -> bool:
    """Whether looking into a value runs no code of the user's."""
    return isinstance(value, CONTAINERS) and type(value).__module__ in ("builtins", "collections")


def _attributes(dataset: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield the attributes that count: their owners, names and values."""
    seen: set[int] = set()
    read: frozenset[str] = frozenset()
    left: deque[Any] = deque([dataset])
    while left and len(seen) < _MOST_OBJECTS:
        value = left.popleft()
        if not tells_class(value) or isinstance(value, PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        kind: Any = type(value)
        if _is_plain_container(value):
            left += islice(value.values() if isinstance(value, dict) else value, _MOST_OBJECTS)
        elif is_installed(module_of(kind)) and kind.__name__ not in ("Namespace", "SimpleNamespace"):
            left += _parts_of(value)
        elif isinstance(own := optional(value, "__dict__"), dict) and not isinstance(value, (type, FunctionType)):
            reads, sets = _names_of(kind, read)
            read |= reads
            for name, inner in list(own.items()):
                is_setting = not isinstance(inner, generators()) and package_of(type(inner)) not in _NO_SETTINGS
                if name in read and name not in sets and is_setting:
                    yield value, name, inner
                    left.append(inner)


def _parts_of(value: Any) -> list[Any]:
    """Return what is the user's in an object of a library: datasets that are joined, composed transforms."""
    if isinstance(value, ConcatDataset):
        return [optional(part, "dataset") or part for part in value.datasets]
    if isinstance(value, torch.nn.Module):
        return list(value.children())
    parts = optional(value, "transforms")
    return list(parts) if type(parts) in (list, tuple) else []


@functools.lru_cache(maxsize=256)
def _names_of(kind: Any, entries: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of attributes that loading reads, and of those that it sets.

    Args:
        kind: a class of the user's.
        entries: names that code of others reads, among them those of methods that it calls.
    """
    reads: set[str] = set()
    sets: set[str] = set()
    left: list[Any] = [
        vars(base)[name] for base in kind.__mro__ for name in {*_ENTRIES, *entries} & vars(base).keys()
    ]
    followed: set[str] = {*_ENTRIES, *entries}
    seen: set[CodeType] = set()
    while left:
        function = left.pop()
        for wrapper in ("fget", "func", "__func__", "__wrapped__"):
            function = optional(function, wrapper) or function
        if not isinstance(function, FunctionType) or function.__code__ in seen:
            continue
        seen.add(function.__code__)
        names = names_used(function.__code__)
        reads |= names
        sets |= _set_by(function.__code__)
        left += (optional(cell, "cell_contents") for cell in function.__closure__ or ())
        own = (function.__globals__[name] for name in names & function.__globals__.keys())
        left += (each for each in own if isinstance(each, FunctionType) and not is_installed(module_of(each)))
        new = names - followed
        followed |= new
        left += (vars(base)[name] for base in kind.__mro__ for name in new & vars(base).keys())
    computed = {
        name
        for base in kind.__mro__
        for name, part in vars(base).items()
        if type(part) is functools.cached_property
    }
    return frozenset(reads), frozenset(sets | computed)


def _set_by(code: CodeType) -> set[str]:
    """Return the names of attributes that code sets, and functions defined in it."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname in _SETS}
    for value in code.co_consts:
        if isinstance(value, CodeType):
            found |= _set_by(value)
    return found
