"""Statistics of loaders, and what holds each of them back."""

from __future__ import annotations

from typing import Any

from tests.made_stats import stage, stats

NATIVE = {"native": True}
LOCKED, FREE = {"looks": 500, "held_share": 0.99}, {"looks": 500, "held_share": 0.05}
BUSY = {"sample": stage(10.0, 10.0)}

# The loop works for 6 s of 10, in Python; its two threads have asked for the lock 500 times meanwhile.
STARVED: dict[str, Any] = {
    "seconds": 10.0,
    "loop_seconds": 6.0,
    "loop_cpu_seconds": 6.0,
    "stages": {"sample": stage(18.0, 3.0)},
    "cpu": {"share": 0.225},
}
DELAYED = {"looks": 60, "held_share": 0.5, "held_seconds": 0.1, "asked": 500, "delay_seconds": 9.0}
# The same for the thread that pins memory for torch's loader.
PINNING = {**DELAYED, "looks": 0, "held_share": 0.0, "delay_seconds": 2.5}
STOCK: dict[str, Any] = {"stock": True, "batch_tensors": 2}

# Measured: sixteen processes for two cores, whose first batch takes 1.4 s of 2.7.
CROWD: dict[str, Any] = {
    "batches": 63,
    "samples": 2000,
    "seconds": 2.7,
    "first_batch_seconds": 1.4,
    "loop_seconds": 0.05,
    "loop_cpu_seconds": 0.015,
    "stages": {"decode": stage(0.7, 0.7, 2000), "sample": stage(2.0, 1.8, 2000), "batch": stage(0.2, 0.12, 2000)},
    "cpu": {"cores": 2, "share": 0.56, "queued_seconds": 12.0},
}


def started(seen: dict[str, Any], seconds: float, end: float = 0.0) -> dict[str, Any]:
    """The same, in which starting workers has taken so much of the cores, and ending them so long."""
    times = {"start_cpu_seconds": seconds, "end_seconds": end}
    return {**seen, "workers": {**seen["workers"], **times}}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a loop that works": ("consumer-bound", stats(2, loop_seconds=4.9)),
    "nothing yet": ("too-short", stats(2, batches=0, samples=0, seconds=0.001, first_batch_seconds=0.0)),
    "a moment": ("too-short", stats(2, batches=6, samples=60, seconds=0.1)),
    "a dataset that sleeps": ("read-bound", stats(2)),
    "a slow disk": (
        "read-bound",
        stats(2, stages={"read": stage(9.0), "decode": stage(1.0, 1.0)}, cpu={"share": 0.05}, loader=NATIVE),
    ),
    "images": (
        "decode-bound",
        stats(2, stages={"read": stage(0.5, 0.5), "decode": stage(9.5, 9.5)}, cpu={"share": 0.5}, loader=NATIVE),
    ),
    "a heavy transform, in processes": ("decode-bound", stats(2, "processes", stages=BUSY, cpu={"share": 0.5})),
    "Python in threads": (
        "python-bound",
        stats(4, stages={"sample": stage(40.0, 10.0)}, seconds=10.0, cpu={"share": 0.25}, lock=LOCKED),
    ),
    "numpy in threads": ("decode-bound", stats(2, stages=BUSY, cpu={"share": 0.5}, lock=FREE)),
    "tiny batches": (
        "batch-bound",
        stats(
            2,
            "processes",
            stages={"sample": stage(0.1, 0.1), "order": stage(0.2, 0.2)},
            batches=1000,
            seconds=1.0,
            first_batch_seconds=0.01,
            cpu={"share": 0.45},
            loader={"batch_size": 1},
        ),
    ),
    "collation in the loop's own thread": (
        "batch-bound",
        stats(0, stages={"sample": stage(1.0, 1.0), "batch": stage(9.0, 9.0)}, cpu={"share": 0.25}),
    ),
    "copies to a device": (
        "transfer-bound",
        stats(
            2,
            stages={"sample": stage(0.5, 0.5), "device": stage(4.5)},
            cpu={"share": 0.025},
            loader={"stock": True},
        ),
    ),
    "no memory": ("memory-bound", stats(2, memory={"limit": 200_000, "decisions": ["1 batches are made ahead"]})),
    "a full container": ("memory-bound", stats(2, memory={"tree_bytes": (8 << 30) - 1000})),
    "a loop that keeps the lock": ("lock-bound", stats(2, lock=DELAYED, **STARVED)),
    "a loop that keeps the lock from torch's pinning": (
        "lock-bound",
        stats(2, "processes", lock=PINNING, loader={**STOCK, "pin_memory": True}, **STARVED),
    ),
    "too many of torch's workers": (
        "too-many-workers",
        started(stats(16, "processes", loader=STOCK, **CROWD), 0.38, 0.3),
    ),
    "too many processes": ("too-many-workers", started(stats(16, "processes", **CROWD), 0.38)),
    "workers that start in each epoch": (
        "startup-bound",
        stats(2, "processes", epochs=10, first_batch_seconds=0.4),
    ),
}
