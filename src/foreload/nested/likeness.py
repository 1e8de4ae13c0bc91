"""Comparison of an object with its copy in another process, by classes, shapes and attributes."""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

import numpy as np
import torch

from foreload._torch import coo_parts
from foreload.nested.constants import is_constant
from foreload.nested.containers import attributes, is_kept_whole
from foreload.nested.tensors import bytes_of

__all__ = ["is_like"]

_ATOMS = {type(None), bool, int, float, complex, str, bytes}

_CONTAINERS = (list, tuple, deque, dict, set, frozenset)

# Whether pixels lie in memory of something else, as of the array that an image was made of.
_OF_NO_MATTER = {("PIL.Image", "_readonly"), ("PIL.Image", "readonly")}


def is_like(value: Any, other: Any) -> bool:
    """Whether an object has all that another one has: its class, items and attributes, and what occurs twice.

    What classes written in C hide is compared as far as pickle finds it; members of sets are not.

    >>> from collections import Counter
    >>> value, other = Counter("a"), Counter("b")
    >>> is_like(value, Counter("a")), is_like(value, other), is_like([value, value], [value, Counter("a")])
    (True, False, False)
    >>> value.documents = 1
    >>> is_like(value, Counter("a"))
    False
    """
    partners: dict[int, tuple[Any, Any]] = {}  # with the originals: no other object must get the identity of one
    taken: dict[int, Any] = {}
    waiting = [(value, other)]
    while waiting:
        first, second = waiting.pop()
        if type(first) is not type(second):
            return False
        if type(first) in _ATOMS:
            if first != second and (first == first or second == second):  # but two NaNs
                return False
            continue
        if (known := partners.get(id(first))) is not None:
            # (Of two tuples that hold the same, one may be left.)
            if known[0] is not second and not isinstance(first, tuple):
                return False
            continue
        partners[id(first)] = second, first
        if first is second:
            continue
        of_first, of_second = _form(first), _form(second)
        if of_first != of_second or not _has_contents_of(first, second):
            return False
        ours, theirs = _parts(first), _parts(second)
        if len(ours) != len(theirs):
            return False
        waiting += zip(ours, theirs, strict=True)
        own, others = ({}, {}) if is_kept_whole(type(first)) else map(dict, map(attributes, (first, second)))
        if own.keys() != others.keys():
            return False
        is_seen = (own or ours) and not isinstance(first, tuple)
        if is_seen and taken.setdefault(id(second), first) is not first:
            return False  # two have become one
        waiting += [
            (own[name], others[name]) for name in own if (type(first).__module__, name) not in _OF_NO_MATTER
        ]
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


def _has_contents_of(value: Any, other: Any) -> bool:
    """Whether two objects of one form have the same in them, as far as that can be told."""
    try:
        if isinstance(value, torch.Tensor):
            if value.layout is torch.sparse_coo:
                return all(map(torch.equal, coo_parts(value), coo_parts(other)))
            if value.layout is not torch.strided or value.is_nested or value.is_quantized:
                return _are_pickled_alike(value, other)
            return value.device.type == "meta" or np.array_equal(_bytes(value), _bytes(other))
        if isinstance(value, (np.ndarray, np.generic)):
            return value.dtype.hasobject or value.tobytes() == other.tobytes()
        if isinstance(value, (set, frozenset)):
            return not set(map(type, value)) <= _ATOMS or bool(value == other)
        if isinstance(value, bytearray) or is_constant(value):
            return bool(value == other)
        is_hidden = not isinstance(value, _CONTAINERS) and all(map(_is_hidden, (value, other)))
        return not is_hidden or _are_pickled_alike(value, other)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # of odd dtypes, or of a user's class
        return True


def _is_hidden(value: Any) -> bool:
    """Whether there is nothing of an object that can be compared but what pickle makes of it."""
    return is_kept_whole(type(value)) or next(attributes(value), None) is None


def _are_pickled_alike(value: Any, other: Any) -> bool:
    """Whether pickle makes the same of two objects, of which the other one has been pickled before."""
    try:
        return pickle.dumps(pickle.loads(pickle.dumps(value))) == pickle.dumps(other)
    except Exception:  # of a user's class
        return False


def _bytes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return bytes_of(tensor.detach().contiguous())
