"""A copy of an iterable dataset for each thread that reads it."""

from __future__ import annotations

import copy
from typing import Any

import torch

__all__ = ["own_copy"]


# An attribute of a dataset that holds more objects than this is shared between threads, not copied.
_MAX_OBJECTS = 20_000


# Arrays, tensors and tables of at least this size are shared too.
_SHARED_BYTES = 1 << 20


def own_copy(dataset: Any) -> Any:
    """Copy a dataset so that what a thread does to it (counters, generators, stages) stays its own.

    Large attributes, attributes that worker processes would share too (tensors in shared memory), and attributes
    that cannot be copied (locks, files, queues) are shared.

    >>> class Numbers:
    ...     def __init__(self):
    ...         self.stage = {"epoch": 0}
    >>> numbers = Numbers()
    >>> own_copy(numbers).stage["epoch"] = 1
    >>> numbers.stage
    {'epoch': 0}
    """
    own = copy.copy(dataset)
    if not hasattr(own, "__dict__"):
        return own
    # A __setstate__ may have kept the very dict that __getstate__ returned.
    known = own.__dict__ = dict(own.__dict__)
    copies: dict[int, Any] = {id(dataset): own}
    for name, value in known.items():
        shared = _shared(value, set(copies))
        if shared is None:
            known[name] = copy.copy(value) if type(value) in (list, dict, set) else value
            continue
        trial = {**copies, **shared}
        try:
            known[name] = copy.deepcopy(value, trial)
        except Exception:  # a class may raise anything if it cannot be copied; then it is shared
            continue
        copies = trial
    return own


def _shared(value: Any, seen: set[int]) -> dict[int, Any] | None:
    """Return the parts of a value to share, by id; None if it has too many parts that are not in ``seen``."""
    shared: dict[int, Any] = {}
    limit = len(seen) + _MAX_OBJECTS
    left = [value]
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if _is_shared(part):
            shared[id(part)] = part
            continue
        inner: Any = part if isinstance(part, (list, tuple, set, frozenset)) else ()
        if isinstance(part, dict):
            inner = part.values()
        if len(seen) + len(left) + len(inner) > limit:
            return None
        left += inner
        if not isinstance(part, type):
            left += getattr(part, "__dict__", {}).values()
    return shared


def _is_shared(part: Any) -> bool:
    if isinstance(part, torch.Tensor) and part.is_shared():  # type: ignore[no-untyped-call]
        return True
    try:
        return int(part.nbytes) >= _SHARED_BYTES
    except Exception:  # no such attribute, or one with another meaning
        return False
