"""Calls of Ray that nothing waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

__all__ = ["RayCalls"]


class RayCalls:
    """Calls of Ray, which a thread makes one after the other.

    An epoch may be garbage that is collected in any thread: in one of Ray's own too, where ``ray.kill`` and
    ``ray.cancel`` would wait for ever for what that thread is to do.

    >>> calls, made = RayCalls(), SimpleQueue()
    >>> calls.make_later(lambda: made.put("killed"))
    >>> calls.close()
    >>> made.get()
    'killed'
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        # It has no more than the queue, and so does not keep a pool alive.
        threading.Thread(target=_make, args=(self._waiting,), name="foreload-ray-calls", daemon=True).start()

    def make_later(self, call: Callable[[], object]) -> None:
        """Have a call made; it takes no time, whatever the calling thread is doing."""
        self._waiting.put(call)

    def close(self) -> None:
        """Let the thread end after the calls that there are."""
        self._waiting.put(None)


def _make(waiting: SimpleQueue[Callable[[], object] | None]) -> None:
    while (call := waiting.get()) is not None:
        with suppress(Exception):  # of an actor, or a cluster, that has ended by itself
            import ray

            if ray.is_initialized():  # or Ray would start a cluster for the call
                call()
