"""Code that worker threads may not share: what loads samples and is the user's own.

A dataset is written for one caller at a time, since torch gives each worker a copy. A file that is opened when it
is first needed, a buffer on ``self`` or a database connection give wrong samples, or exceptions, if threads share
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from foreload._torch import wrapper_kind
from foreload.batch.collate import added_functions
from foreload.batch.spec import BatchSpec
from foreload.checks import held, optional, package_of
from foreload.protocol import UserCode

__all__ = ["find_user_code", "is_declared"]

# Types whose values never change, and types of containers that nothing but the loop changes.
_VALUES = (type(None), int, float, complex, bool, str, bytes, range, slice, np.dtype, torch.dtype, torch.device)
_ARRAYS = (torch.Tensor, np.ndarray, np.memmap)
_CONTAINERS = (list, tuple, dict, set, frozenset)

# Containers with more values than this are not looked through.
_MOST_VALUES = 200_000

# Packages whose functions and classes may be called by several threads at once.
_KNOWN_PACKAGES = frozenset({"_operator", "builtins", "foreload", "math", "numpy", "operator", "torch"})


def find_user_code(dataset: Any, spec: BatchSpec, *, is_native: bool = False) -> str | None:
    """Return the name of code that loads samples and may not allow for several threads; None if there is none.

    Args:
        dataset: the user's dataset.
        spec: how its batches are made.
        is_native: whether native code makes them, so that nothing of the dataset's class is called.

    >>> spec = BatchSpec(torch.utils.data.default_collate)
    >>> find_user_code([1, 2, 3], spec) is None
    True
    >>> class Squares:
    ...     __module__ = "__main__"
    ...     def __getitem__(self, index): return index * index
    >>> find_user_code(Squares(), spec)
    'Squares'
    >>> Squares.thread_safe = True
    >>> find_user_code(Squares(), spec) is None
    True
    """
    if is_declared(dataset):
        return None  # its author's word counts for all that belongs to this loader
    parts: Iterable[Any] = [dataset, *added_functions()]
    if is_native:
        parts = dataset.user_code() if isinstance(dataset, UserCode) else ()
    return _first_unknown([*parts, spec.transform, spec.collate_fn])


def is_declared(part: Any) -> bool:
    """Whether the author of an object says that threads may share it.

    What it passes on from another object by ``__getattr__`` says nothing about its own code.
    """
    return held(part, "thread_safe") is True


def _first_unknown(parts: Iterable[Any]) -> str | None:
    left = [_MOST_VALUES]
    return next((name for part in parts if (name := _unknown(part, left)) is not None), None)


def _unknown(part: Any, left: list[int]) -> str | None:
    """Return the name of the first thing in ``part`` that is not known; ``left`` values may still be looked at."""
    kind: Any = type(part)
    if kind in _VALUES or kind in _ARRAYS or isinstance(part, (np.generic, np.dtype)):
        return "an array of objects" if isinstance(part, np.ndarray) and part.dtype.hasobject else None
    if is_declared(part):
        return None
    inner = _inner(part, kind)
    if inner is not None:
        for value in inner:
            left[0] -= 1
            if left[0] < 0:
                return f"a {kind.__name__} with more than {_MOST_VALUES:,} values"
            name = _unknown(value, left)
            if name is not None:
                return name
        return None
    if _is_known_callable(part, kind):
        return None
    return str(optional(part, "__qualname__") or kind.__qualname__).replace("<locals>.", "")


def _inner(part: Any, kind: Any) -> Any:
    """Return what a known container or dataset holds; None if it is not a known one."""
    if kind in _CONTAINERS:
        values = part.values() if kind is dict else part
        kinds = set(map(type, values))
        return () if kinds <= set(_VALUES) | {torch.Tensor} else values
    wrapper = wrapper_kind(part)
    if wrapper is TensorDataset:
        return ()
    if wrapper is Subset:
        return (part.dataset, part.indices)
    if wrapper is ConcatDataset:
        return iter(part.datasets)
    if wrapper is StackDataset:
        return iter(part.datasets.values() if isinstance(part.datasets, dict) else part.datasets)
    if kind is MethodType:
        return (part.__self__, part.__func__)
    if package_of(kind) == "foreload":
        return _user_code(part)
    return None


def _user_code(part: Any) -> Iterator[Any]:
    if isinstance(part, UserCode):
        yield from part.user_code()


def _is_known_callable(part: Any, kind: Any) -> bool:
    if kind is BuiltinFunctionType:
        owner = part.__self__
        if owner is None:  # a static method; torch's functions are those of a class that nobody knows by name
            return part is getattr(torch, part.__name__, None)
        name = owner.__name__.partition(".")[0] if isinstance(owner, ModuleType) else package_of(owner)
        return name in _KNOWN_PACKAGES
    if kind is FunctionType:
        # (By its own name for it: functools.wraps() gives a function of the user's the name of another module.)
        package = str(part.__globals__.get("__name__")).partition(".")[0]
        return package in _KNOWN_PACKAGES and part.__closure__ is None
    return isinstance(part, type) and package_of(part) in _KNOWN_PACKAGES
