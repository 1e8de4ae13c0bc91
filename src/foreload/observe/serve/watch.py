"""Looks at the loaders that are published on this machine, and keeps what was seen."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from foreload.machine import granted_cores, granted_memory
from foreload.observe.publish import FORMAT, runtime_folder
from foreload.observe.verdict import verdict

__all__ = ["Watch"]

# Seconds between two looks: while somebody watches, and otherwise, so that the past is there when somebody comes.
_EVERY = 1.0
_UNWATCHED = 10.0
# A process that holds the GIL for longer is shown as silent.
_PATIENCE = 3.0
_POINTS = 900
_ENDED = 6  # loaders that have ended and are still shown


class Point(NamedTuple):
    """What a loader did around one moment; None where there is nothing to tell."""

    time: float  # seconds since the epoch of Unix
    samples_per_second: float | None
    wait_share: float | None
    hit_rate: float | None
    memory: float | None  # bytes
    read: float | None  # bytes per second


class _Totals(NamedTuple):
    """What a loader counts, at one moment."""

    time: float
    samples: float
    waited: float
    seconds: float
    hits: float
    requests: float
    read: float

    @classmethod
    def of(cls, when: float, stats: dict[str, Any]) -> _Totals:
        cache = stats.get("cache") or {}
        hits = cache.get("hits") or 0
        return cls(
            when,
            stats.get("samples") or 0,
            stats.get("wait_seconds") or 0,
            stats.get("seconds") or 0,
            hits,
            hits + (cache.get("misses") or 0),
            stats.get("bytes_read") or 0,
        )


class _Seen:
    """One loader, and what was seen of it."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.about = about
        self.state = "running"
        self.until = time.time()
        self.points: deque[Point] = deque(maxlen=_POINTS)
        self._totals: deque[_Totals] = deque(maxlen=120)
        self._verdict: dict[str, Any] | None = None

    def saw(self, about: dict[str, Any]) -> None:
        """Take in what the loader tells now; totals become rates."""
        self.about, self.state, self.until = about, "running", time.time()
        stats = about.get("stats")
        if stats is None:
            return
        now = _Totals.of(self.until, stats)
        # Long enough for several batches, or slow ones would make a saw of the curve.
        window = max(2.0, 4 * (stats.get("batch_seconds") or {}).get("median", 0.0))
        while len(self._totals) > 1 and now.time - self._totals[1].time >= window:
            self._totals.popleft()
        if self._totals:
            past = self._totals[0]
            memory = stats.get("memory") or {}
            self.points.append(
                Point(
                    round(now.time, 2),
                    _share(now.samples - past.samples, now.time - past.time),
                    _share(now.waited - past.waited, now.seconds - past.seconds),
                    _share(now.hits - past.hits, now.requests - past.requests),
                    memory.get("tree_bytes"),
                    _share(now.read - past.read, now.time - past.time),
                )
            )
        self._totals.append(now)
        self._verdict = _judge(stats)

    def tell(self) -> dict[str, Any]:
        """Give what the page shows."""
        return {
            **self.about,
            "state": self.state,
            "until": self.until,
            "verdict": self._verdict,
            "point": self.points[-1] if self.points else None,
        }


class Watch:
    """Looks at everything published once a second, and tells all viewers.

    Viewers are not queued for: one that is slow misses looks, not memory.

    Args:
        also: what to tell beside the loaders, such as a benchmark that runs.
    """

    def __init__(self, also: Callable[[], dict[str, Any]]) -> None:
        self._also = also
        self._seen: dict[str, _Seen] = {}
        self._viewers = 0
        self._came = asyncio.Event()
        self._news = asyncio.Condition()
        self._ended = False
        self._asked: dict[Path, asyncio.Task[dict[str, Any] | None]] = {}
        self.text = "{}"

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                self._came.clear()
                await self._look()
                await self.tell()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._came.wait(), _EVERY if self._viewers else _UNWATCHED)
        finally:
            for task in self._asked.values():
                task.cancel()

    async def tell(self) -> None:
        """Tell the viewers how things stand."""
        state = {
            "time": time.time(),
            "machine": {"name": socket.gethostname(), "cores": granted_cores(), "memory": granted_memory()},
            "loaders": [{"id": key, **seen.tell()} for key, seen in self._seen.items()],
            **self._also(),
        }
        self.text = json.dumps(state)
        async with self._news:
            self._news.notify_all()

    async def end(self) -> None:
        """Let all viewers go."""
        self._ended = True
        async with self._news:
            self._news.notify_all()

    @contextmanager
    def _viewing(self) -> Iterator[None]:
        self._viewers += 1
        self._came.set()
        try:
            yield
        finally:
            self._viewers -= 1

    @property
    def viewers(self) -> int:
        """How many are watching."""
        return self._viewers

    async def events(self) -> AsyncIterator[str]:
        """Give the events of one viewer (server-sent events): the past, then how things stand, again and again."""
        with self._viewing():
            past = {key: list(seen.points) for key, seen in self._seen.items()}
            yield f"retry: 2000\nevent: past\ndata: {json.dumps(past)}\n\n"
            while not self._ended:
                told = self.text
                yield f"data: {told}\n\n"
                async with self._news:
                    await self._news.wait_for(lambda: self._ended or self.text is not told)

    async def _look(self) -> None:
        try:
            sockets = sorted(runtime_folder().glob("*.sock"))
        except OSError:
            sockets = []
        answers = await self._ask_all(sockets)
        found: dict[str, dict[str, Any]] = {}
        for path, answer in answers.items():
            for about in (answer or {}).get("loaders", ()):
                told = {key: answer[key] for key in ("pid", "script", "rank")} if answer else {}
                found[f"{path.stem}.{about['number']}"] = {**told, **about}
        for key, about in found.items():
            self._seen.setdefault(key, _Seen(about)).saw(about)
        self._miss({key for key in self._seen if key not in found}, {path.stem for path, it in answers.items() if it is None})

    async def _ask_all(self, sockets: list[Path]) -> dict[Path, dict[str, Any] | None]:
        """Ask everybody; None for those who have not answered yet, who do not hold up the others."""
        for path in sockets:
            if path not in self._asked:
                self._asked[path] = asyncio.create_task(_ask(path))
        if self._asked:
            await asyncio.wait(self._asked.values(), timeout=_EVERY / 2)
        answered = [path for path, task in self._asked.items() if task.done()]
        return {path: None for path in self._asked} | {path: self._asked.pop(path).result() for path in answered}

    def _miss(self, missing: set[str], silent: set[str]) -> None:
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


async def _ask(path: Path) -> dict[str, Any] | None:
    """Give what the process at a socket tells; empty where it is gone; None where it does not answer."""
    writer = None
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_unix_connection(path)
            text = await reader.read()
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)  # killed, it could not do so itself
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


def _judge(stats: dict[str, Any]) -> dict[str, Any] | None:
    try:
        found = verdict(stats)  # type: ignore[arg-type]
    except (KeyError, TypeError, ZeroDivisionError):  # of another version of foreload
        return None
    return {
        "kind": found.kind,
        "sentence": found.sentence,
        "evidence": list(found.evidence),
        "advice": [{"change": advice.change, "gain": advice.gain} for advice in found.advice],
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
