"""The curves of a loader on the page: rates between the moments of its history, and the end of its epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from foreload.export.history import Totals

__all__ = ["Point", "points", "progress"]

# Seconds between the moments of a rate: long enough for several batches, or slow ones would make the curve jagged.
_MIN_WINDOW = 2.0
_WINDOW_BATCHES = 4
_MAX_WINDOW = 600.0

# Less of the time between two moments that was observed is a gap.
_MIN_OBSERVED = 0.5

# The pace of an epoch is that of its last minute, or of this share of it if that is longer.
_PACE_SECONDS = 60.0
_PACE_SHARE = 0.2

# Seconds without a batch, and batch times, after which the loop is said to pause.
_PAUSE_SECONDS = 10.0
_PAUSE_BATCHES = 10


class Point(NamedTuple):
    """Rates of a loader around one moment; None if unknown.

    Attributes:
        time: Unix time, in seconds.
        batches: so far.
        gap: whether nothing is observed between it and the point before it: no epoch ran, or the process, or the
            machine, stood still.
        samples_per_second, wait_share, hit_rate, read: rates; ``read`` in bytes per second.
        memory: bytes.
        busy: workers in each stage, on average.
    """

    time: float
    batches: float
    gap: bool
    samples_per_second: float | None
    wait_share: float | None
    hit_rate: float | None
    memory: float | None
    read: float | None
    busy: dict[str, float] | None


def points(moments: Sequence[Totals], batch_seconds: float, begin: int = 0) -> list[Point]:
    """Return the curves through the moments from number ``begin`` on.

    Args:
        moments: the history.
        batch_seconds: how long a batch takes.
        begin: the first moment to return a point for.
    """
    window = min(_MAX_WINDOW, max(_MIN_WINDOW, _WINDOW_BATCHES * batch_seconds))
    found = [_point(moments, place, window) for place in range(begin, len(moments))]
    for place in range(len(found) - 1):
        now, after = found[place], found[place + 1]
        if now.samples_per_second is None and not after.gap:
            # Nothing is known before the first moment, but from it to the second.
            found[place] = after._replace(time=now.time, batches=now.batches, gap=now.gap, memory=now.memory)
    return found


def _is_gap(before: Totals, after: Totals) -> bool:
    return after.observed - before.observed < _MIN_OBSERVED * (after.time - before.time)


def _point(moments: Sequence[Totals], place: int, window: float) -> Point:
    now = moments[place]
    gap = place > 0 and _is_gap(moments[place - 1], now)
    first = place
    while (
        first > 0
        and (first == place or now.time - moments[first].time < window)
        and not _is_gap(moments[first - 1], moments[first])
    ):
        first -= 1
    if first == place:
        return Point(now.time, now.batches, gap, None, None, None, now.memory, None, None)
    past = moments[first]
    observed = now.observed - past.observed
    looped = now.seconds - past.seconds
    # A batch that came after the process had stood still took longer than is observed: its wait is unknown.
    is_known = looped <= 2 * observed
    return Point(
        now.time,
        now.batches,
        gap,
        _share(now.samples - past.samples, observed),
        _share(now.waited - past.waited, looped) if is_known else None,
        _share(now.hits - past.hits, now.requests - past.requests),
        now.memory,
        _share(now.read - past.read, observed),
        {
            name: round(_share(spent - past.stages.get(name, 0.0), observed) or 0.0, 3)
            for name, spent in now.stages.items()
        },
    )


def _share(part: float, whole: float) -> float | None:
    share = part / whole if whole > 0 and part >= 0 else math.inf
    return share if math.isfinite(share) else None


def progress(
    moments: Sequence[Totals], epoch: dict[str, Any] | None, batch_seconds: float
) -> dict[str, Any] | None:
    """Return what the page says of the latest epoch.

    Args:
        moments: the history.
        epoch: ``stats()["epoch"]``.
        batch_seconds: how long a batch takes.

    Returns:
        The same, with ``seconds_left`` at the present pace (None: unknown), and ``pause``: the seconds without a
        batch, if they are many.
    """
    if epoch is None or not {"number", "batches", "running"} <= epoch.keys():
        return None
    found = {"length": None, "expected": None, **epoch, "seconds_left": None, "pause": None}
    if not epoch["running"] or not moments or moments[-1].epoch is None:
        return found
    now = moments[-1]
    mine = [moment for moment in moments if moment.epoch == now.epoch and moment.over <= now.over]
    end = next(moment for moment in mine if moment.over == now.over).observed  # when the last batch came
    if now.observed - end > max(_PAUSE_SECONDS, _PAUSE_BATCHES * batch_seconds):
        found["pause"] = now.observed - end
    else:
        end = now.observed
    length = found["length"] if found["length"] is not None else found["expected"]
    window = max(_PACE_SECONDS, _PACE_SHARE * (end - mine[0].observed))
    past = next((moment for moment in mine if end - moment.observed <= window), now)
    pace = _share(now.over - past.over, end - past.observed)
    if length is not None and length >= now.over and pace:
        found["seconds_left"] = (length - now.over) / pace
    return found
