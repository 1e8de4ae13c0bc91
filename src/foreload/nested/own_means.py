"""Copies, with other items, of containers whose classes say how they are copied."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

import torch

__all__ = ["copied_by_itself", "has_fields", "with_other_fields"]


def copied_by_itself(value: Any, changed: Callable[[Any], Any]) -> Any:
    """Return a copy with ``changed(item)`` for each item, made as its class says or by its constructor.

    Returns:
        The same object if it copies as itself; None if what is in the copy cannot be read again.
    """
    if hasattr(type(value), "__del__"):  # the end of a copy may close what the original holds
        return None
    items = [(name, item, changed(item)) for name, item in _pairs_of(value)]
    makers = (
        (_copied_deeply, _of_pairs, _of_dict) if isinstance(value, (MutableMapping, list, deque)) else (_of_dict,)
    )
    for make in makers:
        with suppress(Exception):  # whatever a user's class raises
            other = make(value, items)
            if other is value or _has(other, items):
                return other
    return None


def _pairs_of(value: Any) -> list[tuple[Any, Any]]:
    """Return the items of a mapping or list with their names or positions; none if they are not to be had."""
    try:
        return list(value.items() if isinstance(value, Mapping) else enumerate(value))
    except Exception:  # as above
        return []


def _has(other: Any, items: list[tuple[Any, Any, Any]]) -> bool:
    there = _pairs_of(other)
    if [name for name, _ in there] != [name for name, _, _ in items]:
        return False
    return all(
        after is item or now is after or _is_like(now, after)
        for (_, now), (_, item, after) in zip(there, items, strict=True)
    )


def _is_like(now: Any, after: Any) -> bool:
    """Whether a mapping that makes its tensors when they are asked for makes them of the new ones."""
    if not (isinstance(now, torch.Tensor) and isinstance(after, torch.Tensor)):
        return False
    return (now.device, now.dtype, now.layout, now.shape) == (after.device, after.dtype, after.layout, after.shape)


def _copied_deeply(value: Any, items: list[tuple[Any, Any, Any]]) -> Any:
    """Return a copy that shares nothing but its keys and items: what a class keeps them in is copied too."""
    own: Any = getattr(type(value), "__copy__", None)
    if own is not None and own(value) is value:
        return value
    memo = {id(name): name for name, _, _ in items} | {id(before): after for _, before, after in items}
    return copy.deepcopy(value, memo)


def _of_pairs(value: Any, items: list[tuple[Any, Any, Any]]) -> Any:
    return type(value)([(name, item) for name, _, item in items])


def _of_dict(value: Any, items: list[tuple[Any, Any, Any]]) -> Any:
    return type(value)({name: item for name, _, item in items})


def has_fields(value: Any) -> bool:
    """Whether a value is an object of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def with_other_fields(value: Any, changed: Callable[[Any], Any]) -> Any:
    """Return a copy of a dataclass's object with all fields changed; one that has not been set stays so."""
    other: Any = copy.copy(value)
    if other is not value:
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                object.__setattr__(other, field.name, changed(getattr(value, field.name)))
    return other
