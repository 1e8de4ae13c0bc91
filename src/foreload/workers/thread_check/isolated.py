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
from foreload.workers.thread_check.loading import Samples

__all__ = ["Ending", "innermost_frames", "run_here", "run_in_fork"]

# The time that a fork has to write down its stacks, once its time is over.
_STACKS_SECONDS = 10.0

# The part of a stack that is shown.
_MOST_FRAMES = 6


@dataclass(frozen=True)
class Ending:
    """The end of a call in a fork.

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
    written = stacks.read().decode(errors="replace")
    return Ending(trouble=trouble, is_late=is_late, stack=innermost_frames(written, is_late))


def _trouble(child: int) -> str:
    ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    if ended is None or ended.si_code == os.CLD_EXITED:
        return "an exit of the process"
    return signal.Signals(ended.si_status).name


def innermost_frames(stacks: str, is_late: bool) -> str:
    """Return the innermost frames of the thread that crashed or waits, as far as they are not foreload's.

    Args:
        stacks: those of all threads, as ``faulthandler`` writes them down.
        is_late: whether a thread waits, and not the current one crashed. Then all others may wait for it, wherever
            they are; one that is loading a sample tells most.

    >>> stacks = f'''Current thread 0x1 (most recent call first):
    ...   File "{threading.__file__}", line 9 in wait
    ... Thread 0x2 (most recent call first):
    ...   File "/a/numpy.py", line 5 in seed
    ...   File "{__file__}", line 3 in work
    ... Thread 0x3 (most recent call first):
    ...   File "/a/dataclasses.py", line 6 in is_dataclass
    ...   File "{Samples.get.__code__.co_filename}", line 5 in load
    ... Thread 0x4 (most recent call first):
    ...   File "/my/dataset.py", line 7 in __getitem__
    ...   File "{Samples.get.__code__.co_filename}", line 4 in get
    ... '''
    >>> innermost_frames(stacks, is_late=True)
    'File "/my/dataset.py", line 7 in __getitem__'
    """
    parts = re.split(r"^(Current thread|Thread) .*\n", stacks, flags=re.MULTILINE)[1:]
    get = Samples.get.__code__  # other code of foreload's looks at samples that have been loaded
    loading = re.compile(rf'"{re.escape(get.co_filename)}", line \d+ in {get.co_name}$', re.MULTILINE)
    named = zip(parts[::2], parts[1::2], strict=True)
    found = [(is_late and not loading.search(stack), name, stack) for name, stack in named]
    folder = str(Path(__file__).parents[2]) + os.sep
    for _, _, stack in sorted(found):  # the current one comes before others of its kind
        frames = [line.strip() for line in stack.splitlines() if line.startswith("  File ")]
        own = frames[: next((at for at, line in enumerate(frames) if folder in line), len(frames))]
        if not all(threading.__file__ in line for line in own):
            return "\n".join(own[:_MOST_FRAMES])
    return ""
