"""The time by which samples take longer in worker threads while the loop works than while it waits for them.

A sample that waits for a disk or a server takes as long either way. One that needs the interpreter's lock time and
again, as after each call of NumPy, gets it late while the loop runs Python code, and at once while the loop waits.

Samples that take longest because they come first in their batch look the same, since the loop asks for a batch
when it begins to work. So the figure says nothing unless threads are known to get the lock late.
"""

from __future__ import annotations

import numpy as np

from foreload.checks import Array
from foreload.record.spans import Spans, Stage

__all__ = ["slowed_seconds"]

_STAGES = (Stage.sample, Stage.transform)

# The fewest samples in either state that say anything.
_MIN_SAMPLES = 8

# At more than this share of the pace, what else the loop does to the cores and caches may be the reason.
_MAX_PACE = 0.5


def slowed_seconds(spans: Spans) -> float:
    """Return the seconds that the user's code took longer in all threads, while the loop worked, than otherwise.

    It is told by the spans that are still in the rings, as if the others were like them; 0 if they do not tell, or
    if the difference is small.

    >>> spans = Spans()
    >>> (loop,), (worker,) = spans.take("consumer"), spans.take("thread")
    >>> for start in range(0, 100_000, 1_000):  # the loop waits for 400 ns, and works for 600
    ...     loop.native.add(Stage.wait, start, start + 400)
    ...     for begin in (0, 100, 200, 300): worker.native.add(Stage.sample, start + begin, start + begin + 100)
    ...     worker.native.add(Stage.sample, start + 400, start + 1_000)
    >>> round(slowed_seconds(spans), 6)  # 500 ns of 600, a hundred times
    5e-05
    """
    totals, recent = spans.totals(), spans.recent()  # by lanes, of which there may be more meanwhile
    recent = recent[recent["lane"] < len(totals)]
    kinds = np.array([lane.kind == "thread" for lane in spans.lanes[: len(totals)]], bool)
    is_loaded = np.isin(recent["stage"], _STAGES) & kinds[recent["lane"]]
    begin, end, waits = _within(recent, is_loaded)
    took = end - begin
    if not len(took):
        return 0.0
    waited = _time_in(waits, end) - _time_in(waits, begin)
    paces = []
    for seconds in (took - waited, waited):
        samples = (seconds / took).sum()
        if samples < _MIN_SAMPLES:
            return 0.0
        paces.append(samples / seconds.sum())
    pace = paces[0] / paces[1]
    if pace > _MAX_PACE:
        return 0.0
    share = float((took - waited).sum() * (1 - pace) / took.sum())
    return share * float(totals["wall_ns"][kinds][:, _STAGES].sum()) * 1e-9


def _within(recent: Array, is_loaded: Array) -> tuple[Array, Array, Array]:
    """Return when loading began and ended, in the time whose waits are known too, and these waits."""
    waits = recent[recent["stage"] == Stage.wait]
    if not len(waits):
        return np.zeros(0), np.zeros(0), np.zeros((0, 2))
    first = int(waits["begin"].min())
    loaded = recent[is_loaded & (recent["begin"] >= first) & (recent["end"] <= waits["end"].max())]
    loaded = loaded[loaded["end"] > loaded["begin"]]
    times = [(loaded[name] - first).astype(np.float64) for name in ("begin", "end")]
    return times[0], times[1], np.stack([(waits[name] - first).astype(np.float64) for name in ("begin", "end")], 1)


def _time_in(waits: Array, until: Array) -> Array:
    """Return how much of the time until each of some moments the loop has waited."""
    # (Of several loops at once, one of which waits while another one works, the sum may be too large.)
    edges = np.concatenate([waits[:, 0], waits[:, 1]])
    steps = np.concatenate([np.ones(len(waits)), -np.ones(len(waits))])
    order = np.argsort(edges, kind="stable")
    edges, is_waiting = edges[order], np.minimum(1.0, np.cumsum(steps[order]))
    sums = np.concatenate([[0.0], np.cumsum(np.diff(edges) * is_waiting[:-1])])
    found: Array = np.interp(until, edges, sums)
    return found
