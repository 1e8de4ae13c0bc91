"""Programs that tests run: Python's own start is paid for once, and none outlives its test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.leftovers import end_with_parent, lasting

_servers: list[tuple[subprocess.Popen[bytes], socket.socket]] = []


def _server() -> tuple[subprocess.Popen[bytes], socket.socket]:
    if not _servers:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = Path(__file__).with_name("warm_interpreter.py")
        process = subprocess.Popen(
            [sys.executable, script, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            preexec_fn=end_with_parent,
        )
        theirs.close()
        lasting.add(process.pid)
        _servers.append((process, ours))
    return _servers[0]


def stop() -> None:
    """End the interpreter that :func:`python` uses."""
    while _servers:
        process, connection = _servers.pop()
        connection.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # a fork that a test left behind has the other end too
            process.kill()
            process.wait()
        lasting.discard(process.pid)


def python(
    *arguments: Any,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout: float = 170,
    finalize: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS`` (``-c code``, ``-m module`` or a script) with torch and foreload imported already.

    What counts on a fresh interpreter, or is measured from its start, needs ``subprocess`` itself.

    Args:
        arguments: as after ``python``; without options of the interpreter.
        folder: to run in; by default the tests' own.
        environment: all variables; by default the tests' own.
        stdin: what the program can read.
        timeout: seconds; a program that takes longer is killed, with all in its process group.
        finalize: whether the interpreter ends as Python does, with all modules taken apart, which takes longer.

    Raises:
        subprocess.TimeoutExpired: it took too long.
    """
    command = [str(argument) for argument in arguments]
    request = {
        "arguments": command,
        "folder": str(folder or Path.cwd()),
        "environment": dict(os.environ if environment is None else environment),
        "finalize": finalize,
    }
    connection = _server()[1]
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        given.write(stdin.encode())
        given.seek(0)
        streams = [given.fileno(), out.fileno(), errors.fileno()]
        connection.settimeout(None)
        socket.send_fds(connection, [json.dumps(request).encode()], streams)
        process = int(connection.recv(64))
        connection.settimeout(timeout)
        try:
            code = int(connection.recv(64))
        except BaseException as error:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process, signal.SIGKILL)
            connection.settimeout(None)
            connection.recv(64)
            if isinstance(error, TimeoutError):
                raise subprocess.TimeoutExpired(command, timeout) from error
            raise
        texts = []
        for stream in (out, errors):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return subprocess.CompletedProcess(command, code, *texts)
