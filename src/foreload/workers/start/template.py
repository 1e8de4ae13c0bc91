"""A template process with torch imported, from which worker processes are forked instead of started from scratch.

The start methods ``spawn`` and ``forkserver`` give each worker an interpreter of its own, which imports torch
before anything else: a second or more in every epoch. The template is such an interpreter, started once. A worker
forked from it has what it would have had otherwise, and nothing of the program: it imports the main module and
unpickles the dataset itself. A template is used only for what it is like: another one is started if the
environment has changed since.
"""

from __future__ import annotations

import io
import os
import resource
import sys
import threading
from multiprocessing import context as contexts
from multiprocessing import process, reduction, spawn, util
from multiprocessing.connection import wait
from multiprocessing.forkserver import ForkServer, read_signed
from multiprocessing.popen_forkserver import Popen
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from foreload.machine import open_process

__all__ = ["TemplateProcess", "process_class", "template_process_id"]

# What a process inherits from the one that starts it, besides its environment: limits, and from proc(5) the mask
# for new files and the signals that it ignores or that its thread blocks.
_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_STACK)
_THREAD = Path("/proc/thread-self/status")
_STATUS = ("Umask", "SigBlk", "SigIgn")


class _Preloaded(list[str]):
    """The modules that a template imports, from where this process would: servers have another ``sys.path``.

    They are part of a server's command line, as text.
    """

    def __repr__(self) -> str:
        return f"[__import__('sys').path.__setitem__(slice(None), {_paths()!r}) or name for name in {[*self]!r}]"


def _paths() -> list[str]:
    return [path or process.ORIGINAL_DIR or "" for path in sys.path]  # type: ignore[attr-defined]


class _Template(ForkServer):
    """The server of one template process."""

    def __init__(self, inherited: Any) -> None:
        super().__init__()
        self.inherited = inherited
        self.set_forkserver_preload(_Preloaded(["foreload.workers.worker"]))

    @property
    def process_id(self) -> int | None:
        """The template's process id."""
        return self._forkserver_pid  # type: ignore[attr-defined,no-any-return]

    def retire(self) -> None:
        """Let it end with the last process that was forked from it."""
        os.close(self._forkserver_alive_fd)  # type: ignore[attr-defined]


class _Present:
    template: _Template | None = None
    lock = threading.RLock()
    retired: ClassVar[list[int]] = []  # process ids of templates that are to be waited for


def _after_fork() -> None:
    """Start with no template: it is not a child of this process, which cannot know how it is."""
    _Present.lock = threading.RLock()
    _Present.retired = []
    if _Present.template is not None:
        _Present.template.retire()
        _Present.template = None


os.register_at_fork(after_in_child=_after_fork)


def _template() -> _Template:
    """Return the template that is as the present process would make one."""
    inherited = (
        dict(os.environ),
        os.sched_getaffinity(0),
        spawn.get_executable(),
        _paths(),
        [_file_identity(descriptor) for descriptor in range(3)],
        [resource.getrlimit(which) for which in _LIMITS],
        _thread_status(),
    )
    present = _Present.template
    if present is not None and present.inherited != inherited:
        _retire(present)
    _Present.retired = [pid for pid in _Present.retired if not _has_ended(pid)]
    if _Present.template is None:
        _Present.template = _Template(inherited)
        _Present.template.ensure_running()
    return _Present.template


def _thread_status() -> list[str]:
    try:
        return [line for line in _THREAD.read_text().splitlines() if line.partition(":")[0] in _STATUS]
    except OSError:  # there is no /proc
        return []


def _file_identity(descriptor: int) -> tuple[int, int] | None:
    try:
        about = os.fstat(descriptor)
    except OSError:  # it is closed
        return None
    return about.st_dev, about.st_ino


def _retire(template: _Template) -> None:
    with _Present.lock:
        if _Present.template is template:
            _Present.template = None
            template.retire()
            _Present.retired += filter(None, [template.process_id])


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # somebody else has waited for it
        return True


def template_process_id() -> int | None:
    """Return the process id of the present template; None if there is none."""
    return None if _Present.template is None else _Present.template.process_id


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _seed() -> None:
    np.random.seed()
    torch.default_generator.seed()


class _Seeded:
    """Gives the process that unpickles it random numbers of its own, as each has that imports NumPy and torch."""

    def __reduce__(self) -> Any:
        return _seed, ()


class _Popen(Popen):
    """Starts a process from the template."""

    def _launch(self, process_obj: Any) -> None:
        data = io.BytesIO()
        contexts.set_spawning_popen(self)
        try:
            # The worker reads this first, before it imports the main module.
            reduction.dump({**spawn.get_preparation_data(process_obj.name), "random": _Seeded()}, data)
            reduction.dump(process_obj, data)
        finally:
            contexts.set_spawning_popen(None)
        try:
            self._send(data)
        except (EOFError, ConnectionError, ChildProcessError):  # it was killed
            _retire(self._template)
            self._send(data)

    def _send(self, data: io.BytesIO) -> None:
        with _Present.lock:  # no other thread retires it meanwhile
            self._template = _template()
            self._status, into = self._template.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        # As long as the other end is open, the worker knows that its parent lives.
        descriptors = [os.dup(into), self._status]
        self.finalizer = util.Finalize(self, _close, (descriptors,))
        try:
            with open(into, "wb", closefd=True) as file:
                file.write(data.getbuffer())
            self.pid = read_signed(self._status)
        except (EOFError, ConnectionError):
            self.finalizer()
            raise
        # The template has the other end of the pipe, and may be killed before the worker ends.
        ended = open_process(self.pid)
        self.sentinel = self._status if ended is None else ended
        descriptors += [] if ended is None else [ended]

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code once the process has ended; 255 if the template, which would know it, has too."""
        if self.returncode is None and wait([self.sentinel], 0 if flag == os.WNOHANG else None):
            try:
                self.returncode = read_signed(self._status)
            except (OSError, EOFError):
                self.returncode = 255
        return self.returncode


class TemplateProcess(process.BaseProcess):
    """A process that is forked from the template."""

    @staticmethod
    def _Popen(process_obj: Any) -> Popen:
        return _Popen(process_obj)


class _Spawned(TemplateProcess):
    _start_method = "spawn"  # the worker's own default


class _Served(TemplateProcess):
    _start_method = "forkserver"


_CLASSES = {"spawn": _Spawned, "forkserver": _Served}


def process_class(context: Any) -> Any:
    """Return the class of worker processes for a context of ``multiprocessing``.

    >>> import multiprocessing
    >>> process_class(multiprocessing.get_context("fork")).__name__
    'ForkProcess'
    """
    standard = (contexts.DefaultContext, contexts.SpawnContext, contexts.ForkServerContext)
    is_standard = type(context) in standard and not getattr(sys, "frozen", False)
    # Other systems' libraries do not allow for forks, not even right after they are imported.
    if sys.platform == "linux" and is_standard:
        return _CLASSES.get(context.get_start_method(), context.Process)
    return context.Process
