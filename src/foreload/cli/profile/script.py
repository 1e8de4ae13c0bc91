"""Running a script in a process of its own, with its streams, signals and exit code unchanged."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["environment", "nsys_command", "run_script"]

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
    command: Sequence[str], variables: dict[str, str], sample: Callable[[int], None], every: float
) -> int:
    """Run a command, and pass on signals that arrive meanwhile.

    Args:
        command: the path of a program, and its arguments.
        variables: its environment.
        sample: called with the id of its process, about every ``every`` seconds.
        every: seconds.

    Returns:
        Its exit code, or minus the signal that killed it.
    """
    alone = not _in_foreground()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON | {signal.SIGCHLD})
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None in a process without them
            stream.flush()
        group = {"setpgroup": 0} if alone else {}
        process = os.posix_spawn(command[0], list(command), variables, setsigmask=before, **group)  # type: ignore[arg-type]
        while True:
            received = signal.sigtimedwait(_PASSED_ON | {signal.SIGCHLD}, every)
            if received is not None and received.si_signo != signal.SIGCHLD:
                # A terminal sends its signals to the script too, if that is in the same group.
                if alone or received.si_code <= 0:
                    os.kill(process, received.si_signo)
                continue
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                break
            sample(process)
        while signal.sigtimedwait(_PASSED_ON, 0) is not None:
            pass  # these were for the script
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return os.waitstatus_to_exitcode(status)


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


def nsys_command(command: list[str], output: Path) -> list[str]:
    """Return the command that runs ``command`` under Nsight Systems.

    It records CUDA, NVTX ranges and calls of the C library, and also file accesses if this version of ``nsys``
    can.

    Args:
        command: a program and its arguments.
        output: the file to write, without ``.nsys-rep``.

    Raises:
        FileNotFoundError: there is no ``nsys``.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        raise FileNotFoundError(
            "--nsys needs NVIDIA Nsight Systems, and there is no nsys on the PATH; install the package "
            "nsight-systems-cli from NVIDIA's repository or from https://developer.nvidia.com/nsight-systems, "
            "or leave out --nsys: the report does not need it"
        )
    known = subprocess.run([nsys, "profile", "--help"], capture_output=True, text=True, check=False).stdout
    files = ["--osrt-file-access=true"] if "--osrt-file-access" in known else []
    return [
        nsys,
        "profile",
        "--trace=cuda,nvtx,osrt",
        *files,
        "--force-overwrite=true",
        f"--output={output}",
        *command,
    ]
