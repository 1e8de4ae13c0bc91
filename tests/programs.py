"""Programs that tests run: Python's own start is paid for once, and none outlives its test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
    """End the warm interpreter."""
    while _servers:
        process, connection = _servers.pop()
        connection.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # a fork that a test left behind has the other end too
            process.kill()
            process.wait()
        lasting.discard(process.pid)


class Program(subprocess.Popen[str]):
    """``subprocess.Popen`` of ``python ARGUMENTS``: a fork of the warm interpreter, in a process group of its own.

    What counts on a fresh interpreter, or is measured from its start, needs ``subprocess`` itself.

    Args:
        arguments: as after ``python``: ``-c code``, ``-m module`` or a script; without options of the interpreter.
        finalize: whether the interpreter ends as Python does, with all modules taken apart, which takes longer.
        options: of ``subprocess.Popen``: ``stdin``, ``stdout``, ``stderr``, ``cwd`` and ``env``.
    """

    def __init__(self, *arguments: Any, finalize: bool = False, **options: Any) -> None:
        self._finalize = finalize
        super().__init__([str(argument) for argument in arguments], text=True, errors="replace", **options)

    def _execute_child(self, *given: Any) -> None:
        arguments, folder, environment, pipes = given[0], given[5], given[6], given[10:16]
        request = {
            "arguments": arguments,
            "folder": str(folder or Path.cwd()),
            "environment": dict(os.environ if environment is None else environment),
            "finalize": self._finalize,
        }
        streams = [number if pipe == -1 else pipe for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        self._answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(_server()[1], [json.dumps(request).encode()], [*streams, theirs.fileno()])
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self.pid = int(self._answers.recv(64))
        self._child_created = True

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                self.returncode = int(self._answers.recv(64))
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._answers.close()
        return self.returncode

    def _internal_poll(self, _deadstate: object = None) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode


@contextmanager
def started(*arguments: Any, **options: Any) -> Iterator[tuple[Program, str]]:
    """A :class:`Program`, killed in the end, and the first line that it writes; pytest shows its errors."""
    # (A pipe that nobody reads while the program runs would stop it as soon as it is full.)
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = Program(*arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, **options)
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
            process.communicate()
            said.seek(0)
            sys.stderr.write(said.read())


def python(
    *arguments: Any,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout: float = 500,
    finalize: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a :class:`Program` to its end.

    Args:
        arguments: as after ``python``.
        folder: to run in; by default the tests' own.
        environment: all variables; by default the tests' own.
        stdin: what the program can read.
        timeout: seconds; a program that takes longer is killed, with all in its process group.
        finalize: as of :class:`Program`.

    Raises:
        subprocess.TimeoutExpired: it took too long.
    """
    # What the program has left running may still have its files, which is why they are no pipes.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        given.write(stdin.encode())
        given.seek(0)
        streams = {"stdin": given, "stdout": out, "stderr": errors}
        process = Program(*arguments, finalize=finalize, cwd=folder, env=environment, **streams)
        try:
            code = process.wait(timeout)
        except BaseException:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        texts = []
        for stream in (out, errors):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return subprocess.CompletedProcess(process.args, code, *texts)
