"""The benchmark that the page starts: ``foreload bench`` in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["BenchRun", "arguments"]

_KINDS = ("photos", "folder", "tensors")
_PATIENCE = 2.0  # seconds that a benchmark which is stopped may take to end


def arguments(wish: Any) -> list[str]:
    """Give the arguments of ``foreload bench`` for what the page asks for.

    Args:
        wish: ``kind`` is ``"photos"`` (synthetic, as many as ``images``), ``"folder"`` (the images in ``folder``),
            or ``"tensors"`` (``rows`` x ``columns`` in memory); with ``batch_size`` and ``seeds``.

    Raises:
        ValueError: it makes no sense; the message names what.

    >>> arguments({"kind": "tensors", "rows": 5000, "columns": 100, "seeds": 2})
    ['--dataset-size', '5000,100', '--batch-size', '64', '--seeds', '2']
    """
    if not isinstance(wish, dict) or wish.get("kind") not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}")
    if wish["kind"] == "folder":
        folder = wish.get("folder")
        if not isinstance(folder, str) or not folder.strip():
            raise ValueError("folder: say where the images are")
        path = Path(folder.strip()).expanduser()
        if not path.is_dir():
            raise ValueError(f"folder: there is none at {str(path)!r} on the machine of the server")
        what = [str(path.absolute())]
    elif wish["kind"] == "photos":
        what = ["--images", _count(wish, "images", 400, 100_000)]
    else:
        what = ["--dataset-size", f"{_count(wish, 'rows', 10_000, 10**8)},{_count(wish, 'columns', 100, 10**6)}"]
    return [*what, "--batch-size", _count(wish, "batch_size", 64, 10**6), "--seeds", _count(wish, "seeds", 3, 100)]


def _count(wish: dict[str, Any], name: str, usual: int, most: int) -> str:
    value = wish.get(name, usual)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{name} must be a whole number from 1 to {most:,}, got {value!r}")
    return str(value)


class BenchRun:
    """Runs one benchmark at a time, and remembers the last.

    Args:
        tell: called when there is something new.

    Attributes:
        state: None before the first; then its ``command`` and ``state``: ``"running"`` with how many ``steps`` are
            done of how many, ``"done"`` with its results and a ``sentence``, ``"failed"`` with an ``error``, or
            ``"stopped"``.
    """

    def __init__(self, tell: Callable[[], Awaitable[None]]) -> None:
        self._tell = tell
        self._task: asyncio.Task[None] | None = None
        self.state: dict[str, Any] | None = None

    @property
    def running(self) -> bool:
        """Whether there is one that has not ended."""
        return self._task is not None and not self._task.done()

    def start(self, arguments: list[str]) -> None:
        """Start ``foreload bench`` with these arguments; none may be running."""
        command = shlex.join(["foreload", "bench", *arguments])
        self.state = {"command": command, "state": "running", "steps": [0, 0]}
        self._task = asyncio.create_task(self._run(command, arguments))

    async def stop(self) -> None:
        """End the benchmark that is running, if one is."""
        if self._task is None or self._task.done():
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self, command: str, arguments: list[str]) -> None:
        end: dict[str, Any] = {"state": "stopped"}
        try:
            end = await self._bench(arguments)
        except OSError as error:
            end = {"state": "failed", "error": str(error)}
        finally:
            self.state = {**end, "command": command}
            await self._tell()

    async def _bench(self, arguments: list[str]) -> dict[str, Any]:
        # All that it leaves behind, however it ends, is in a folder that goes with it.
        with tempfile.TemporaryDirectory(prefix="foreload-bench-", ignore_cleanup_errors=True) as folder:
            results = Path(folder) / "results.json"
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "foreload.bench", *arguments, "--json", str(results), "--steps"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "TMPDIR": folder},
            )
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                said, wrong = await asyncio.gather(self._follow(process.stdout), process.stderr.read())
                code = await process.wait()
                if code == 0:
                    return {"state": "done", "sentence": said, **json.loads(results.read_text())}
                words = wrong.decode(errors="replace").strip().splitlines()
                return {"state": "failed", "error": words[-1] if words else f"it ended with exit code {code}"}
            finally:
                await _end(process)

    async def _follow(self, output: asyncio.StreamReader) -> str:
        """Take in its steps, and give the last line."""
        line = ""
        async for read in output:
            line = read.decode(errors="replace").strip()
            if step := re.fullmatch(r"(\d+)/(\d+)", line):
                self.state = {**(self.state or {}), "steps": [int(number) for number in step.groups()]}
                await self._tell()
        return line


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process and those that it started."""
    for means in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, means)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _PATIENCE)
            return
