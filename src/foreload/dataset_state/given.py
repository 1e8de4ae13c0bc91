"""The parts of samples that the dataset goes on to hold, so that what a loop writes to them stays."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from foreload.nested.constants import is_constant
from foreload.nested.containers import attributes

__all__ = ["gives_its_own"]


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
    for load in loads:
        seen.append({})
        marks = set(_marks(load, seen[-1]))
        if not before.isdisjoint(marks):
            return True
        before |= marks
    return False


def _marks(value: Any, seen: dict[int, Any]) -> Iterator[tuple[str, int]]:
    """Yield what tells the changeable parts of a sample from those of another: where they are."""
    if value is None or id(value) in seen or is_constant(value):
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
        yield "object", id(value)
        inside = _inside(value)
    for part in inside:
        yield from _marks(part, seen)


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, set, deque)):
        yield from value
    elif isinstance(value, partial):
        yield from (value.args, value.keywords)
    yield from (part for _, part in attributes(value))


def _address(tensor: torch.Tensor) -> Iterator[tuple[str, int]]:
    try:
        if tensor.numel():
            yield "memory", tensor.data_ptr()
    except RuntimeError:  # of a layout without memory of its own
        yield "object", id(tensor)
