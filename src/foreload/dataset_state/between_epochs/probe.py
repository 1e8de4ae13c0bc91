"""A probe of what a script sets in its dataset between epochs, which cached samples do not have."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from foreload.checks import package_of
from foreload.dataset_state.between_epochs.attributes import (
    functions_of,
    is_plain_container,
    names,
    owners,
    read_by,
)
from foreload.dataset_state.between_epochs.elsewhere import Elsewhere
from foreload.dataset_state.between_epochs.loading_code import ENTRIES, names_of, set_by
from foreload.dataset_state.names import globals_used, modules_used, names_used
from foreload.dataset_state.walk import PLAIN, generators

__all__ = ["BetweenEpochs"]

# The most attributes that are looked at.
_MOST_ATTRIBUTES = 256

# The most values of a container that are compared, and of those within it, by how deep they may be.
_MOST_VALUES, _MOST_WITHIN = 64, {4: 64, 3: 16, 2: 8, 1: 8}

# The length from which texts are not held.
_LONG = 1_000

# Packages whose objects are no settings.
_NO_SETTINGS = ("multiprocessing", "threading", "ctypes", "logging", "queue", "weakref", "_io", "_thread")

# An attribute or a global variable: the id of its owner or its namespace, and its name.
_Key = tuple[int, str]


class BetweenEpochs:
    """A probe of the attributes of a dataset of the user's class, and of the user's objects in it.

    An attribute, of an object or its class, counts if code that loads samples reads it and does not set it, as it
    does a count, or a file that is opened when it is first needed; so do the methods that are called. Numbers and
    texts are compared by value, and so are containers that take the place of others; what is written into one is
    not seen. Global variables that this code reads count too. So it is the same whether this process loads or
    others.

    Args:
        dataset: of any class.

    >>> class Scaled:
    ...     __module__ = "script"
    ...     def __init__(self): self.epoch, self.loads = 0, 0
    ...     def __getitem__(self, index):
    ...         self.loads += 1
    ...         return self.epoch * index
    >>> scaled = Scaled(); probe = BetweenEpochs(scaled)
    >>> _ = scaled[3]; scaled.loads = 0; probe.changed()
    >>> scaled.epoch = 1; probe.changed(), probe.changed()
    ('epoch', None)
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._held: list[Any] = []  # so that nothing else gets their ids
        self._read: frozenset[str] = frozenset()
        self._before = self._settings()

    def _settings(self) -> dict[_Key, Any] | None:
        """Return what stands for the value of each attribute; None if that cannot be told."""
        found: dict[_Key, Any] = {}
        held: list[Any] = []
        # The user's objects may raise anything when they are looked at, and this is no more than a probe.
        try:
            self._read, attributes = _attributes(self._dataset)
            for owner, name, value in islice(attributes, _MOST_ATTRIBUTES):
                held += [owner, value] if is_plain_container(value) else [owner]
                with suppress(Exception):
                    found[id(owner), name] = _Known(value)
        except Exception:
            return None
        self._held = held
        return found

    def changed(self) -> str | None:
        """Return the name of an attribute that has been set since it was last asked; None if none has."""
        before, held, known = self._before, self._held, self._read
        now = self._before = self._settings()
        del held  # what is new has other ids
        if before is None or now is None:
            return None
        # (Where an object is new, what holds it differs.)
        owners = {owner for owner, _ in before} & {owner for owner, _ in now}
        for key in before | now:
            if key[0] not in owners or (key in now and key in before and now[key].is_same(before[key])):
                continue
            # An object that was made when it was first needed has code of its own, which reads other names.
            if (key in now and key in before) or key[1] in known & self._read:
                names_of.cache_clear()  # a method may be another one
                return key[1]
        return None


class _Known:
    """A stand-in for a value, compared in its place; it does not hold what may be large."""

    def __init__(self, value: Any) -> None:
        self._place = id(value) if is_plain_container(value) else None
        self._content = _content(value, max(_MOST_WITHIN))

    def is_same(self, before: _Known) -> bool:
        """Whether the value is the same, or a container that may have been written into."""
        is_one = self._place is not None and self._place == before._place
        with suppress(Exception):  # of a comparison of the user's
            return is_one or bool(self._content == before._content)
        return True


class _Reference:
    """A weak reference that equals others to the same object, if that is there."""

    def __init__(self, value: Any) -> None:
        self._get = weakref.ref(value)
        self._id = id(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reference) and self._get() is other._get() is not None

    def __hash__(self) -> int:
        return self._id


def _content(value: Any, depth: int) -> Any:
    kind = type(value)
    if isinstance(value, FunctionType):  # which notebooks give other code when its file has changed
        return _Reference(value), value.__code__
    if isinstance(value, (str, bytes)) and len(value) > _LONG:
        return kind, len(value), hash(value)
    if isinstance(value, PLAIN):
        plain: Any = next(base for base in PLAIN if isinstance(value, base))
        return kind, plain.__repr__(value)
    if isinstance(value, (range, slice, np.generic, torch.dtype, torch.device)):
        return kind, repr(value)
    if package_of(kind) == "pathlib":
        return kind, str(value)
    if isinstance(value, np.ndarray) and value.size <= _MOST_VALUES and not value.dtype.hasobject:
        return kind, str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, torch.Tensor) and value.numel() <= _MOST_VALUES and value.device.type == "cpu":
        return kind, str(value.dtype), repr(value.tolist())
    if is_plain_container(value) and len(value) <= _MOST_WITHIN.get(depth, 0):
        parts = (*value.keys(), *value.values()) if isinstance(value, dict) else tuple(value)
        contents = tuple(_content(part, depth - 1) for part in parts)
        return kind, frozenset(contents) if isinstance(value, (set, frozenset)) else contents
    with suppress(TypeError):
        return _Reference(value)
    return kind, id(value)


def _attributes(dataset: Any) -> tuple[frozenset[str], Iterator[tuple[Any, str, Any]]]:
    """Return the names that loading reads, and the attributes that count: their owners, names and values."""
    read = frozenset(ENTRIES)
    while True:  # until the code of all that is found has been looked through
        found = list(owners([dataset], read))
        more = read.union(*(read_by(owner, own, read) for owner, own in found))
        if len(more) == len(read):
            break
        read = more
    elsewhere = Elsewhere(functions_of(found, read), read)
    settings = _settings_of(found, read), _globals(elsewhere.functions), elsewhere.settings()
    return elsewhere.read, (each for some in settings for each in some if _may_be_setting(each[2]))


def _settings_of(found: list[tuple[Any, dict[str, Any]]], read: frozenset[str]) -> Iterator[tuple[Any, str, Any]]:
    """Yield the attributes of the dataset and the objects in it that are read and not set."""
    sets = [names(owner, read)[1] for owner, _ in found]
    for (owner, own), by_itself in zip(found, sets, strict=True):
        # What the dataset holds is set by its code too, and what has no code by that of all others.
        by_others = sets if not names(owner, read)[2] else sets[:1]
        for name in own.keys() & read - by_itself.union(*by_others):
            yield owner, name, own[name]


def _may_be_setting(value: Any) -> bool:
    return not isinstance(value, generators()) and package_of(type(value)) not in _NO_SETTINGS


def _globals(functions: Iterable[FunctionType]) -> Iterator[tuple[Any, str, Any]]:
    """Yield the global variables that functions read and do not set: their namespaces, names and values."""
    seen: set[_Key] = set()
    sets = frozenset[str]().union(*(set_by(function.__code__) for function in functions))
    for function in functions:
        code = function.__code__
        spaces = [(function.__globals__, {*globals_used(code)})]
        spaces += [(vars(module), names_used(code)) for module in modules_used(function)]
        for space, used in spaces:
            for name in used & space.keys() - sets:
                if (id(space), name) not in seen and not isinstance(space[name], ModuleType):
                    seen.add((id(space), name))
                    yield space, name, space[name]
