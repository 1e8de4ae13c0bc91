"""The history of one loader on the page: rates from its totals, and a verdict."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from foreload.cli.serve.snapshot import Snapshot
from foreload.report.report import Report

__all__ = ["POINTS", "LoaderView", "Point"]

# Points kept of a loader: a quarter of an hour with a viewer.
POINTS = 900


class Point(NamedTuple):
    """Rates of a loader around one moment; None if unknown."""

    time: float  # Unix time, in seconds
    samples_per_second: float | None
    wait_share: float | None
    hit_rate: float | None
    memory: float | None  # bytes
    read: float | None  # bytes per second
    busy: dict[str, float] | None  # workers in each stage, on average


class _Totals(NamedTuple):
    """Totals of a loader at one moment."""

    time: float
    samples: float
    waited: float
    seconds: float
    hits: float
    requests: float
    read: float
    stages: dict[str, float]  # seconds

    @classmethod
    def of(cls, when: float, stats: Mapping[str, Any]) -> _Totals:
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
            {
                name: stage.get("seconds") or 0
                for name, stage in (stats.get("stages") or {}).items()
                if name != "wait"
            },
        )


class LoaderView:
    """A loader as the page shows it.

    Attributes:
        state: ``"running"``, ``"silent"`` (it does not answer) or ``"ended"``.
        until: the Unix time of its last snapshot, in seconds.
        points: its history.
    """

    def __init__(self) -> None:
        self.state = "running"
        self.until = time.time()
        self.points: deque[Point] = deque(maxlen=POINTS)
        self._about: Snapshot = {}
        self._totals: deque[_Totals] = deque(maxlen=120)
        self._verdict: dict[str, Any] | None = None

    def update(self, about: Snapshot) -> None:
        """Take in a snapshot of the loader."""
        self._about, self.state, self.until = about, "running", time.time()
        stats = about.get("stats")
        if stats is None:
            return
        now = _Totals.of(self.until, stats)
        # Long enough for several batches, or slow ones would make the curve jagged.
        batch_seconds: Mapping[str, Any] = stats.get("batch_seconds") or {}
        window = max(2.0, 4 * batch_seconds.get("median", 0.0))
        while len(self._totals) > 1 and now.time - self._totals[1].time >= window:
            self._totals.popleft()
        if self._totals:
            memory: Mapping[str, Any] = stats.get("memory") or {}
            self.points.append(_point(self._totals[0], now, memory.get("tree_bytes")))
        self._totals.append(now)
        self._verdict = _judge(stats)

    def to_dict(self) -> dict[str, Any]:
        """Return what the page shows, as plain values."""
        return {
            **self._about,
            "state": self.state,
            "until": self.until,
            "verdict": self._verdict,
            "point": self.points[-1]._asdict() if self.points else None,
        }


def _point(past: _Totals, now: _Totals, memory: float | None) -> Point:
    seconds = now.time - past.time
    return Point(
        round(now.time, 2),
        _share(now.samples - past.samples, seconds),
        _share(now.waited - past.waited, now.seconds - past.seconds),
        _share(now.hits - past.hits, now.requests - past.requests),
        memory,
        _share(now.read - past.read, seconds),
        {
            name: round(max(0.0, spent - past.stages.get(name, 0.0)) / seconds, 3)
            for name, spent in now.stages.items()
            if spent and seconds > 0
        },
    )


def _share(part: float, whole: float) -> float | None:
    share = part / whole if whole > 0 else math.inf
    return share if math.isfinite(share) else None


def _judge(stats: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = Report(stats).to_dict()["verdict"]
        json.dumps(found, allow_nan=False)
    except Exception:  # figures of another version of foreload, or that cannot be, may raise anything
        return None
    return found
