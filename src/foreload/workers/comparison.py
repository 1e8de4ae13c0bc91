"""The comparison of worker processes that were chosen with the calling thread, as batches come in.

The choice was made by a short measurement before the first epoch. On a machine whose cores others use, workers
that should load a little faster than the calling thread may load many times slower: each batch waits until a
worker, and then the loop, gets a core.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from foreload.record.spans import Spans, Stage
from foreload.record.usage import queued_seconds

__all__ = ["Comparison"]

# Processes that give less than this share of what the calling thread could are compared with it.
_SHARE = 0.5

# A batch that takes longer is worth waiting for a core; the calling thread would have just one of them.
_MAX_BATCH_SECONDS = 0.01

# The fewest batches that say anything, and the fewest seconds that the loop has waited for those of processes.
_MIN_BATCHES, _MIN_SECONDS = 8, 0.25

_LOADING = [Stage.read, Stage.decode, Stage.cache, Stage.sample, Stage.transform]


class Comparison:
    """Counts what the loop gets, while it waits, from processes and from the calling thread.

    Args:
        alone: samples per second that the calling thread was measured to load.
        spans: of the processes.

    >>> comparison = Comparison(1000, Spans())
    >>> for _ in range(8): comparison.add(4, 0.1, here=False)
    >>> comparison.wants_trial([])
    True
    >>> for _ in range(8): comparison.add(4, 0.05, here=True)
    >>> comparison.decide()
    (True, 'it gave 80 samples/s while the loop waited for them, processes 40')
    """

    def __init__(self, alone: float, spans: Spans) -> None:
        self._alone, self._spans = alone, spans
        self._processes, self._thread = _Tally(), _Tally()
        self.is_over = self._is_tried = False

    def add(self, samples: int, seconds: float, *, here: bool) -> None:
        """Count a batch that the loop waited for; not the first of an epoch, for which workers start."""
        (self._thread if here else self._processes).add(samples, seconds)

    def wants_trial(self, processes: Iterable[int]) -> bool:
        """Whether the calling thread is to load some batches, given the ids of the worker processes."""
        tally = self._processes
        if self.is_over or tally.batches < _MIN_BATCHES or tally.seconds < _MIN_SECONDS:
            return False
        if tally.rate < _SHARE * self._alone:
            # Samples may take longer than those that were measured.
            each = max(1 / self._alone, _sample_seconds(self._spans, processes))
            is_light = each * tally.samples < _MAX_BATCH_SECONDS * tally.batches
            if is_light and tally.rate < _SHARE / each:
                self._is_tried = True
                return True
        self._processes = _Tally()
        return False

    def decide(self) -> tuple[bool, str] | None:
        """Return once whether the calling thread loads faster, and the reason.

        None: too early, or said before, or it loads for another reason than to be compared.
        """
        if self.is_over or not self._is_tried or self._thread.batches < _MIN_BATCHES:
            return None
        self.is_over = True
        here, there = self._thread.rate, self._processes.rate
        why = f"it gave {here:,.0f} samples/s while the loop waited for them, processes {there:,.0f}"
        return here > there, why


class _Tally:
    def __init__(self) -> None:
        self.batches, self.samples, self.seconds = 0, 0, 0.0

    def add(self, samples: int, seconds: float) -> None:
        self.batches += 1
        self.samples += samples
        self.seconds += seconds

    @property
    def rate(self) -> float:
        return self.samples / max(1e-9, self.seconds)


def _sample_seconds(spans: Spans, processes: Iterable[int]) -> float:
    """Return how long workers take for a sample, without the time in which they had no core."""
    are_workers = np.array([lane.kind == "process" for lane in spans.lanes], bool)
    if not are_workers.any():
        return 0.0
    totals = spans.totals()[are_workers]
    loading, batch = totals[:, _LOADING], totals[:, Stage.batch]
    samples = max(1, int(loading["samples"].sum(0).max()))
    queued = spans.queued_seconds() + sum(map(queued_seconds, processes))
    wall, cpu = (float(loading[name].sum()) * 1e-9 for name in ("wall_ns", "cpu_ns"))
    # (A batch that has been collated may wait to be sent, which the calling thread does not do.)
    return (max(cpu, wall - queued) + float(batch["cpu_ns"].sum()) * 1e-9) / samples
