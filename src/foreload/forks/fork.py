"""A fork of this process that runs one function, of which nothing is left afterwards."""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from foreload.forks.descriptors import own_positions
from foreload.forks.generator import free_generator
from foreload.machine import open_process

__all__ = ["Fork", "call_in_forks", "end_fork", "forked", "forking", "start_fork"]

# Seconds for a fork to end by itself when nobody reads from it any more, as torch gives its workers.
_END_SECONDS = 5.0


# What each fork calls before it runs its function.
_called_first: list[Callable[[], None]] = []


class Fork(NamedTuple):
    """A running fork.

    Attributes:
        process: its process id.
        pipe: the descriptor from which comes what it sends.
    """

    process: int
    pipe: int


def call_in_forks(function: Callable[[], None]) -> None:
    """Have each later fork call a function first, so that what it does is nothing to processes beside it."""
    _called_first.append(function)


@contextmanager
def forked(run: Callable[[int], None]) -> Iterator[Fork]:
    """Run a function in a fork of this process until the end of the block; see :func:`start_fork`.

    >>> with forked(lambda into: os.write(into, b"hello")) as fork:
    ...     os.read(fork.pipe, 100)
    b'hello'
    """
    fork = start_fork(run)
    try:
        yield fork
    finally:
        end_fork(fork)


@contextmanager
def forking() -> Iterator[None]:
    """Fork in this block: torch's generator is free then, and nobody is warned of a fork beside threads.

    Newer Pythons warn of it, also where the user has asked for no processes.
    """
    with ExitStack() as stack:
        if sys.version_info >= (3, 12):  # (To change the filters lets warnings come again that came already.)
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "This process", DeprecationWarning)
        stack.enter_context(free_generator())
        yield


def start_fork(run: Callable[[int], None]) -> Fork:
    """Run a function in a fork of this process, with all objects as they are.

    Its output, also to files that are open for writing only, such as logs, goes nowhere, and where it reads on in
    open files is not seen here.

    Args:
        run: the function; takes the descriptor of a pipe to write to.

    Raises:
        OSError: this process may not fork now.
    """
    out, into = os.pipe()
    try:
        with forking():  # (Should it hang, it is killed.)
            child = os.fork()
        if child == 0:
            try:
                os.close(out)
                _run(run, into)
            finally:
                os._exit(0)
    except OSError:
        os.close(out)
        os.close(into)
        raise
    os.close(into)
    return Fork(child, out)


def end_fork(fork: Fork, seconds: float = _END_SECONDS) -> None:
    """Close the pipe of a fork; if it has not ended after some seconds, kill it and all that it started."""
    try:
        _let_end(fork, seconds)
    finally:
        _kill(fork.process)


def _let_end(fork: Fork, seconds: float) -> None:
    """Close the pipe of a fork, and wait until it has ended: killed at once, it might leave half of a file."""
    os.close(fork.pipe)
    ended = open_process(fork.process)
    if ended is None:
        return
    try:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        poll.poll(seconds * 1000)
    finally:
        os.close(ended)


def _kill(child: int) -> None:
    for kill in (os.killpg, os.kill):  # it may not be the leader of a group yet
        with suppress(OSError):
            kill(child, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(child, 0)


def _run(run: Callable[[int], None], into: int) -> None:
    gc.freeze()  # what was garbage before the fork is for the parent to finalise
    os.setpgid(0, 0)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    for function in _called_first:
        function()
    own_positions(with_output=True)
    run(into)
