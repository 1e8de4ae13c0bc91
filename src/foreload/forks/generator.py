"""The lock of torch's global generator, which no other thread is to hold when this process forks."""

from __future__ import annotations

import os

import torch


def _await_lock() -> None:
    # Reading the state takes the lock. A thread that holds it while the process forks is not there in the child,
    # which would wait for it for ever when it is seeded. Until the fork, no other thread begins to draw: it would
    # need the interpreter's lock first.
    torch.default_generator.get_state()


os.register_at_fork(before=_await_lock)
