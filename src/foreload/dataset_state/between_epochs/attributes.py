"""The user's objects in a dataset, their attributes, and the code of theirs that loading runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset

from foreload.checks import module_of, optional, tells_class
from foreload.dataset_state.between_epochs.loading_code import Names, names_of, unwrapped
from foreload.dataset_state.installed import is_installed
from foreload.dataset_state.names import names_used
from foreload.dataset_state.walk import CONTAINERS, PLAIN, slots_of, values_of

__all__ = ["functions_of", "is_plain_container", "names", "own_attributes", "owners", "read_by"]

# The most objects that are looked at.
_MOST_OBJECTS = 64

# Classes of Python's own for settings.
_NAMESPACES = ("Namespace", "SimpleNamespace")

# An object, and its attributes by name, with those of its class.
Owner = tuple[Any, dict[str, Any]]


def is_plain_container(value: Any) -> bool:
    """Whether looking into a value runs no code of the user's."""
    return isinstance(value, CONTAINERS) and type(value).__module__ in ("builtins", "collections")


def owners(roots: Iterable[Any], read: frozenset[str]) -> Iterator[Owner]:
    """Yield the user's objects and classes among some objects, and in what of them code reads.

    Args:
        roots: the objects to begin with.
        read: the names that code reads.
    """
    seen: set[int] = set()
    left: deque[Any] = deque(roots)
    while left and len(seen) < _MOST_OBJECTS:
        value = left.popleft()
        if not tells_class(value) or isinstance(value, (*PLAIN, FunctionType)) or id(value) in seen:
            continue
        seen.add(id(value))
        own = own_attributes(value)
        if own is not None:
            yield value, own
            left += () if isinstance(value, type) else (own[name] for name in own if name in read)
        elif is_plain_container(value):
            left += islice(values_of(value), _MOST_OBJECTS)
        elif not isinstance(value, type):
            left += _parts_of(value)


def own_attributes(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object of the user's, or of a class; None for anything else."""
    kind: Any = type(value)
    if isinstance(value, type):
        return None if is_installed(module_of(value)) else _of_class(value)
    if is_plain_container(value) or (is_installed(module_of(kind)) and kind.__name__ not in _NAMESPACES):
        return None
    held = optional(value, "__dict__")
    own = _of_class(kind)
    own |= {key: part for key, part in held.items() if isinstance(key, str)} if type(held) is dict else {}
    slots = (slot for base in kind.__mro__ for slot in slots_of(base))
    return own | {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}


def _of_class(kind: Any) -> dict[str, Any]:
    """Return the attributes that the user's classes give to all of their objects."""
    bases = [base for base in reversed(kind.__mro__) if not is_installed(module_of(base))]
    return {name: unwrapped(part) for base in bases for name, part in vars(base).items()}


def _parts_of(value: Any) -> list[Any]:
    """Return what is the user's in an object of a library: joined datasets, transforms, what it calls."""
    if isinstance(value, Subset):
        return [value.dataset]
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, torch.nn.Module):
        return list(value.children())
    parts = optional(value, "datasets" if isinstance(value, (ConcatDataset, StackDataset)) else "transforms")
    return list(parts.values() if type(parts) is dict else parts) if type(parts) in (dict, list, tuple) else []


def names(owner: Any, entries: frozenset[str]) -> Names:
    """Return what the code of an object's class, or of a class itself, reads, sets and calls.

    Args:
        owner: the object or class.
        entries: names that code of others reads, among them those of methods that it calls.
    """
    try:
        return names_of(owner if isinstance(owner, type) else type(owner), entries)
    except TypeError:  # classes need not be hashable
        return frozenset(), frozenset(), ()


def functions_of(found: Iterable[Owner], read: frozenset[str]) -> list[FunctionType]:
    """Return the functions of objects that loading calls, those that they hold too."""
    each = [one for owner, own in found for one in (*names(owner, read)[2], *_held_by(own, read))]
    return list(dict.fromkeys(each))


def read_by(owner: Any, own: dict[str, Any], read: frozenset[str]) -> frozenset[str]:
    """Return the names that code of an object reads, and functions that it holds."""
    return names(owner, read)[0].union(*(names_used(function.__code__) for function in _held_by(own, read)))


def _held_by(own: dict[str, Any], read: frozenset[str]) -> list[FunctionType]:
    """Return the functions among the attributes of an object that are read."""
    held = (unwrapped(own[name]) for name in read & own.keys())
    return [part for part in held if isinstance(part, FunctionType) and not is_installed(module_of(part))]
