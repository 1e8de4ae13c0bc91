"""A running ``foreload serve``, and sockets that it asks."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.programs import Program

PATIENCE = 300.0

# `foreload serve`, whose benchmarks are of two contestants: all others take longest to start.
_BENCH = """
import sys
from foreload.bench.contestants import TENSOR_CONTESTANTS
from foreload.cli.main import main
few = ["stock, in the loop", "foreload, baseline"]
TENSOR_CONTESTANTS[:] = [each for each in TENSOR_CONTESTANTS if each.name in few]
main(["bench", *sys.argv[1:]])
"""
_SERVE = f"""
from foreload.cli.main import main
from foreload.cli.serve import trial
trial.COMMAND = ["-c", {_BENCH!r}]
main()
"""
SERVE = ["-c", _SERVE, "serve", "--port", "0"]


class Page:
    """A running ``foreload serve``, and sockets that it asks."""

    def __init__(self, temporary: Path) -> None:
        self.folder = temporary / f"foreload-{os.getuid()}"
        self.folder.mkdir(mode=0o700)
        self.process = Program(
            *SERVE,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip().split(": ", 1)[1]
        self.port = int(address.split(":")[2].split("/")[0])
        self.token = address.partition("token=")[2]
        self._numbers = iter(range(1000))

    @contextmanager
    def answering(self, answer: Callable[[socket.socket], object]) -> Iterator[str]:
        """A socket in the folder, each of whose clients gets an answer."""
        name = f"{next(self._numbers)}-0000"
        over = threading.Event()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.folder / f"{name}.sock"))
            listener.listen(16)
            listener.settimeout(0.2)

            def run() -> None:
                with ExitStack() as clients:
                    while not over.is_set():
                        with suppress(OSError):
                            client = clients.enter_context(listener.accept()[0])
                            client.settimeout(PATIENCE)
                            answer(client)

            thread = threading.Thread(target=run)
            thread.start()
            try:
                yield name
            finally:
                over.set()
                thread.join()
                (self.folder / f"{name}.sock").unlink(missing_ok=True)

    def ask(self, request: bytes, *, timeout: float = PATIENCE) -> tuple[int, bytes]:
        """Send bytes; return the status and the body, or 0 if the connection was closed without any."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as client:
            with suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(request)
            answer = http.client.HTTPResponse(client)
            try:
                answer.begin()
                return answer.status, answer.read()
            except (http.client.HTTPException, ConnectionResetError):
                return 0, b""

    def state(self) -> dict[str, Any]:
        status, body = self.ask(b"GET /state.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert status == 200
        found: dict[str, Any] = json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        return found

    def until(self, seen: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while not seen(state := self.state()):
            assert time.monotonic() < deadline, state
            threading.Event().wait(0.2)
        return state
