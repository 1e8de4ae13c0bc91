"""Samples compared down to their types, and epochs in two parts, for every kind of worker."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

HOW: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
    "fork server": {"num_workers": 2, "workers": "processes", "multiprocessing_context": "forkserver"},
    "auto": {},
}


def same(a: Any, b: Any) -> bool:
    """Equal, down to types and dtypes; NaN is NaN."""
    if isinstance(a, torch.Tensor):
        alike = isinstance(b, torch.Tensor) and a.dtype is b.dtype and a.shape == b.shape
        return alike and bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def split_epoch(make: Callable[[], Any], batches: int) -> tuple[Any, Any, Any]:
    """Return what a loader gives in a row; and the same in two parts, by two loaders."""
    loader = make()
    epoch = iter(loader)
    first = [next(epoch) for _ in range(batches)]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    rest = list(epoch)
    loader.close()
    other = make()
    other.load_state_dict(state)
    continued = list(other)
    other.close()
    return first, rest, continued
