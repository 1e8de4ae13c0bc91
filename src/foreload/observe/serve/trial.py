"""The benchmark that the page starts: ``foreload bench`` in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["Trial", "arguments"]

_KINDS = ("photos", "folder", "tensors")
_PATIENCE = 5.0  # seconds that a benchmark which is stopped may take to end


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


class Trial:
    """Runs one benchmark at a time, and remembers the last.

    Args:
        tell: called when there is something new.
    """

    def __init__(self, tell: Callable[[], Awaitable[None]]) -> None:
        self._tell = tell
        self._state: dict[str, Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    def state(self) -> dict[str, Any] | None:
        """Give ``state`` (running, done, stopped or failed), ``command``, ``progress``, and what came out."""
        return self._state

    @property
    def running(self) -> bool:
        """Whether there is one that has not ended."""
        return self._task is not None and not self._task.done()

    def start(self, arguments: list[str]) -> None:
        """Start ``foreload bench`` with these arguments."""
        assert not self.running
        self._state = {"state": "running", "command": shlex.join(["foreload", "bench", *arguments]), "progress": None}
        self._task = asyncio.create_task(self._run(arguments))

    async def stop(self) -> None:
        """End the benchmark that is running, if one is."""
        if self._task is None or self._task.done():
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self, arguments: list[str]) -> None:
        # All that it leaves behind, however it ends, is in a folder that goes with it.
        with tempfile.TemporaryDirectory(prefix="foreload-bench-", ignore_cleanup_errors=True) as folder:
            results = Path(folder) / "results.json"
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "foreload.bench", *arguments, "--json", str(results), "--progress"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "TMPDIR": folder},
            )
            try:
                _, words = await asyncio.gather(self._follow(process), _last_line(process))
                code = await process.wait()
                if code == 0:
                    self._set(state="done", sentence=words, **json.loads(results.read_text()))
                else:
                    said = (self._state or {}).get("said") or f"it ended with exit code {code}"
                    self._set(state="failed", error=said)
            except asyncio.CancelledError:
                self._set(state="stopped")
                raise
            finally:
                await _end(process)
                await self._tell()

    def _set(self, **news: Any) -> None:
        # The command that was shown is one that can be typed; the one that ran has our own files in it.
        self._state = {**news, **{key: (self._state or {})[key] for key in ("command",)}, "progress": None}

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        """Take in its progress; what else it says is the reason if it fails."""
        assert process.stderr is not None
        async for line in process.stderr:
            words = line.decode(errors="replace").strip()
            assert self._state is not None
            if words.startswith('{"done"'):
                self._state["progress"] = json.loads(words)
                await self._tell()
            elif words:
                self._state["said"] = words


async def _last_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    lines = (await process.stdout.read()).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process and those that it started."""
    for means in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, means)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _PATIENCE)
            return
