"""Discovery of the loaders published on this machine, and events for all viewers of the page."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from foreload.cli.serve.seen import LoaderView
from foreload.cli.serve.snapshot import MAX_BYTES, Snapshot, parse
from foreload.export.history import steady_time
from foreload.export.publisher import runtime_folder
from foreload.machine import granted_cores, granted_memory

__all__ = ["LoaderDiscovery"]

# Seconds between two polls of the published loaders.
_POLL_SECONDS = 1.0
# Seconds after which a process that does not answer (it holds the GIL, or is stopped) is shown as silent.
_ANSWER_TIMEOUT = 3.0
_MAX_ENDED = 6  # ended loaders that are still shown
# Seconds between two times that a viewer gets all curves, which older points leave: pages only add to them.
_PAST_SECONDS = 300.0

# The loaders of a process; empty: it is gone; None: it has not answered yet.
Answer = list[Snapshot] | None


class LoaderDiscovery:
    """Reads all published loaders once a second while there are viewers, or when it is asked for its state.

    Events are not queued: a slow viewer skips some, and costs no memory.

    Args:
        also: returns what to send beside the loaders, such as a running benchmark.

    Attributes:
        viewers: number of viewers.
    """

    def __init__(self, also: Callable[[], dict[str, Any]]) -> None:
        self._also = also
        self._views: dict[str, LoaderView] = {}
        self._dropped: set[str] = set()
        self._news = asyncio.Condition()
        self._ended = False
        self._asked: dict[Path, asyncio.Task[Answer]] = {}
        self._reading = asyncio.Lock()
        self._read_at = -_POLL_SECONDS
        self._text = "{}"
        self.viewers = 0

    async def run(self) -> None:
        """Read loaders until cancelled."""
        try:
            while True:
                async with self._news:
                    await self._news.wait_for(lambda: self.viewers > 0)
                began = time.monotonic()
                async with self._reading:
                    await self._read_all()
                await self.notify()
                await asyncio.sleep(_POLL_SECONDS - (time.monotonic() - began))
        finally:
            for task in self._asked.values():
                task.cancel()

    async def state(self) -> str:
        """Return the state as JSON, at most a second old."""
        async with self._reading:
            if time.monotonic() - self._read_at >= _POLL_SECONDS:
                await self._read_all()
                await self.notify()
        return self._text

    async def notify(self) -> None:
        """Send the present state to the viewers."""
        state = {
            "time": steady_time(),
            "machine": {"name": socket.gethostname(), "cores": granted_cores(), "memory": granted_memory()},
            "loaders": [{"id": key, **view.to_dict()} for key, view in self._views.items()],
            "viewers": self.viewers,
            **self._also(),
        }
        self._text = json.dumps(state)
        await self._wake_viewers()

    async def end(self) -> None:
        """Disconnect all viewers."""
        self._ended = True
        await self._wake_viewers()

    async def _wake_viewers(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def events(self) -> AsyncIterator[str]:
        """Yield the server-sent events of one viewer: each new state, and now and then all curves."""
        self.viewers += 1
        try:
            await self._wake_viewers()
            known: set[str] = set()
            told_at, sent = -_PAST_SECONDS, self._text
            while not self._ended:
                sent = await self._newer_than(sent)
                if not known.issuperset(self._views) or time.monotonic() - told_at >= _PAST_SECONDS:
                    known, told_at = set(self._views), time.monotonic()
                    yield f"retry: 2000\nevent: past\ndata: {self._past()}\n\n"
                yield f"data: {sent}\n\n"
        finally:
            self.viewers -= 1

    def _past(self) -> str:
        return json.dumps({key: [point._asdict() for point in view.points()] for key, view in self._views.items()})

    async def _newer_than(self, sent: str) -> str:
        async with self._news:
            await self._news.wait_for(lambda: self._ended or self._text is not sent)
        return self._text

    async def _read_all(self) -> None:
        try:
            runtime = runtime_folder()
            sockets, written = sorted(runtime.glob("*.sock")), sorted(runtime.glob("*.json"))
        except OSError:  # removed since the server began, and made again by somebody else
            runtime, sockets, written = Path(), [], []
        answers = await self._ask_all(sockets)
        self._read_at = time.monotonic()
        found = {
            f"{path.stem}.{about['number']}": about for path, answer in answers.items() for about in answer or ()
        }
        for key, about in found.items():
            if key not in self._views:
                self._views[key] = LoaderView(runtime / key)
            self._views[key].update(about)
        silent = {path.stem for path, answer in answers.items() if answer is None}
        self._find([path.with_suffix("") for path in written if path.stem not in found])
        self._miss([key for key in self._views if key not in found], silent)

    def _find(self, written: list[Path]) -> None:
        """Find loaders that have ended, or do not answer, by the files that they have written."""
        for path in written:
            view = LoaderView(path)
            if path.name not in self._views and path.name not in self._dropped and view.read_last():
                self._views[path.name] = view

    async def _ask_all(self, sockets: list[Path]) -> dict[Path, Answer]:
        """Request snapshots from all processes; slow ones do not hold up the others."""
        for path in sockets:
            if path not in self._asked:
                self._asked[path] = asyncio.create_task(_ask(path))
        if self._asked:
            await asyncio.wait(self._asked.values(), timeout=_POLL_SECONDS / 2)
        waiting = {path: None for path, task in self._asked.items() if not task.done()}
        answered = [path for path in self._asked if path not in waiting]
        return waiting | {path: self._asked.pop(path).result() for path in answered}

    def _miss(self, missing: list[str], silent: set[str]) -> None:
        """Mark loaders without a snapshot as ended or silent, and drop those that ended first."""
        for key in missing:
            view = self._views[key]
            if key.rpartition(".")[0] not in silent:
                if view.state != "ended":
                    view.read_last()
                view.state = "ended"
            elif steady_time() - view.until > _ANSWER_TIMEOUT:
                view.state = "silent"
        ended = [key for key in missing if self._views[key].state == "ended"]
        for key in sorted(ended, key=lambda key: self._views[key].until)[:-_MAX_ENDED]:
            del self._views[key]
            self._dropped.add(key)


async def _ask(path: Path) -> Answer:
    writer = None
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(path)
            text = bytearray()
            while part := await reader.read(1 << 20):
                text += part
                if len(text) > MAX_BYTES:
                    return []
    except (ConnectionRefusedError, FileNotFoundError):
        with suppress(OSError):
            path.unlink()  # the process was killed before it could
        return []
    except TimeoutError:
        return None
    except OSError as error:
        return None if error.errno == errno.EAGAIN else []  # EAGAIN: its queue of connections is full
    finally:
        if writer is not None:
            writer.close()
    return parse(bytes(text))
