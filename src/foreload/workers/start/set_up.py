"""Set-up of a worker as torch does it, or hidden: user code finds no sign that it runs in a worker."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from foreload._libraries import allow_child_processes
from foreload._torch import (
    name_worker_process,
    seed_worker,
    set_process_worker_info,
    set_worker_signal_handlers,
    worker_info,
)
from foreload.cache.budget import reuse_freed
from foreload.cache.view import CachedView
from foreload.forks.descriptors import own_positions
from foreload.forks.unshare import unshare
from foreload.workers import compute
from foreload.workers.start.method import start_nested_no_processes

__all__ = ["become_worker", "postponed_signals", "set_up_process"]


# The program's handler of interrupts. What it alone refers to would end in each worker otherwise: that of Ray
# Train refers to an actor, whose end waits for threads that a fork lacks.
_replaced: list[Any] = []


def set_up_process(worker: int, task: Any) -> None:
    """Make this process a worker as torch does."""
    # What was there before stays shared with the parent until it is written to, which the collector would do.
    gc.freeze()
    set_worker_signal_handlers()
    with suppress(ValueError):
        # An interrupt is for the loop, which ends the workers, and for the programs that a sample runs: they would
        # inherit that it is ignored, but not that a function does nothing about it.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            _replaced.append(signal.signal(signal.SIGINT, _pass_over))
        if task.is_hidden:
            _leave_to_the_program()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, getattr(_own, "postponed", ()))
    name_worker_process()
    become_worker(worker, task)


# Signals that terminals and job schedulers send to all processes of a program.
_TO_GROUPS = (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)

# Those that a thread, and a fork of it, gets later.
_own = threading.local()


@contextmanager
def postponed_signals() -> Iterator[None]:
    """Postpone signals to all processes of the program in this block, which forks a worker.

    Until the worker is set up, it would handle them as the program does.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TO_GROUPS)
    _own.postponed = postponed = set(_TO_GROUPS) - before
    try:
        yield
    finally:
        _own.postponed = set()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, postponed)


def _leave_to_the_program() -> None:
    """Do nothing about signals to all processes of the program, which would handle each once for every worker."""
    handlers = {number: signal.getsignal(number) for number in _TO_GROUPS}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}

    def restore() -> None:  # as processes that samples start would have them
        for number, handler in handlers.items():
            signal.signal(number, handler)

    for number in handlers:
        signal.signal(number, _pass_over)
    signal.set_wakeup_fd(-1)  # by which an event loop hears of them
    os.register_at_fork(after_in_child=restore)


# A thread that drew from torch's generator in the very moment of the fork holds its lock here for ever.
_SEED_SECONDS = 10.0


@contextmanager
def _killed_after(seconds: float) -> Iterator[None]:
    """Let this process be killed, and so be replaced, if the block takes longer."""
    before = signal.getsignal(signal.SIGALRM)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def _pass_over(signal_number: int, frame: Any) -> None:
    """Do nothing about a signal."""


def become_worker(worker: int, task: Any) -> None:
    """Make this process worker number ``worker`` for the code of the user: memory, threads, seeds, its number."""
    if task.reuses:
        reuse_freed()
    compute.use_one_thread()
    with _killed_after(_SEED_SECONDS):
        seed_worker(task.seed, worker)
    if task.held is not None:
        unshare(with_locks=False)
        own_positions(with_output=False)
    if task.is_hidden:
        start_nested_no_processes()
        allow_child_processes()
        return
    # What worker_init_fn sets on its copy is for the dataset, not for the view of it.
    dataset = task.dataset.seen if isinstance(task.dataset, CachedView) else task.dataset
    set_process_worker_info(
        worker_info(id=worker, num_workers=task.count, seed=task.seed + worker, dataset=dataset)
    )
