"""Looks at the loaders that are published on this machine while somebody watches, and tells all viewers."""

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

from foreload.cli.serve.seen import Seen
from foreload.export.publisher import FORMAT, runtime_folder
from foreload.machine import granted_cores, granted_memory

__all__ = ["LoaderDiscovery"]

# Seconds between two looks.
_EVERY = 1.0
# A process that does not answer for longer, since it holds the GIL or is stopped, is shown as silent.
_PATIENCE = 3.0
_ENDED = 6  # loaders that have ended and are still shown

# What a process tells; empty: it is gone; None: it has not answered yet.
Answer = dict[str, Any] | None


class LoaderDiscovery:
    """Looks at everything published once a second while somebody watches.

    Viewers are not queued for: one that is slow misses looks, not memory.

    Args:
        also: what to tell beside the loaders, such as a benchmark that runs.

    Attributes:
        viewers: how many are watching.
        text: what they were told last, as JSON.
    """

    def __init__(self, also: Callable[[], dict[str, Any]]) -> None:
        self._also = also
        self._seen: dict[str, Seen] = {}
        self._news = asyncio.Condition()
        self._ended = False
        self._asked: dict[Path, asyncio.Task[Answer]] = {}
        self.viewers = 0
        self.text = "{}"

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                async with self._news:
                    await self._news.wait_for(lambda: self.viewers > 0)
                began = time.monotonic()
                await self._look()
                await self.tell()
                await asyncio.sleep(_EVERY - (time.monotonic() - began))
        finally:
            for task in self._asked.values():
                task.cancel()

    async def tell(self) -> None:
        """Tell the viewers how things stand."""
        state = {
            "time": time.time(),
            "machine": {"name": socket.gethostname(), "cores": granted_cores(), "memory": granted_memory()},
            "loaders": [{"id": key, **seen.tell()} for key, seen in self._seen.items()],
            "viewers": self.viewers,
            **self._also(),
        }
        self.text = json.dumps(state)
        await self._notify()

    async def end(self) -> None:
        """Let all viewers go."""
        self._ended = True
        await self._notify()

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def events(self) -> AsyncIterator[str]:
        """Give the events of one viewer (server-sent events): the past, then how things stand, again and again."""
        self.viewers += 1
        try:
            await self._notify()
            past = {key: [point._asdict() for point in seen.points] for key, seen in self._seen.items()}
            yield f"retry: 2000\nevent: past\ndata: {json.dumps(past)}\n\n"
            told = self.text
            while not self._ended:
                told = await self._newer_than(told)
                yield f"data: {told}\n\n"
        finally:
            self.viewers -= 1

    async def _newer_than(self, told: str) -> str:
        async with self._news:
            await self._news.wait_for(lambda: self._ended or self.text is not told)
        return self.text

    async def _look(self) -> None:
        try:
            sockets = sorted(runtime_folder().glob("*.sock"))
        except OSError:  # it was there when the server began
            sockets = []
        answers = await self._ask_all(sockets)
        found: dict[str, dict[str, Any]] = {}
        for path, answer in answers.items():
            for about in (answer or {}).get("loaders", ()):
                process = {key: answer[key] for key in ("pid", "script", "rank")} if answer else {}
                found[f"{path.stem}.{about['number']}"] = {**process, **about}
        for key, about in found.items():
            self._seen.setdefault(key, Seen()).saw(about)
        silent = {path.stem for path, answer in answers.items() if answer is None}
        self._miss([key for key in self._seen if key not in found], silent)

    async def _ask_all(self, sockets: list[Path]) -> dict[Path, Answer]:
        """Ask everybody; those who do not answer in time do not hold up the others."""
        for path in sockets:
            if path not in self._asked:
                self._asked[path] = asyncio.create_task(_ask(path))
        if self._asked:
            await asyncio.wait(self._asked.values(), timeout=_EVERY / 2)
        waiting = {path: None for path, task in self._asked.items() if not task.done()}
        answered = [path for path in self._asked if path not in waiting]
        return waiting | {path: self._asked.pop(path).result() for path in answered}

    def _miss(self, missing: list[str], silent: set[str]) -> None:
        """Note which loaders were not told of, and forget those that ended first."""
        for key in missing:
            seen = self._seen[key]
            if key.partition(".")[0] not in silent:
                seen.state = "ended"
            elif time.time() - seen.until > _PATIENCE:
                seen.state = "silent"
        ended = [key for key in missing if self._seen[key].state == "ended"]
        for key in sorted(ended, key=lambda key: self._seen[key].until)[:-_ENDED]:
            del self._seen[key]


async def _ask(path: Path) -> Answer:
    writer = None
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_unix_connection(path)
            text = await reader.read()
    except (ConnectionRefusedError, FileNotFoundError):
        with suppress(OSError):
            path.unlink()  # killed, it could not do so itself
        return {}
    except TimeoutError:
        return None
    except OSError as error:
        return None if error.errno == errno.EAGAIN else {}  # EAGAIN: too many wait for it already
    finally:
        if writer is not None:
            writer.close()
    try:
        answer: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)  # browsers know no NaN
    except ValueError:  # it ended while it spoke
        return {}
    return answer if answer.get("foreload") == FORMAT else {}
