"""Objects of a dataset or sampler through which its copies would take part in what it does."""

from __future__ import annotations

import mmap
import sys
import threading
from itertools import islice
from typing import Any

import numpy as np
import torch

from foreload.dataset_state.walk import MOST_VALUES, walk

__all__ = ["find_shared", "find_thread", "why_not_measured"]

# Packages whose objects are connections to other processes or threads; those of the part of multiprocessing that
# only hold memory, or how processes are started, are none.
_PACKAGES = (
    "multiprocessing",
    "_multiprocessing",
    "queue",
    "_queue",
    "asyncio",
    "selectors",
    "ray",
    "redis",
    "zmq",
)
_MEMORY = ("multiprocessing.sharedctypes", "multiprocessing.heap", "multiprocessing.shared_memory")
_HARMLESS = (*_MEMORY, "multiprocessing.context", "multiprocessing.reduction")


def find_shared(part: Any, most: int = MOST_VALUES) -> str | None:
    """Return the name of something that copies of a dataset or sampler would share with it; None if there is none.

    What one of them takes from a queue, the others do not get; what a thread of the dataset's does for it, it does
    not do for copies. Values that processes share are memory, and something else.

    Args:
        part: a dataset or sampler, or what is applied to samples.
        most: the most values that are looked at.
    """
    return next((name for name, value in walk(part, _is_value, most) if _is_shared(value)), None)


def _is_value(value: Any) -> bool:
    """Whether it is a value of multiprocessing's, which has a lock of its own."""
    module = sys.modules.get("multiprocessing.sharedctypes")
    return module is not None and isinstance(value, module.SynchronizedBase)


def _is_shared(value: Any) -> bool:
    if isinstance(value, type):
        return False
    return _is_running(value) or any(
        kind.__module__.partition(".")[0] in _PACKAGES and kind.__module__ not in _HARMLESS
        for kind in type(value).__mro__
        if isinstance(kind.__module__, str)
    )


def find_thread(part: Any, most: int = MOST_VALUES) -> str | None:
    """Return the name of a running thread that a dataset or sampler holds, which forks of this process lack."""
    return next((name for name, value in walk(part, None, most) if _is_running(value)), None)


def _is_running(value: Any) -> bool:
    if isinstance(value, (set, frozenset)):  # which are not looked into, but pools keep their threads in one
        return any(map(_is_running, islice((each for each in value if isinstance(each, threading.Thread)), 1)))
    return isinstance(value, threading.Thread) and value.is_alive()


def why_not_measured(part: Any, shared: list[range]) -> str | None:
    """Return why loading in a fork would be seen outside it; None if it would not.

    Args:
        part: a dataset, or what is applied to its samples.
        shared: the addresses that the fork shares with other processes.
    """
    if (name := find_shared(part)) is not None:
        return f"the dataset holds {name!r}, of which all copies would take"
    if (name := _find_memory(part, shared)) is not None:
        return f"the dataset holds {name!r}, which lies in memory of several processes"
    return None


def _find_memory(part: Any, shared: list[range]) -> str | None:
    """Return the name of something that lies at these addresses."""
    if not shared:
        return None
    return next((name for name, value in walk(part) if any(_address(value) in each for each in shared)), None)


def _address(value: Any) -> int:
    try:
        if isinstance(value, torch.Tensor):
            return value.data_ptr()
        if isinstance(value, mmap.mmap):
            value = np.frombuffer(value, np.uint8)
        return int(value.ctypes.data) if isinstance(value, np.ndarray) and value.flags.writeable else 0
    except Exception:  # of a device, or closed
        return 0
