"""The benchmark that the page can start: ``foreload bench`` in a process of its own."""

from __future__ import annotations

import asyncio
import json
import math
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

_DATA_KINDS = ("photos", "folder", "tensors")
_STOP_TIMEOUT = 2.0  # seconds for a stopped benchmark to end

COMMAND = ["-m", "foreload.bench"]  # what Python runs

# Limits of what fields ask for together: numbers of the data and of a batch, each of which several processes hold,
# and samples and numbers loaded in all.
_MAX_DATA = 10**8
_MAX_BATCH = 2 * 10**8
_MAX_SAMPLES_LOADED = 10**9
_MAX_IMAGES_LOADED = 10**6
_IMAGE = 3 * 224 * 224


def arguments(wish: Any) -> list[str]:
    """Return the arguments of ``foreload bench`` for a request of the page.

    Args:
        wish: ``kind`` is ``"photos"`` (``images`` synthetic ones), ``"folder"`` (the images in ``folder``), or
            ``"tensors"`` (``rows`` x ``columns`` in memory); with ``batch_size`` and ``seeds``.

    Raises:
        ValueError: the request is invalid; the message names the field.

    >>> arguments({"kind": "tensors", "rows": 5000, "columns": 100, "seeds": 2})
    ['--dataset-size', '5000,100', '--batch-size', '64', '--seeds', '2']
    """
    if not isinstance(wish, dict) or wish.get("kind") not in _DATA_KINDS:
        raise ValueError(f"kind must be one of {', '.join(_DATA_KINDS)}")
    batch_size, seeds = _count(wish, "batch_size", 64, 10**6), _count(wish, "seeds", 3, 100)
    if wish["kind"] == "folder":
        what = [_folder(wish)]
    elif wish["kind"] == "photos":
        images = _count(wish, "images", 400, 100_000)
        _check_product({"images": images, "seeds": seeds}, _MAX_IMAGES_LOADED)
        what = ["--images", str(images)]
    else:
        rows, columns = _count(wish, "rows", 10_000, 10**8), _count(wish, "columns", 100, 10**6)
        _check_product({"rows": rows, "columns": columns}, _MAX_DATA)
        _check_product({"rows": rows, "seeds": seeds}, _MAX_SAMPLES_LOADED)
        _check_product({"batch_size": batch_size, "columns": columns}, _MAX_BATCH)
        what = ["--dataset-size", f"{rows},{columns}"]
    if wish["kind"] != "tensors":
        _check_product({"batch_size": batch_size, "numbers per image": _IMAGE}, _MAX_BATCH)
    return [*what, "--batch-size", str(batch_size), "--seeds", str(seeds)]


def _folder(wish: dict[str, Any]) -> str:
    folder = wish.get("folder")
    if not isinstance(folder, str) or not folder.strip():
        raise ValueError("folder is missing: give the path of the images")
    try:
        path = Path(folder.strip()).expanduser().absolute()
        is_folder = path.is_dir()
    except (OSError, RuntimeError) as error:  # too long, forbidden, or of no such user
        raise ValueError(f"folder {folder[:100]!r} cannot be looked at: {error}") from None
    if not is_folder:
        raise ValueError(f"folder {str(path)!r} does not exist on the machine of the server")
    return str(path)


def _count(wish: dict[str, Any], name: str, usual: int, most: int) -> int:
    value = wish.get(name, usual)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        got = repr(value) if isinstance(value, (int, float, str)) else type(value).__name__
        raise ValueError(f"{name} must be a whole number from 1 to {most:,}, got {got[:100]}")
    return value


def _check_product(counts: dict[str, int], most: int) -> None:
    product = math.prod(counts.values())
    if product > most:
        raise ValueError(
            f"{' x '.join(counts)} must be at most {most:,}, got {product:,}; give less of one of them"
        )


class BenchRun:
    """Runs one benchmark at a time, and keeps the result of the last.

    Args:
        notify: called when the state has changed.

    Attributes:
        state: None before the first benchmark; then its ``command`` and ``state``: ``"running"`` with ``steps``
            (done, all), ``"done"`` with its results and a ``sentence``, ``"failed"`` with an ``error``, or
            ``"stopped"``.
    """

    def __init__(self, notify: Callable[[], Awaitable[None]]) -> None:
        self._notify = notify
        self._task: asyncio.Task[None] | None = None
        self.state: dict[str, Any] | None = None

    @property
    def running(self) -> bool:
        """Whether a benchmark is running."""
        return self._task is not None and not self._task.done()

    def start(self, arguments: list[str]) -> None:
        """Start ``foreload bench`` with these arguments; no other may be running."""
        command = shlex.join(["foreload", "bench", *arguments])
        self.state = {"command": command, "state": "running", "steps": [0, 0]}
        self._task = asyncio.create_task(self._run(command, arguments))

    async def stop(self) -> None:
        """Stop the running benchmark, if there is one."""
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
            await self._notify()

    async def _bench(self, arguments: list[str]) -> dict[str, Any]:
        # Its temporary files, however it ends, are in a folder that is removed.
        with tempfile.TemporaryDirectory(prefix="foreload-bench-", ignore_cleanup_errors=True) as folder:
            results = Path(folder) / "results.json"
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *(*COMMAND, *arguments, "--json", str(results), "--steps"),
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
        """Follow the steps in its output; return the last line."""
        line = ""
        async for read in output:
            line = read.decode(errors="replace").strip()
            if step := re.fullmatch(r"(\d+)/(\d+)", line):
                self.state = {**(self.state or {}), "steps": [int(number) for number in step.groups()]}
                await self._notify()
        return line


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process and its children."""
    for means in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, means)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _STOP_TIMEOUT)
            return
