"""An interpreter that has imported what takes longest, and runs programs in forks of itself.

Started by :mod:`tests.programs`. Each request comes with the program's standard streams and a socket for answers.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import types
from contextlib import suppress
from typing import Any

# Functions that a program wants to be called after all that its modules have registered with atexit, which calls
# the first ones last. A list that programs reach, whichever modules they can import.
latest: list[Any] = []
atexit.latest = latest  # type: ignore[attr-defined]
atexit.register(lambda: [function() for function in latest])

MODULES = [
    "torch",
    "torch.utils.data",
    "foreload",
    "foreload.cli.commands",
    "PIL.Image",
    "typer.rich_utils",
    "rich.table",
]


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; return the request in the fork, None at the end.

    A request comes with a socket, to which the fork's process ID is sent, and its exit code when it has ended.
    """
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready in select.select([connection.fileno(), *running], [], [])[0]:
            if ready in running:
                bury(*running.pop(ready))
                os.close(ready)
                continue
            text, numbers, *_ = socket.recv_fds(connection, 1 << 20, 4)
            if not text:
                return None
            *streams, answers = numbers
            process = os.fork()
            if process == 0:
                connection.close()
                os.close(answers)
                for end, (_, others) in running.items():
                    os.close(end)
                    others.close()
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                    os.close(stream)
                request: dict[str, Any] = json.loads(text)
                return request
            with suppress(PermissionError, ProcessLookupError):
                os.setpgid(process, process)  # before anybody can signal the group; the fork does it too
            for stream in streams:
                os.close(stream)
            asker = socket.socket(fileno=answers)
            running[os.pidfd_open(process)] = process, asker
            with suppress(OSError):
                asker.send(str(process).encode())


def bury(process: int, asker: socket.socket) -> None:
    """Wait for a fork that has ended, and say how it did."""
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with asker, suppress(OSError):  # nobody may be interested any more
        asker.send(str(code).encode())


def become(request: dict[str, Any]) -> None:
    """Run what ``python`` would run with these arguments: ``-c code``, ``-m module`` or a script."""
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    tempfile.tempdir = None  # which an import may have asked for, in another environment
    # What stood there knows whether the server's streams can be sought in.
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    first, *rest = request["arguments"]
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif first == "-m":
        sys.argv = ["-m", *rest[1:]]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


def run(request: dict[str, Any]) -> int:
    """Run a program; return the code that Python would exit with, -SIGINT for an end by that signal."""
    try:
        become(request)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


if __name__ == "__main__":
    for module in MODULES:
        with suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()  # forks need not touch, and so copy, all of it
    found = serve(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        code = run(found)
        if found["finalize"] and code >= 0:
            sys.exit(code)
        # All of Python's end but taking modules apart, which takes longer than most of the programs.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)
