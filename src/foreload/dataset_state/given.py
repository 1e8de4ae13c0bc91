"""The parts of samples that the dataset goes on to hold, so that what a loop writes to them stays."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from foreload.dataset_state.walk import PLAIN

__all__ = ["gives_its_own"]


def gives_its_own(first: Any, second: Any) -> bool:
    """Whether two loads of one sample, both still held, gave something that a loop can change or recognise.

    >>> records = [{"text": "a"}]
    >>> gives_its_own(records[0], records[0]), gives_its_own(dict(records[0]), dict(records[0]))
    (True, False)
    >>> tensor = torch.zeros(2, 3)
    >>> gives_its_own(tensor[0], tensor[0]), gives_its_own(tensor[0].clone(), tensor[0].clone())
    (True, False)
    """
    return not set(_marks(first)).isdisjoint(_marks(second))


def _marks(value: Any) -> Iterator[tuple[str, int]]:
    """Yield what tells the changeable parts of a sample from those of another: where they are."""
    if isinstance(value, PLAIN):
        return
    if isinstance(value, torch.Tensor):
        yield from _address(value)
    elif isinstance(value, np.ndarray):
        if value.size and value.flags.writeable:
            yield "memory", int(value.ctypes.data)
    elif isinstance(value, (tuple, frozenset)):
        for inner in value:
            yield from _marks(inner)
    elif _is_copied(value):
        yield "object", id(value)
        inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, set)) else ()
        for inner in inside:
            yield from _marks(inner)


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
