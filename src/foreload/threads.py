"""Threads that have been told to end: waited for, and stopped when the interpreter exits."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterable
from typing import Any

__all__ = ["SIGNAL_SECONDS", "are_over", "join"]

# A signal that comes right before a wait begins, or to another thread, interrupts no wait: the longest one, after
# which Python looks for signals.
SIGNAL_SECONDS = 1.0

# Seconds to wait for threads that have been told to end, and for those that have been stopped.
_PATIENCE, _STOP_PATIENCE = 5.0, 1.0


def join(threads: Iterable[threading.Thread], *, is_late: bool = False) -> None:
    """Wait for threads that have been told to end, except for one that is stuck in a sample.

    When the interpreter exits, ``SystemExit`` is raised in such a thread: Python ends a thread that asks for
    the interpreter's lock later, and if that is in the middle of torch's C++, the process aborts. At any other
    time the thread is left alone, since what it works on may be in use elsewhere.

    Args:
        threads: all that have been told.
        is_late: a sample is known to take too long, so do not wait.
    """
    deadline = time.monotonic() + (0.0 if is_late else _PATIENCE)
    # The garbage collector may end a worker's threads from within one of them.
    others = [thread for thread in threads if thread is not threading.current_thread()]
    _told.update(dict.fromkeys(others, deadline))
    _wait(others, deadline)
    for thread in others:
        if not thread.is_alive():
            _told.pop(thread, None)


def are_over() -> bool:
    """Whether the interpreter exits, and has ended threads: nothing would end those that are started now."""
    return _over


_over = False

# Until when each is waited for.
_told: weakref.WeakKeyDictionary[threading.Thread, float] = weakref.WeakKeyDictionary()


def _wait(threads: Iterable[threading.Thread], deadline: float) -> None:
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _quiet(hook: Callable[[Any], object], threads: Container[int | None]) -> Callable[[Any], object]:
    """Return a hook that passes over what the threads with these numbers raise."""
    # Python clears modules at its very end, and objects that it frees after that may raise too.
    present = threading.get_ident
    return lambda raised: None if present() in threads else hook(raised)


def _stop() -> None:
    """Stop all threads that have been told to end and have not, which other threads may be waiting for."""
    global _over
    _over = True
    told = dict(_told)
    for thread, deadline in told.items():
        _wait([thread], deadline)
    # What an exception breaks off may raise others, of which nobody needs to know any more.
    numbers = {thread.ident for thread in told}
    threading.excepthook = _quiet(threading.excepthook, numbers)
    sys.unraisablehook = _quiet(sys.unraisablehook, numbers)
    for thread in told:
        if thread.is_alive() and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    _wait(told, time.monotonic() + _STOP_PATIENCE)


# Of the finalizers that weakref runs at exit, this is after those that tell threads to end, as it is older.
weakref.finalize(_told, _stop)
