"""A copy of an iterable dataset for each thread that reads it."""

from __future__ import annotations

import copy
from typing import Any

import torch

__all__ = ["own_copy"]


# Of a dataset's attribute: with more objects in it than this, it is shared and not copied for each thread.
_MOST_OBJECTS = 20_000


# Arrays, tensors and tables from this size on are shared.
_LARGE = 1 << 20


def own_copy(dataset: Any) -> Any:
    """Copy a dataset so that what a thread does to it (counters, generators, stages) stays its own.

    What is large, what worker processes would share too (tensors in shared memory), and what cannot be copied
    (locks, files, queues) is shared.

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
    # A __setstate__ may have taken over the very dict that __getstate__ gave.
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
        except Exception:  # whatever a class says that is not made for it; it is shared then
            continue
        copies = trial
    return own


def _shared(value: Any, seen: set[int]) -> dict[int, Any] | None:
    """Find what is to be shared of a value, by id; None where there is too much in it that was not seen before."""
    shared: dict[int, Any] = {}
    most = len(seen) + _MOST_OBJECTS
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
        if len(seen) + len(left) + len(inner) > most:
            return None
        left += inner
        if not isinstance(part, type):
            left += getattr(part, "__dict__", {}).values()
    return shared


def _is_shared(part: Any) -> bool:
    if isinstance(part, torch.Tensor) and part.is_shared():  # type: ignore[no-untyped-call]
        return True
    try:
        return int(part.nbytes) >= _LARGE
    except Exception:  # no such attribute, or one that means something else
        return False
