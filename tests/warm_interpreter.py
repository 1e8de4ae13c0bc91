"""An interpreter that has imported what takes longest, and runs programs in forks of itself.

Started by :mod:`tests.programs`. Each request comes with the program's standard streams.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import socket
import sys
import threading
import types
from contextlib import suppress
from typing import Any

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
    """Fork for each request, one after the other; return the request in the fork, None at the end."""
    while True:
        text, streams, *_ = socket.recv_fds(connection, 1 << 20, 3)
        if not text:
            return None
        process = os.fork()
        if process == 0:
            connection.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            request: dict[str, Any] = json.loads(text)
            return request
        for stream in streams:
            os.close(stream)
        connection.send(str(process).encode())
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])).encode())


def become(request: dict[str, Any]) -> None:
    """Run what ``python`` would run with these arguments: ``-c code``, ``-m module`` or a script."""
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
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
    """Run a program; return the code that Python would exit with."""
    try:
        become(request)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


if __name__ == "__main__":
    for module in MODULES:
        with suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()  # forks need not touch, and so copy, all of it
    found = serve(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        code = run(found)
        if found["finalize"]:
            sys.exit(code)
        # All of Python's end but taking modules apart, which takes longer than most of the programs.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
