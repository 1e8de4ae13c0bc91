"""Loops over one epoch in several threads, and the end of daemon threads' loops when the interpreter exits.

While the interpreter exits, a daemon thread that computes with torch aborts the process: Python ends the thread as
soon as it asks for the interpreter's lock, in the middle of C++. So such threads are ended here, before that.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from contextlib import suppress
from typing import Protocol

__all__ = ["Turn"]

# Seconds that the exit of the interpreter waits for threads that are in a loader, as for workers; and for threads
# that are elsewhere in their loop over one.
_INSIDE_SECONDS, _OUTSIDE_SECONDS = 5.0, 1.0


class _Interpreter:
    """The state of the interpreter that all turns share.

    Attributes:
        exiting: the thread in which the interpreter exits.
        turns: all turns.
        loops: the threads that have begun epochs.
    """

    def __init__(self) -> None:
        self.exiting: int | None = None
        self.turns: weakref.WeakSet[Turn] = weakref.WeakSet()
        self.loops: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self.lock = threading.RLock()

    def exit(self) -> None:
        self.exiting = threading.get_ident()
        deadline = time.monotonic() + _INSIDE_SECONDS
        with self.lock:
            turns, loops = list(self.turns), set(self.loops)
        for turn in turns:
            turn.wake()
        for turn in turns:
            if turn.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                turn.lock.release()
        takers = {turn.thread for turn in turns}
        deadline = time.monotonic() + _OUTSIDE_SECONDS
        for thread in threading.enumerate():
            if thread.ident != self.exiting and (thread in loops or thread.ident in takers):
                with suppress(AssertionError):  # it was not started by Python, which then cannot wait for it
                    thread.join(max(0.0, deadline - time.monotonic()))

    def forked(self) -> None:
        # Threads of the parent, which do not exist here, may have held them.
        self.lock = threading.RLock()
        for turn in list(self.turns):
            turn.lock = threading.RLock()


_interpreter = _Interpreter()
# So that this comes before it: the exit also ends pools, which are better ended without a loop over them.
weakref.finalize(_interpreter, int)
atexit.register(_interpreter.exit)
os.register_at_fork(after_in_child=_interpreter.forked)


class _Owner(Protocol):
    def wake(self) -> None: ...


class Turn:
    """A lock that a thread takes to be alone in a loader, or in an epoch.

    Args:
        owner: its ``wake()`` lets a thread that has the lock, and waits for a batch, :meth:`check` whether to go
            on.

    Attributes:
        lock: the lock; a thread that has it may take it again.
        thread: the identity of the thread that had it last.

    >>> turn = Turn()
    >>> with turn.lock: turn.begin()
    """

    __slots__ = ("__weakref__", "_owner", "lock", "thread")

    def __init__(self, owner: _Owner | None = None) -> None:
        self.lock = threading.RLock()
        self.thread = 0
        self._owner = None if owner is None else weakref.ref(owner)
        with _interpreter.lock:
            _interpreter.turns.add(self)

    def wake(self) -> None:
        """Wake the owner."""
        owner = None if self._owner is None else self._owner()
        if owner is not None:
            owner.wake()

    def begin(self) -> None:
        """Begin the turn of the calling thread, which has the lock, or end the thread as :meth:`check` does."""
        self.thread = threading.get_ident()
        if _interpreter.exiting is not None:
            self.check()

    def begin_epoch(self) -> None:
        """The same for a thread that begins an epoch."""
        with _interpreter.lock:
            _interpreter.loops.add(threading.current_thread())
        self.begin()

    @staticmethod
    def check() -> None:
        """End the calling thread if the interpreter exits in another one.

        Raises:
            SystemExit: it does; that ends a thread without a message.
        """
        if _interpreter.exiting is not None and _interpreter.exiting != threading.get_ident():
            raise SystemExit("the interpreter exits")
