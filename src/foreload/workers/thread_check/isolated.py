"""Calls that may crash or hang, in a fork of this process, of which the rest of the program sees nothing."""

from __future__ import annotations

import faulthandler
import io
import os
import pickle
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from foreload.forks.fork import Fork, forked

__all__ = ["Ending", "run_here", "run_in_fork"]

# The time that a fork has to write down its stacks, once its time is over.
_STACKS_SECONDS = 10.0

# The part of a stack that is shown.
_MOST_FRAMES = 6


@dataclass(frozen=True)
class Ending:
    """How a call in a fork ended.

    Attributes:
        value: what it returned.
        trouble: what ended it instead: a signal, an exit or an exception; "": nothing did.
        is_late: whether it was ended because time was over.
        stack: where it was then.
    """

    value: Any = None
    trouble: str = ""
    is_late: bool = False
    stack: str = ""


def run_in_fork(function: Callable[[], Any], seconds: float) -> Ending:
    """Call a function in a fork of this process, with the objects of this process as they are.

    Args:
        function: what is called, in the main thread of the fork; its result is pickled.
        seconds: the time after which the fork is ended.

    >>> run_in_fork(lambda: 6 * 7, seconds=60).value
    42
    >>> run_in_fork(lambda: os.kill(os.getpid(), signal.SIGKILL), seconds=60).trouble
    'SIGKILL'
    """
    with tempfile.TemporaryFile() as stacks, forked(lambda into: _call(function, into, stacks)) as fork:
        return _ending(fork, stacks, time.monotonic() + seconds)


def run_here(function: Callable[[], Any], seconds: float) -> Ending:
    """Call a function in a thread of this process, for systems without forks; a crash ends the program.

    >>> run_here(lambda: 6 * 7, seconds=60).value
    42
    """
    endings: list[Ending] = []

    def call() -> None:
        try:
            endings.append(Ending(function()))
        except Exception as error:
            endings.append(Ending(trouble=f"{type(error).__name__}: {error}"))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return endings[0] if endings else Ending(is_late=True)


def _call(function: Callable[[], Any], into: int, stacks: Any) -> None:
    import resource  # which systems without forks do not have

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.disable()  # it would leave handlers alone that it has installed before and another has replaced
    faulthandler.enable(stacks)
    try:
        ending = Ending(function())
    except Exception as error:
        ending = Ending(trouble=f"{type(error).__name__}: {error}")
    with open(into, "wb") as file:
        pickle.dump(ending, file)


def _ending(fork: Fork, stacks: Any, deadline: float) -> Ending:
    """Read what the fork sends until it ends or time is up."""
    data = io.BytesIO()
    is_late = False
    while True:
        if not wait([fork.pipe], max(0.0, deadline - time.monotonic())):
            if is_late:
                break
            is_late = True
            os.kill(fork.process, signal.SIGABRT)  # it writes down its stacks, and ends
            deadline = time.monotonic() + _STACKS_SECONDS
            continue
        part = os.read(fork.pipe, 1 << 16)
        if not part:
            break
        data.write(part)
    if not is_late and data.tell():
        ending: Ending = pickle.loads(data.getvalue())
        return ending
    trouble = "" if is_late else _trouble(fork.process)
    stacks.seek(0)
    return Ending(trouble=trouble, is_late=is_late, stack=_first_stack(stacks.read().decode(errors="replace")))


def _trouble(child: int) -> str:
    ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    if ended is None or ended.si_code == os.CLD_EXITED:
        return "an exit of the process"
    return signal.Signals(ended.si_status).name


def _first_stack(text: str) -> str:
    """Return the innermost frames of the thread that crashed or waits, as far as they are not foreload's."""
    parts = re.split(r"^(Current thread|Thread) .*\n", text, flags=re.MULTILINE)[1:]
    stacks = sorted(zip(parts[::2], parts[1::2], strict=True))  # the current one comes first
    folder = str(Path(__file__).parents[2]) + os.sep
    for _, stack in stacks:
        frames = [line.strip() for line in stack.splitlines() if line.startswith("  File ")]
        own = frames[: next((at for at, line in enumerate(frames) if folder in line), len(frames))]
        if not all(threading.__file__ in line for line in own):
            return "\n".join(own[:_MOST_FRAMES])
    return ""
