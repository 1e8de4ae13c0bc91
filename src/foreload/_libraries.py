"""Private parts of Python, NumPy, pandas and Accelerate that foreload reads, in one place for when they change."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

import numpy as np

__all__ = [
    "PANDAS_PARTS",
    "WARNINGS_CONTEXT",
    "allow_child_processes",
    "bit_generator",
    "environment_bytes",
    "global_random",
    "global_random_state",
    "is_accelerate",
    "leave_fork_lock",
    "recorded_warnings",
    "registered_reducers",
    "tracker_descriptor",
    "warning_filters",
    "warning_writer",
]

# The attributes in which a table of pandas has the manager of its columns, and one of its arrays its numbers.
PANDAS_PARTS = "_mgr", "_ndarray"
# The context variable that has the filters of a ``warnings.catch_warnings`` block where
# sys.flags.context_aware_warnings is set, as in builds of Python 3.14 without the GIL; None: there is none.
WARNINGS_CONTEXT: ContextVar[Any] | None = getattr(warnings, "_warnings_context", None)
# What is registered to be sent to processes in a way of its own.
registered_reducers: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]


def global_random() -> random.Random:
    """Return the generator that the functions of Python's module ``random`` draw from."""
    return random._inst


def global_random_state() -> np.random.RandomState:
    """Return the generator that the functions of ``np.random`` draw from."""
    return np.random.mtrand._rand


def bit_generator(state: np.random.RandomState) -> Any:
    """Return the source of random bits that a state of NumPy draws from, which NumPy lets a program replace."""
    return state._bit_generator


def leave_fork_lock() -> None:
    """Free the lock of NumPy's global generator, which another thread may have held when this process forked."""
    np.random.get_bit_generator().lock._at_fork_reinit()  # type: ignore[attr-defined]


def environment_bytes() -> Mapping[Any, Any]:
    """Return the environment's variables as they are kept: to decode all of them takes longer."""
    kept: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
    return kept


def warning_filters() -> list[Any]:
    """Return the filters of warnings in the present context."""
    find = getattr(warnings, "_get_filters", None)
    filters: list[Any] = warnings.filters if find is None else find()  # type: ignore[assignment]
    return filters


def recorded_warnings() -> list[Any] | None:
    """Return the list of ``catch_warnings(record=True)`` in the present context; None if it is elsewhere."""
    find = getattr(warnings, "_get_context", None)
    recorded: list[Any] | None = None if find is None else find().log
    return recorded


def warning_writer() -> Any:
    """Return what Python calls with each warning; None where this version has no such function."""
    return getattr(warnings, "_showwarnmsg_impl", None)


def tracker_descriptor() -> int | None:
    """Return the descriptor by which this process tells a tracker what it makes; None if it has none."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    return getattr(tracker, "_fd", None) or None


def allow_child_processes() -> None:
    """Let this process start others by ``multiprocessing`` though it is a daemonic one."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


def is_accelerate(module: ModuleType) -> bool:
    """Whether a module is the one of Accelerate that builds loaders, as far as foreload knows it."""
    return hasattr(getattr(module, "DataLoaderDispatcher", None), "_fetch_batches")
