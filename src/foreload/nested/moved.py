"""Batches with their tensors moved, as to a device."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict, UserList, deque
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from foreload.nested.containers import attributes, is_container, rebuilt, rebuilt_tuple, set_attribute
from foreload.nested.tensors import tensors

__all__ = ["move"]


def move(batch: Any, copy_one: Callable[[Any], Any]) -> Any:
    """Return a batch with ``copy_one`` applied to its tensors, and to objects that have ``.to``.

    Tuples, named tuples, lists, mappings and dataclasses keep their type. A tensor that occurs twice is copied
    once. Arrays, sets and the like that may be written to are copied as they are now; anything else is the same.

    Raises:
        TypeError: an object with tensors, of a class of its own, does not take others in their place.

    >>> move({"x": [torch.zeros(2)], "name": "cat"}, lambda tensor: tensor + 1)
    {'x': [tensor([1., 1.])], 'name': 'cat'}
    """
    return _move(batch, copy_one, {})


def _move(value: Any, copy_one: Callable[[Any], Any], done: dict[int, Any]) -> Any:
    if isinstance(value, (type, str, bytes, int, float, complex)) or value is None:
        return value
    if (found := done.get(id(value))) is not None:
        return found[0]
    kind = type(value)
    # (These with as few calls as possible: they are nested the most deeply.)
    if kind is list:
        items: list[Any] = []
        done[id(value)] = items, value
        for item in value:
            items.append(_move(item, copy_one, done))  # noqa: PERF401 (a comprehension would be one more call)
        return items
    if kind is dict:
        fields: dict[Any, Any] = {}
        done[id(value)] = fields, value
        for name, item in value.items():
            fields[name] = _move(item, copy_one, done)
        return fields
    if kind is tuple:
        parts = []
        for item in value:
            parts.append(_move(item, copy_one, done))  # noqa: PERF401 (as above)
        return done.setdefault(id(value), (tuple(parts), value))[0]
    moved = _moved_other(value, copy_one, done)
    # The original is kept too: some mappings make a tensor when it is asked for, and the next would get its id.
    return done.setdefault(id(value), (moved, value))[0]


def _moved_other(value: Any, copy_one: Callable[[Any], Any], done: dict[int, Any]) -> Any:
    def begun(moved: Any) -> None:
        done[id(value)] = moved, value

    def each(item: Any) -> Any:
        return _move(item, copy_one, done)

    def known(_: Any, item: Any) -> Any:
        """Return the moved tensor for one that an attribute holds beside the items."""
        return done.get(id(item), (item,))[0]

    if isinstance(value, torch.Tensor):
        return copy_one(value)
    if callable(getattr(type(value), "to", None)) and not isinstance(value, UserDict):
        return copy_one(copy.copy(value))  # the `.to` of many changes them, and the source is still needed
    if isinstance(value, np.ndarray):
        return value.copy(order="K") if value.flags.writeable else value
    if is_container(value) and not isinstance(value, UserList):
        if isinstance(value, (set, deque, bytearray)):
            return rebuilt(value, lambda item: item, begun, known)
        if isinstance(value, (dict, list)):
            return rebuilt(value, each, begun, known)
        if isinstance(value, UserDict):
            return rebuilt(
                value, each, begun, lambda name, item: each(item) if name == "data" else known(name, item)
            )
        return rebuilt(value, each, begun)  # of a dataclass, all attributes are parts of the batch
    if isinstance(value, (set, deque, bytearray)):
        return copy.copy(value)
    if issubclass(type(value), tuple):
        return rebuilt_tuple(value, each, known)
    if isinstance(value, (Mapping, list)):
        return _by_its_rules(value, each)
    return _with_other_fields(value, each) if _has_fields(value) else value


_Pairs = list[tuple[Any, Any]]


def _by_its_rules(value: Any, each: Callable[[Any], Any]) -> Any:
    """Return a mapping or list whose class says how it is copied, with its items moved; itself if no tensor is."""
    before = _pairs_of(value)
    if all(each(tensor) is tensor for tensor in tensors([item for _, item in before])):
        return value
    after = [(name, each(item)) for name, item in before]
    if isinstance(value, Mapping) and not isinstance(value, MutableMapping):
        with suppress(Exception):  # whatever a user's class raises
            made: Any = type(value)(dict(after))  # type: ignore[call-arg]
            if _holds(made, before, after):
                return made
        return dict(after)
    # The end of a copy may close what the original holds.
    for make in () if hasattr(type(value), "__del__") else (_copied_deeply, _with_parts_moved):
        with suppress(Exception):  # as above
            other = make(value, before, after, each)
            if other is not value and _holds(other, before, after):
                return other
    raise _not_moved(value)


def _pairs_of(value: Any) -> _Pairs:
    return list(value.items() if isinstance(value, Mapping) else enumerate(value))


def _copied_deeply(value: Any, before: _Pairs, after: _Pairs, _: Callable[[Any], Any]) -> Any:
    """Return a copy that shares nothing but its names and items, and what is not to end twice."""
    memo = {id(name): name for name, _ in before}
    memo |= {id(part): part for _, part in attributes(value) if hasattr(type(part), "__del__")}
    memo |= {id(item): moved for (_, item), (_, moved) in zip(before, after, strict=True)}
    other = copy.deepcopy(value, memo)
    if other is value or _holds(other, before, after):
        return other
    try:  # it makes its items when they are asked for
        for name, moved in after:
            other[name] = moved
    finally:  # should both keep them in one place
        for (name, item), (_, moved) in zip(before, after, strict=True):
            if moved is not item and value[name] is moved:
                value[name] = item
    return other


def _with_parts_moved(value: Any, before: _Pairs, after: _Pairs, each: Callable[[Any], Any]) -> Any:
    """Return a copy of which the containers are moved in which the class keeps its items."""
    other = copy.copy(value)
    for name, part in attributes(other) if other is not value else ():
        if is_container(part):
            set_attribute(other, name, each(part))
    return other


def _holds(value: Any, before: _Pairs, after: _Pairs) -> bool:
    there = _pairs_of(value)
    return [name for name, _ in there] == [name for name, _ in after] and all(
        now is moved or (now is not item and _is_like(now, moved))
        for (_, now), (_, item), (_, moved) in zip(there, before, after, strict=True)
    )


def _is_like(now: Any, moved: Any) -> bool:
    """Whether a mapping makes an item like a moved one whenever it is asked for it."""
    if isinstance(now, torch.Tensor) and isinstance(moved, torch.Tensor):
        return (now.device, now.dtype, now.shape) == (moved.device, moved.dtype, moved.shape)
    return type(now) in (int, float, str, bool, bytes) and bool(now == moved)


def _has_fields(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _with_other_fields(value: Any, each: Callable[[Any], Any]) -> Any:
    """Return a copy of a dataclass's object with all fields moved; one that has not been set stays so."""
    there = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    after = {name: each(getattr(value, name)) for name in there}
    if all(after[name] is getattr(value, name) for name in there):
        return value
    with suppress(Exception):  # whatever a user's class raises
        other: Any = copy.copy(value)
        if other is not value:
            for name, item in after.items():
                object.__setattr__(other, name, item)
            return other
    raise _not_moved(value)


def _not_moved(value: Any) -> TypeError:
    return TypeError(
        f"a {type(value).__name__} in a batch does not take other tensors in the place of its own, so they cannot "
        "be moved to the device: let the dataset or collate_fn return a dict"
    )
