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
    """Return a copy with ``changed(item)`` for each item, that ``copy.copy`` makes and whose items are set.

    Returns:
        The same object if it is a mapping or list that copies as itself; None if what is set cannot be read again.
    """
    try:
        pairs = list(value.items() if isinstance(value, Mapping) else enumerate(value))
    except Exception:  # whatever a user's class raises
        return None
    items = [(name, item, changed(item)) for name, item in pairs]
    makers = (
        (_set_in_copy, _of_pairs, _of_dict) if isinstance(value, (MutableMapping, list, deque)) else (_of_dict,)
    )
    for make in makers:
        with suppress(Exception):  # as above
            other = make(value, items)
            if other is value or _has(other, items):
                return other
    return None


def _has(other: Any, items: list[tuple[Any, Any, Any]]) -> bool:
    there = list(other.items()) if isinstance(other, Mapping) else list(enumerate(other))
    if [name for name, _ in there] != [name for name, _, _ in items]:
        return False
    return all(
        after is item or now is after or _is_like(now, after)
        for (_, now), (_, item, after) in zip(there, items, strict=True)
    )


def _is_like(now: Any, after: Any) -> bool:
    """Whether a mapping that makes its tensors when they are asked for makes them of the new ones."""
    return isinstance(now, torch.Tensor) and now.device == after.device and torch.equal(now, after)


def _set_in_copy(value: Any, items: list[tuple[Any, Any, Any]]) -> Any:
    other = copy.copy(value)
    if other is not value:
        for name, before, item in items:
            if item is not before:
                other[name] = item
    return other


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
