"""The history of a published loader: its totals over time, in a file that outlives the process.

The file has one line per moment, in JSON. The older a moment is, the fewer of its neighbours are kept, so a file
of a week is hardly longer than one of a day.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from foreload.record.stats import Stats

__all__ = ["MAX_BYTES", "History", "Totals", "checked", "read", "read_bytes", "replace", "steady_time", "thin"]

# The longest file that is read.
MAX_BYTES = 8 << 20

# Moments are kept at a distance of this share of their age.
_DISTANCE = 1 / 60

# Lines that are added before a file is thinned.
_LINES_BETWEEN = 500

# Larger figures would overflow in floating point.
_MAX_FIGURE = 1 << 63
_MAX_STAGES = 64
_MAX_MOMENTS = 5000


class Totals(NamedTuple):
    """Totals of a loader at one moment. What happened between two moments is the difference.

    Attributes:
        time: Unix time, in seconds.
        observed: seconds so far in which an epoch ran, and the process too: less than the time that went by if
            it was stopped, or the machine suspended, or between epochs.
        batches, samples, waited, seconds, read: as in ``stats()``; times in seconds, and bytes.
        hits, requests: of the cache.
        memory: bytes at this moment; None if unknown.
        epoch: the number of the epoch that is running; None: none is.
        over: the batches of that epoch that are over.
        stages: the seconds of each stage.
    """

    time: float
    observed: float = 0.0
    batches: float = 0.0
    samples: float = 0.0
    waited: float = 0.0
    seconds: float = 0.0
    hits: float = 0.0
    requests: float = 0.0
    read: float = 0.0
    memory: float | None = None
    epoch: int | None = None
    over: int = 0
    stages: dict[str, float] = {}  # noqa: RUF012 - never changed

    @classmethod
    def of(cls, stats: Stats | Mapping[str, Any], now: float, before: Totals | None, longest: float) -> Totals:
        """Return the totals in a loader's ``stats()``.

        Args:
            stats: the figures.
            now: the time.
            before: the totals of the moment before; None: this is the first.
            longest: the seconds after which something must have kept the process from recording.
        """
        cache = stats["cache"] or {}
        epoch = stats.get("epoch")
        running = epoch is not None and epoch["running"]
        totals = cls(
            round(now, 3),
            batches=stats["batches"],
            samples=stats["samples"],
            waited=stats["wait_seconds"],
            seconds=stats["seconds"],
            hits=cache.get("hits", 0),
            requests=cache.get("hits", 0) + cache.get("misses", 0),
            read=stats["bytes_read"],
            memory=stats["memory"]["tree_bytes"],
            epoch=epoch["number"] if epoch is not None and running else None,
            over=epoch["batches"] if epoch is not None else 0,
            stages={
                name: round(stage["seconds"], 4)
                for name, stage in stats["stages"].items()
                if stage["seconds"] and name != "wait"
            },
        )
        if before is None:
            return totals
        age = epoch["seconds"] if epoch is not None and running else 0.0
        return totals._replace(observed=round(before.observed + _observed(before, totals, age, longest), 3))


def _observed(before: Totals, now: Totals, age: float, longest: float) -> float:
    """Return the seconds between two moments in which an epoch ran; the present one is ``age`` seconds old."""
    elapsed = max(0.0, now.time - before.time)
    if elapsed > longest:
        return 0.0
    if now.epoch is not None and now.epoch == before.epoch:
        return elapsed
    return min(elapsed, max(age, now.seconds - before.seconds))


def thin(moments: Sequence[Totals], now: float) -> list[Totals]:
    """Return fewer moments: the older, the fewer, with the first and the last.

    >>> every_second = [Totals(float(second)) for second in range(3601)]
    >>> kept = thin(every_second, 3600.0)
    >>> len(kept), [moment.time for moment in kept[:2]], [moment.time for moment in kept[-2:]]
    (341, [0.0, 59.0], [3599.0, 3600.0])
    """
    kept = list(moments[:1])
    for moment, after in itertools.pairwise(moments[1:]):
        # A pause longer than the distance is still one: neither of its ends is left out.
        if after.time - kept[-1].time > _DISTANCE * (now - moment.time):
            kept.append(moment)
    return kept + list(moments[1:][-1:])


_start = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def steady_time() -> float:
    """Return the Unix time, without corrections since the program began, which would look like pauses."""
    return _start + time.clock_gettime(time.CLOCK_BOOTTIME)


class History:
    """The file of a loader's history.

    Args:
        path: the file; it is made with the first moment.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = 0

    def add(self, moment: Totals) -> None:
        """Append a moment; now and then, leave out older ones.

        Raises:
            OSError: the file cannot be written.
        """
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "wb") as file:
            file.write(_line(moment))
        self._lines += 1
        if self._lines >= _LINES_BETWEEN:
            self._lines = 0
            replace(self._path, b"".join(map(_line, thin(read(self._path), moment.time))))


def read(path: Path) -> list[Totals]:
    """Return the moments in a file, from the first to the last; lines that are none are passed over."""
    moments: list[Totals] = []
    for line in read_bytes(path).splitlines():
        moment = _moment(line)
        if moment is not None and (not moments or moment.time > moments[-1].time):
            moments.append(moment)
    return moments[-_MAX_MOMENTS:]


def _line(moment: Totals) -> bytes:
    return json.dumps(moment, separators=(",", ":")).encode() + b"\n"


def _moment(line: bytes) -> Totals | None:
    """Return the moment in a line of a file; None if there is none, or half of one.

    >>> _moment(_line(Totals(5.0, stages={"read": 1.5}))) == Totals(5.0, stages={"read": 1.5})
    True
    >>> _moment(b"[5.0, 1"), _moment(b"[]"), _moment(_line(Totals(float("inf"))))
    (None, None, None)
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, list) or len(values) != len(Totals._fields):
        return None
    return checked(Totals(*values))


def checked(moment: Totals) -> Totals | None:
    """Return a moment of unknown origin if all its values are such as they should be; else None."""
    figures = [*moment[: Totals._fields.index("memory")], moment.over]
    figures += [figure for figure in (moment.memory, moment.epoch) if figure is not None]
    if not isinstance(moment.stages, dict) or len(moment.stages) > _MAX_STAGES:
        return None
    return moment if all(map(_is_figure, [*figures, *moment.stages.values()])) else None


def _is_figure(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MAX_FIGURE


def read_bytes(path: Path) -> bytes:
    """Return the content of a file of no more than ``MAX_BYTES``; nothing if it is unreadable, or not a file."""
    with suppress(OSError):
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # opening a pipe would wait
        with os.fdopen(number, "rb") as file:
            if stat.S_ISREG(os.fstat(number).st_mode):
                return file.read(MAX_BYTES)
    return b""


def replace(path: Path, content: bytes) -> None:
    """Replace a file by one with this content, so that nobody reads half of it.

    Raises:
        OSError: it cannot be written.
    """
    new = path.with_name(f"{path.name}.new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    new.replace(path)
