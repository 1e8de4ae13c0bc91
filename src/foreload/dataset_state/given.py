"""The parts of samples that the dataset goes on to hold, so that what a loop writes to them stays."""

from __future__ import annotations

import copy
import datetime
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np
import torch

from foreload.dataset_state.walk import PLAIN

__all__ = ["gives_its_own"]

# Which nobody can change, though a copy of one is another object.
_CONSTANT = (
    *PLAIN,
    range,
    np.generic,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    PurePath,
    UUID,
    torch.device,
)


def gives_its_own(*loads: Any) -> bool:
    """Whether two of several loads, all still held, gave one thing that a loop can change or recognise.

    >>> records = [{"text": "a"}]
    >>> gives_its_own(records[0], records[0]), gives_its_own(dict(records[0]), dict(records[0]))
    (True, False)
    >>> tensor = torch.zeros(2, 3)
    >>> gives_its_own(tensor[0], tensor[0]), gives_its_own(tensor[0].clone(), tensor[0].clone())
    (True, False)
    """
    before: set[tuple[str, int]] = set()
    seen: list[dict[int, Any]] = []  # held, for what is made when it is asked for may lie where another part was
    copied: dict[type, bool] = {}
    for load in loads:
        seen.append({})
        marks = set(_marks(load, seen[-1], copied))
        if not before.isdisjoint(marks):
            return True
        before |= marks
    return False


def _marks(value: Any, seen: dict[int, Any], copied: dict[type, bool]) -> Iterator[tuple[str, int]]:
    """Yield what tells the changeable parts of a sample from those of another: where they are."""
    if isinstance(value, _CONSTANT) or id(value) in seen:
        return
    seen[id(value)] = value
    inside: Iterable[Any] = ()
    if isinstance(value, torch.Tensor):
        yield from _address(value)
    elif isinstance(value, np.ndarray):
        if value.size and value.flags.writeable:
            yield "memory", int(value.ctypes.data)
        inside = value.flat if value.dtype == object else ()
    elif isinstance(value, (tuple, frozenset)):
        inside = value
    else:
        kind = type(value)
        if kind not in copied:  # (Copying an image, say, decodes it.)
            copied[kind] = _is_copied(value)
        if copied[kind]:
            yield "object", id(value)
            inside = _inside(value)
    for part in inside:
        yield from _marks(part, seen, copied)


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, set, deque)):
        yield from value
    elif isinstance(value, partial):
        yield from (value.args, value.keywords)
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for slot in [slots] if isinstance(slots, str) else slots:
            yield getattr(value, slot, None)


def _address(tensor: torch.Tensor) -> Iterator[tuple[str, int]]:
    try:
        if tensor.numel():
            yield "memory", tensor.data_ptr()
    except RuntimeError:  # of a layout without memory of its own
        yield "object", id(tensor)


def _is_copied(value: Any) -> bool:
    """Whether a copy would be another object, as it is not of a constant, a class or a function."""
    try:
        return copy.copy(value) is not value
    except Exception:  # of an object that has no copies
        return True
