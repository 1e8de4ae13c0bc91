"""The lock of torch's global generator, which no other thread is to hold when foreload forks the process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["free_generator"]


class _Waiting(threading.local):
    """The mark of a thread that waits for the lock before it forks; forks by code of others do not wait.

    Attributes:
        process: the one in which it waits: its child, a copy of this, may fork too.
    """

    process: int | None = None


_waiting = _Waiting()


def _await_lock() -> None:
    # Reading the state takes the lock. A thread that holds it while the process forks is not there in the child,
    # which would wait for it for ever when it is seeded. Until the fork, hardly any other thread begins to draw:
    # it needs the interpreter's lock first. (A child that waits all the same is killed after some seconds.)
    if _waiting.process == os.getpid():
        torch.default_generator.get_state()


os.register_at_fork(before=_await_lock)


@contextmanager
def free_generator() -> Iterator[None]:
    """Let a fork in the block wait until no other thread draws from torch's generator."""
    before, _waiting.process = _waiting.process, os.getpid()
    try:
        yield
    finally:
        _waiting.process = before
