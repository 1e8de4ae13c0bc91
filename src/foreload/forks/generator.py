"""The lock of torch's global generator, which no other thread is to hold when workers are forked."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["free_generator"]


class _Starting(threading.local):
    """The process in which the calling thread starts a worker; other forks are none of foreload's business."""

    process: int | None = None


_starting = _Starting()


def _await_lock() -> None:
    # Reading the state takes the lock. A thread that holds it while the process forks is not there in the child,
    # which would wait for it for ever when it is seeded. Until the fork, hardly any other thread begins to draw:
    # it needs the interpreter's lock first.
    if _starting.process == os.getpid():
        torch.default_generator.get_state()


os.register_at_fork(before=_await_lock)


@contextmanager
def free_generator() -> Iterator[None]:
    """Let a fork in the block wait until no other thread draws from torch's generator."""
    _starting.process = os.getpid()
    try:
        yield
    finally:
        _starting.process = None
