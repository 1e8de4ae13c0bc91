"""File descriptors for and of worker processes."""

from __future__ import annotations

import multiprocessing.reduction
import os
from contextlib import suppress
from multiprocessing.context import get_spawning_popen
from typing import Any

__all__ = ["Descriptor", "open_process"]


class Descriptor:
    """A file descriptor for a worker: the same number after a fork, a duplicate otherwise."""

    def __init__(self, file: int) -> None:
        self._file = file

    def detach(self) -> int:
        return self._file

    def __reduce__(self) -> Any:
        if get_spawning_popen() is None:
            raise TypeError("a descriptor can only be sent to a process while it is started")
        return _received, (multiprocessing.reduction.DupFd(self._file),)


def _received(descriptor: Any) -> Any:
    return descriptor


def open_process(pid: int) -> int | None:
    """Return a descriptor that can be read from once the process has ended; None if the system has no such thing.

    The sentinel of ``multiprocessing`` is a pipe, which also stays open in processes that the worker forks.
    """
    with suppress(AttributeError, OSError):
        return os.pidfd_open(pid)
    return None
