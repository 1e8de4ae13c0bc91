"""Running a script in a process of its own, with its streams, signals and exit code unchanged."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from foreload.cli.profile.stop import Stop

__all__ = ["environment", "run_script"]

# Signals to the command that are passed on to the script.
_PASSED_ON = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
}

# Of these, those that a terminal sends to all processes in its foreground.
_FROM_TERMINAL = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP}

# Imported first by every Python process that the script starts (see the site module). It then removes its folder
# from the path, and imports the sitecustomize module that was there before.
_START = """\
import importlib, importlib.util, os, sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [folder for folder in sys.path if folder != here]
spec = importlib.util.spec_from_file_location(
    "_foreload_profile", {package!r}, submodule_search_locations=[os.path.dirname({package!r})]
)
sys.modules["_foreload_profile"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["_foreload_profile"])
importlib.import_module("_foreload_profile.start").start(here, {root}, {spans}, {nvtx})

mine = sys.modules.pop("sitecustomize")
importlib.invalidate_caches()
try:
    import sitecustomize
except ImportError as error:
    if error.name != "sitecustomize":
        raise
sys.modules.setdefault("sitecustomize", mine)
"""


def environment(folder: Path, *, spans: int, nvtx: bool = False) -> dict[str, str]:
    """Return an environment in which every Python process records what it loads.

    Args:
        folder: folder for the records.
        spans: spans kept per thread.
        nvtx: mark stages for NVIDIA's tools.
    """
    package = Path(__file__).with_name("inside") / "__init__.py"
    start = _START.format(package=str(package), root=os.getpid(), spans=spans, nvtx=nvtx)
    (folder / "sitecustomize.py").write_text(start)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run_script(
    command: Sequence[str],
    variables: dict[str, str],
    sample: Callable[[int], None],
    pause: Callable[[], float],
    stop: Stop | None = None,
) -> int:
    """Run a command, and pass on signals that arrive meanwhile.

    Args:
        command: the path of a program, and its arguments.
        variables: its environment.
        sample: called again and again with the id of its process.
        pause: returns the seconds until the next sample.
        stop: ends it after some time; None: it ends by itself.

    Returns:
        Its exit code, or minus the signal that killed it.
    """
    alone = not _in_foreground()
    # While this thread samples, the system gives a signal to another thread, which a library has started.
    elsewhere: list[int] = []
    handlers = _hear(elsewhere)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON | {signal.SIGCHLD})
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None in a process without them
            stream.flush()
        options: dict[str, Any] = {"setpgroup": 0} if alone else {}
        if stop is not None:  # which ends it by Ctrl-C, and a shell has programs in the background ignore that
            options["setsigdef"] = [signal.SIGINT]
        process = os.posix_spawn(command[0], list(command), variables, setsigmask=before, **options)
        while True:
            received = signal.sigtimedwait(_PASSED_ON | {signal.SIGCHLD}, pause())
            while elsewhere:
                number = elsewhere.pop(0)
                if alone or number not in _FROM_TERMINAL:
                    os.kill(process, number)
            if received is not None and received.si_signo != signal.SIGCHLD:
                # A terminal sends its signals to the script too, if that is in the same group.
                if alone or received.si_code <= 0:
                    os.kill(process, received.si_signo)
                continue
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                break
            sample(process)
            if stop is not None:
                stop.check(process)
        while signal.sigtimedwait(_PASSED_ON, 0) is not None:
            pass  # these were for the script
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return os.waitstatus_to_exitcode(status)


def _hear(heard: list[int]) -> dict[int, Any]:
    """Append signals that are to be passed on to a list, if they would end this process; return their handlers."""
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in _PASSED_ON:
            # What is ignored stays ignored, in the script too; a handler is not inherited by it.
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                handlers[int(number)] = signal.signal(number, lambda number, _: heard.append(number))
    return handlers


def _in_foreground() -> bool:
    """Whether a terminal sends its signals to this process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
