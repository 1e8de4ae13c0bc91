"""Batches with their tensors moved, as to a device."""

from __future__ import annotations

import copy
from collections import UserDict, deque
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from foreload.nested.containers import is_container, rebuilt

__all__ = ["move"]


def move(batch: Any, copy_one: Callable[[Any], Any]) -> Any:
    """Return a batch with ``copy_one`` applied to its tensors, and to objects that have ``.to``.

    Tuples, named tuples, lists, mappings and dataclasses keep their type. A tensor that occurs twice is copied
    once. Arrays, sets and the like that may be written to are copied as they are now; anything else is the same.

    Raises:
        TypeError: a mapping of another kind, with tensors, does not take others in their place.

    >>> move({"x": [torch.zeros(2)], "name": "cat"}, lambda tensor: tensor + 1)
    {'x': [tensor([1., 1.])], 'name': 'cat'}
    """
    return _move(batch, copy_one, {})


def _move(value: Any, copy_one: Callable[[Any], Any], done: dict[int, Any]) -> Any:
    if isinstance(value, (type, str, bytes, int, float, complex)) or value is None:
        return value
    if id(value) in done:
        return done[id(value)][0]

    def begun(moved: Any) -> None:
        # The original is kept too: some mappings make a tensor when it is asked for, and the next one would
        # get its id.
        done[id(value)] = moved, value

    if isinstance(value, torch.Tensor) or (
        callable(getattr(value, "to", None)) and not isinstance(value, UserDict)
    ):
        # The `.to` of many objects changes the object, and the source is still needed.
        begun(copy_one(value if isinstance(value, torch.Tensor) else copy.copy(value)))
        return done[id(value)][0]
    if isinstance(value, np.ndarray):
        return value.copy(order="K") if value.flags.writeable else value
    if isinstance(value, (set, deque, bytearray)) and is_container(value):
        return rebuilt(value, lambda item: item, begun)
    if is_container(value):
        return rebuilt(value, lambda item: _move(item, copy_one, done), begun, keys=False)
    if isinstance(value, Mapping):
        return _mapping(value, [(name, _move(item, copy_one, done)) for name, item in value.items()])
    return value


def _mapping(value: Any, items: list[tuple[Any, Any]]) -> Any:
    """Return a mapping of a class that is no dict with other items."""
    is_mutable = isinstance(value, MutableMapping)
    if all(moved is item for (_, moved), (_, item) in zip(items, value.items(), strict=True)):
        with suppress(Exception):  # whatever a user's class raises that cannot be copied
            return copy.copy(value) if is_mutable else value
        return value
    for make in (_set_in_copy, _of_pairs, _of_dict) if is_mutable else (_of_dict, _of_pairs):
        with suppress(Exception):  # of a user's class, too
            other = make(value, items)
            if [(name, id(item)) for name, item in other.items()] == [(name, id(item)) for name, item in items]:
                return other
    if not is_mutable:
        return dict(items)
    raise TypeError(
        f"a {type(value).__name__} in a batch does not take other tensors in the place of its own, so they cannot "
        "be moved to the device: let the dataset or collate_fn return a dict"
    )


def _set_in_copy(value: Any, items: list[tuple[Any, Any]]) -> Any:
    other = copy.copy(value)
    for name, item in items:
        other[name] = item
    return other


def _of_pairs(value: Any, items: list[tuple[Any, Any]]) -> Any:
    return type(value)(items)


def _of_dict(value: Any, items: list[tuple[Any, Any]]) -> Any:
    return type(value)(dict(items))
