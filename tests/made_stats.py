"""Statistics of a loader, written by hand."""

from __future__ import annotations

from typing import Any

STAGES = ("order", "read", "decode", "cache", "sample", "transform", "batch", "wait", "device")


def stage(
    seconds: float, cpu: float = 0.0, samples: int = 1000, count: int = 100, size: int = 0
) -> dict[str, Any]:
    return {"count": count, "seconds": seconds, "cpu_seconds": cpu, "samples": samples, "bytes": size}


def stats(
    workers: int = 2, kind: str = "threads", stages: dict[str, dict[str, Any]] | None = None, **changes: Any
) -> dict[str, Any]:
    """1,000 samples of 1 ms of work and 9 ms of sleep each, in a loop that only waits; or as ``changes`` say.

    ``changes`` to what is a dict are made in it.
    """
    seconds = 10.0 / max(1, workers)
    stages = {"sample": stage(10.0, 1.0)} if stages is None else stages
    found: dict[str, Any] = {
        "epochs": 1,
        "batches": 100,
        "samples": 1000,
        "seconds": seconds,
        "batch_seconds": {"median": seconds / 100, "p95": seconds / 90, "p99": seconds / 80},
        "first_batch_seconds": seconds / 100,
        "loop_seconds": 0.0,
        "loop_cpu_seconds": 0.0,
        "stages": {name: stages.get(name, stage(0.0, samples=0, count=0)) for name in STAGES},
        "bytes_read": 0,
        "cache": None,
        "memory": {
            "limit": None,
            "batch_bytes": 80_000,
            "decisions": [],
            "tree_bytes": 1 << 29,
            "container_bytes": 8 << 30,
            "granted_bytes": 8 << 30,
        },
        "cpu": {"cores": 4, "share": 0.025 * max(1, workers)},
        "gpu": None,
        "lock": None,
        "errors": 0,
        "restarts": [],
        "workers": {
            "kind": kind,
            "count": workers,
            "why": "as requested",
            "samples_per_second": {},
            "choosing_seconds": 0.0,
            "depth": 2 * workers,
            "tuning": [],
        },
        "loader": {"batch_size": 10, "pin_memory": False, "native": False, "stock": False, "dataset": "Sleeping"},
    }
    for name, value in changes.items():
        found[name] = {**found[name], **value} if isinstance(found.get(name), dict) else value
    found.setdefault("wait_seconds", found["seconds"] - found["loop_seconds"])
    found.setdefault("wait_share", found["wait_seconds"] / found["seconds"])
    found["samples_per_second"] = found["samples"] / found["seconds"]
    found["batches_per_second"] = found["batches"] / found["seconds"]
    return found
