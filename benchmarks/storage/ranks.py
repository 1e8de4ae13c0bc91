"""The processes of a run: one per emulated accelerator, begun together, and a server that answers late."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers import install, server
from benchmarks.peers.work import ROOT
from benchmarks.storage.accelerator import MARK, READY
from benchmarks.storage.contestants import Contestant
from benchmarks.storage.work import Work

SECONDS = 300  # that a run may take


class Failed(Exception):
    """A rank ended without an answer, or with an error."""


def interpreter(family: str) -> Path:
    """The interpreter of a contestant; DALI has an environment of its own."""
    return install.python(family) if family == "dali" else Path(sys.executable)


@contextlib.contextmanager
def served(work: Work) -> Iterator[list[str]]:
    """Serve a workload's shards if it wants them from a server; their addresses."""
    if work.source != "http":
        yield []
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [server.build(), work.folder, str(port), str(work.milliseconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield [f"http://127.0.0.1:{port}/{path.name}" for path in sorted(work.folder.glob("*.tar"))]
    finally:
        process.kill()
        process.wait()


class Rank:
    """One process, which waits until it is told to begin."""

    def __init__(self, contestant: Contestant, wanted: dict[str, Any]) -> None:
        command = [interpreter(contestant.family), "-W", "ignore", "-m", "benchmarks.storage.accelerator"]
        # No pipe for errors: what a loader leaves behind would hold it open.
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [*command, json.dumps(wanted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )

    def read(self) -> str:
        """The next line that is for the runner."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith((MARK, READY)):
                return line.strip()
        raise Failed(f"it ended without an answer: {self.last_words()}")

    def ready(self) -> None:
        """Wait until its loader is made."""
        line = self.read()
        if line != READY:
            raise Failed(json.loads(line.removeprefix(MARK))["failed"])

    def begin(self) -> None:
        """Let it take batches."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for its answer."""
        found: dict[str, Any] = json.loads(self.read().removeprefix(MARK))
        if "failed" in found:
            raise Failed(found["failed"])
        return found

    def last_words(self) -> str:
        """The end of what it wrote to standard error."""
        self.errors.seek(0)
        return ([line for line in self.errors.read().splitlines() if line.strip()] or ["no word"])[-1]

    def end(self) -> None:
        """End it with all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@contextlib.contextmanager
def _limit(ranks: list[Rank]) -> Iterator[threading.Event]:
    """End the ranks when they have had ``SECONDS``; the event tells that this has happened."""
    over = threading.Event()

    def end() -> None:
        over.set()
        for rank in ranks:
            rank.process.kill()

    timer = threading.Timer(SECONDS, end)
    timer.start()
    try:
        yield over
    finally:
        timer.cancel()


def run(contestant: Contestant, wanted: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
    """Let so many ranks run at the same time; return their answers.

    Raises:
        Failed: one of them ended with an error; the message is its.
    """
    with contextlib.ExitStack() as stack:
        started = []
        for rank in range(ranks):
            one = Rank(contestant, {**wanted, "contestant": contestant.name, "rank": rank, "ranks": ranks})
            stack.callback(one.end)
            started.append(one)
        over = stack.enter_context(_limit(started))
        try:
            for one in started:
                one.ready()
            for one in started:
                one.begin()
            return [one.answer() for one in started]
        except Failed as error:
            if over.is_set():
                raise Failed(f"it took more than {SECONDS} s") from error
            raise
