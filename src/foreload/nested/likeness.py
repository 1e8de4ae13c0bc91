"""Comparison of an object with what has come of it elsewhere, by classes, shapes and attributes."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch

from foreload.nested.containers import attributes, is_kept_whole

__all__ = ["is_like"]

_ATOMS = (type(None), bool, int, float, complex, str, bytes, np.generic)


def is_like(value: Any, other: Any) -> bool:
    """Whether an object has all that another one has: its class, items and attributes, and what occurs twice.

    Numbers and the contents of tensors and arrays are not compared, nor is what classes written in C hide, nor are
    the members of sets.

    >>> from collections import Counter
    >>> value, other = Counter("a"), Counter("b")
    >>> is_like(value, Counter("a")), is_like([value, value], [value, Counter("a")])
    (True, False)
    >>> value.documents = 1
    >>> is_like(value, Counter("a"))
    False
    """
    partners: dict[int, tuple[Any, Any]] = {}  # with the originals: no other object must get the identity of one
    waiting = [(value, other)]
    while waiting:
        first, second = waiting.pop()
        if type(first) is not type(second):
            return False
        if isinstance(first, _ATOMS):
            continue
        if (known := partners.get(id(first))) is not None:
            # (Of two tuples that hold the same, one may be left.)
            if known[0] is not second and not isinstance(first, tuple):
                return False
            continue
        partners[id(first)] = second, first
        of_first, of_second = _form(first), _form(second)
        if of_first != of_second:
            return False
        ours, theirs = _parts(first), _parts(second)
        if len(ours) != len(theirs):
            return False
        waiting += zip(ours, theirs, strict=True)
        if is_kept_whole(type(first)):
            continue
        own, others = dict(attributes(first)), dict(attributes(second))
        if own.keys() != others.keys():
            return False
        waiting += [(own[name], others[name]) for name in own]
    return True


def _form(value: Any) -> Any:
    """Return what two objects of one class must have in common beside their parts."""
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided and not value.is_nested else None
        shape = None if value.is_nested else value.shape
        return value.dtype, value.layout, value.device, value.requires_grad, shape, strides
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape
    if isinstance(value, (set, frozenset)):
        return len(value)
    return value.maxlen if isinstance(value, deque) else None


def _parts(value: Any) -> list[Any]:
    kinds: tuple[Any, ...] = (list, tuple, deque)
    for kind in kinds:
        if isinstance(value, kind):
            return list(kind.__iter__(value))
    if isinstance(value, dict):
        return [part for item in dict.items(value) for part in item]
    if isinstance(value, np.ndarray) and value.dtype == object:
        return list(value.flat)
    return []
