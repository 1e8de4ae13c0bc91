"""Helpers that find what a test leaves behind: threads, processes, shared memory and temporary files."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

_SUBREAPER, _PARENT_DEATH_SIGNAL = 36, 1  # of prctl(2)
_LIBC = ctypes.CDLL(None, use_errno=True)

# Seconds that threads and processes are given to end, on a machine with much else to do.
PATIENCE = 120.0


def interruptible() -> None:
    """Let SIGINT interrupt this process and those that it starts.

    A shell starts what runs in the background, as ``nohup`` does, with SIGINT ignored; children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that none of them escapes."""
    _LIBC.prctl(_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; for ``preexec_fn``."""
    _LIBC.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def threads() -> set[threading.Thread]:
    """Return this library's threads."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("foreload")}


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            found |= set(map(int, (task / "children").read_text().split()))
    return found


# Processes that are there for as long as the tests run.
lasting: set[int] = set()


def _shared_servers() -> set[int]:
    servers: list[Any] = [forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid]  # type: ignore[attr-defined]
    # (pytest-xdist's own process, which runs no test, need not import torch.)
    if template := sys.modules.get("foreload.workers.start.template"):
        servers.append(template.template_process_id())
    return lasting | {pid for pid in servers if pid is not None}


def processes() -> set[int]:
    """Return the children of this process and of its lasting servers, but not those themselves."""
    servers = _shared_servers()
    return set().union(_children(os.getpid()), *map(_children, servers)) - servers


def has_ended(pid: int) -> bool:
    """Tell whether a process is gone, or waits for nothing but to be buried by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def running(before: set[int]) -> set[int]:
    """Return the children that are not in ``before`` and run, after burying those that have ended."""
    # multiprocessing must bury those that it knows: what others have buried runs on for ever in its eyes.
    known = {child.pid for child in multiprocessing.active_children()}
    found = set()
    for pid in processes() - before:
        if not has_ended(pid):
            found.add(pid)
        elif pid not in known:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    return found


def describe(pid: int) -> str:
    """Return a process' number and command line."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = "(gone)"
    return f"process {pid}: {command[:200]}"


def kill(pids: set[int]) -> None:
    """Kill processes and all below them, and bury those that are ours."""
    everyone, more = set(pids), set(pids)
    while more:
        more = set().union(*map(_children, more)) - everyone
        everyone |= more
    for pid in everyone:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while running(processes() - everyone) and time.monotonic() < deadline:
        time.sleep(0.01)


def wait_until_none(left: Callable[[], set[Any]]) -> set[Any]:
    """Return what is left in the end; collect garbage and wait for a while if there is something."""
    deadline, pause = time.monotonic() + PATIENCE, 0.01
    while (found := left()) and time.monotonic() < deadline:
        gc.collect()  # which does nothing while another thread is at it
        time.sleep(pause)
        pause = min(1, 1.5 * pause)
    return found


def shared_memory() -> set[str]:
    """Return the names in /dev/shm of this library, and those that torch gave memory of this process."""
    with suppress(OSError):
        return {
            name
            for name in os.listdir("/dev/shm")
            if "foreload" in name or name.startswith(f"torch_{os.getpid()}_")
        }
    return set()


def temporary_files(folder: Path) -> set[str]:
    """Return what lies in the folder for temporary files, but for what multiprocessing removes at exit."""
    return {name for name in os.listdir(folder) if not name.startswith(("pymp-", "torchinductor"))}
