"""One loader on the page: its latest figures, its history, and a verdict with advice to copy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foreload.cli.serve.argument import argument
from foreload.cli.serve.curves import Point, points, progress
from foreload.cli.serve.snapshot import Snapshot, parse
from foreload.export.history import Totals, checked, read, read_bytes, steady_time, thin
from foreload.report.report import Report
from foreload.report.stages import stage_times

__all__ = ["LoaderView"]

# Seconds between two moments after which the process may have written others to its file.
_MISSED_SECONDS = 3.0

# Moments that are kept before they are thinned.
_MAX_MOMENTS = 3000


class LoaderView:
    """A loader as the page shows it.

    Args:
        path: the path of its files without a suffix, as its process writes them; None: it has none.

    Attributes:
        state: ``"running"``, ``"silent"`` (it does not answer) or ``"ended"``.
        until: the Unix time of its last snapshot, in seconds.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.state = "running"
        self.until = steady_time()
        self._path = path
        self._about: Snapshot = {}
        self._moments: list[Totals] = []
        self._verdict: dict[str, Any] | None = None

    def update(self, about: Snapshot) -> None:
        """Take in a snapshot of the loader."""
        self.state, self.until = "running", steady_time()
        self._show(about)

    def read_last(self) -> bool:
        """Take in what the process wrote last, if that is news; return whether any loader is known."""
        path = self._path
        about = [] if path is None else parse(read_bytes(path.with_name(f"{path.name}.json")))
        moment = _moment(about[0]) if len(about) == 1 else None
        if moment is not None and (not self._moments or moment.time > self._moments[-1].time):
            self.until = moment.time
            self._show(about[0])
        return bool(self._about)

    def _show(self, about: Snapshot) -> None:
        self._about = about
        moment = _moment(about)
        if moment is not None:
            self._add(moment)
        stats = about.get("stats")
        if stats is not None:
            self._verdict = _judge(stats)

    def _add(self, moment: Totals) -> None:
        last = self._moments[-1].time if self._moments else 0.0
        if moment.time > last + _MISSED_SECONDS and self._path is not None:
            # Nobody was looking, or it did not answer; its process has gone on recording.
            written = read(self._path.with_name(f"{self._path.name}.history"))
            self._moments = written or self._moments
            last = self._moments[-1].time if self._moments else 0.0
        if moment.time > last:
            self._moments.append(moment)
        if len(self._moments) > _MAX_MOMENTS:
            self._moments = thin(self._moments, moment.time)[-_MAX_MOMENTS // 2 :]

    @property
    def _batch_seconds(self) -> float:
        stats: Mapping[str, Any] = self._about.get("stats") or {}
        times = stats.get("batch_seconds") or {}
        return float(times.get("median") or 0.0)

    def points(self) -> list[Point]:
        """Return the curves of its whole life."""
        return points(self._moments, self._batch_seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return what the page shows, as plain values."""
        last = points(self._moments, self._batch_seconds, max(0, len(self._moments) - 1))
        stats: Mapping[str, Any] = self._about.get("stats") or {}
        about = {name: value for name, value in self._about.items() if name != "moment"}
        return {
            **about,
            "state": self.state,
            "until": self.until,
            "since": self._moments[0].time if self._moments else None,
            "epoch": progress(self._moments, stats.get("epoch"), self._batch_seconds),
            "verdict": self._verdict,
            "stages": _stages(stats),
            "point": last[0]._asdict() if last else None,
        }


def _moment(about: Snapshot) -> Totals | None:
    values: Mapping[str, Any] = about.get("moment") or {}
    return checked(Totals(**values)) if values.keys() == set(Totals._fields) else None


def _stages(stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the table of stages, in shares of the loop's time as in the verdict."""
    try:
        rows = [time._asdict() for time in stage_times(stats)]
        json.dumps(rows, allow_nan=False)
    except Exception:  # as in the verdict
        return []
    return rows


def _judge(stats: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = Report(stats).to_dict()["verdict"]
        for advice in found["advice"]:
            advice["copy"] = argument(advice["change"])
        json.dumps(found, allow_nan=False)
    except Exception:  # figures of another version of foreload, or that cannot be, may raise anything
        return None
    return found
