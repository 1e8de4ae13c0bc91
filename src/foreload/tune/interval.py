"""Readings of a recorder, and the figures of the interval between two of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from foreload.machine import granted_cores
from foreload.options import WorkerKind
from foreload.record.recorder import Recorder
from foreload.record.spans import Stage
from foreload.record.usage import children_seconds

__all__ = ["CounterReading", "Observed", "between"]


class CacheStats(Protocol):
    """A cache with counters."""

    def stats(self) -> dict[str, Any]:
        """Return its counters since the start."""
        ...


@dataclass(frozen=True)
class Observed:
    """A running loader, as tuning sees it.

    Attributes:
        recorder: the recorder of its epochs.
        kind: the kind of its workers.
        count: the number of its workers.
        cache: its cache, if it has one.
    """

    recorder: Recorder
    kind: WorkerKind
    count: int
    cache: CacheStats | None = None


class CounterReading(NamedTuple):
    """The counters of a recorder at one moment.

    Attributes:
        sums: the sums of the loops.
        totals: the sums of the spans: stages x (count, wall ns, cpu ns, samples, bytes).
        cpu: CPU seconds of the process and its workers.
        looks, held: looks at the interpreter's lock, and those that found it held.
        asked, delay: how often worker threads asked for it while the loop worked, and how long they waited.
        queued: seconds in which worker threads waited for a core.
    """

    sums: dict[str, Any]
    totals: np.ndarray[Any, Any]
    cpu: float
    looks: int
    held: int
    asked: int
    delay: float
    queued: float

    @classmethod
    def of(cls, recorder: Recorder, *, processes: bool = False) -> CounterReading:
        """Take a reading; with ``processes``, their CPU seconds count too, which takes a millisecond."""
        totals = np.array([lane.native.totals() for lane in list(recorder.spans.lanes)], np.int64)
        cpu = time.process_time()
        if processes and recorder.since is not None:
            cpu += children_seconds(recorder.since, recorder.children_before)
        summed = totals.reshape(-1, len(Stage), 5).sum(0)
        lock = recorder.lock
        return cls(
            recorder.sums(),
            summed,
            cpu,
            lock.looks,
            lock.held,
            lock.asked,
            lock.delay_seconds,
            recorder.spans.queued_seconds(),
        )

    @property
    def seconds(self) -> float:
        """Seconds of all loops so far."""
        return float(self.sums["wait"] + self.sums["loop"]) * 1e-9


def between(observed: Observed, before: CounterReading, after: CounterReading, depth: int) -> dict[str, Any]:
    """Return the figures between two readings, like :class:`~foreload.record.stats.Stats`.

    Only those are there that :mod:`foreload.tune.costs` needs.
    """
    sums = {
        name: after.sums[name] - before.sums[name] for name in ("batches", "samples", "wait", "loop", "loop_cpu")
    }
    totals = after.totals - before.totals
    seconds = after.seconds - before.seconds
    cores = granted_cores()
    looks = after.looks - before.looks
    stages = {
        stage.name: {
            "count": int(totals[stage, 0]),
            "seconds": float(totals[stage, 1]) * 1e-9,
            "cpu_seconds": float(totals[stage, 2]) * 1e-9,
            "samples": int(totals[stage, 3]),
            "bytes": int(totals[stage, 4]),
        }
        for stage in Stage
    }
    return {
        "epochs": 1,
        "batches": sums["batches"],
        "samples": sums["samples"],
        "seconds": seconds,
        # No batch is the first, so none is left out.
        "first_batch_seconds": seconds / max(1, sums["batches"]),
        "wait_seconds": sums["wait"] * 1e-9,
        "loop_seconds": sums["loop"] * 1e-9,
        "loop_cpu_seconds": sums["loop_cpu"] * 1e-9,
        "stages": stages,
        "cache": None if observed.cache is None else observed.cache.stats(),
        "memory": {"batch_bytes": 0},
        "cpu": {
            "cores": cores,
            "share": min(1.0, (after.cpu - before.cpu) / max(1e-9, seconds * cores)),
            "queued_seconds": after.queued - before.queued,
        },
        "lock": {
            "looks": looks,
            "held_share": (after.held - before.held) / max(1, looks),
            "asked": after.asked - before.asked,
            "delay_seconds": after.delay - before.delay,
        },
        "workers": {
            "kind": observed.kind,
            "count": observed.count,
            "depth": depth,
        },
        "loader": {"native": stages["sample"]["count"] == 0},
    }
