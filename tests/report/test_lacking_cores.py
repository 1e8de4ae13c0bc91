"""Waiting for a core that other programs have is not taken for another kind of waiting."""

from __future__ import annotations

from typing import Any

from foreload.report.verdict import verdict
from tests.made_stats import stage, stats


def test_waiting_for_a_core_is_not_waiting_for_a_disk() -> None:
    # Measured: Python in two threads, while two other programs had most of two cores.
    seen: dict[str, Any] = {
        "batches": 94,
        "samples": 3000,
        "seconds": 3.7,
        "first_batch_seconds": 0.08,
        "loop_seconds": 0.01,
        "stages": {"sample": stage(7.3, 2.2, samples=3000, count=1680)},
        "lock": {"looks": 162, "held_share": 0.62},
    }
    cores = {"cores": 2, "share": 0.3}
    assert verdict(stats(2, **seen, cpu={**cores, "queued_seconds": 5.0})).kind == "python-bound"
    assert verdict(stats(2, **seen, cpu={**cores, "queued_seconds": 0.0})).kind == "read-bound"
    # The same where the lock is mostly free: it computes.
    seen["lock"] = {"looks": 73, "held_share": 0.1}
    busy = verdict(stats(2, **seen, cpu={**cores, "queued_seconds": 5.0}))
    assert busy.kind == "decode-bound"
    line = "68% of the time, each worker was ready to work, but had no core"
    assert line in busy.evidence
    assert not any("no core" in line for line in verdict(stats(2, **seen, cpu=cores)).evidence)


def test_the_lock_is_not_a_disk_where_its_owners_have_no_core() -> None:
    # Measured: Python in two threads, while twelve other programs had most of two cores.
    seen: dict[str, Any] = {
        "batches": 120,
        "samples": 960,
        "seconds": 9.7,
        "first_batch_seconds": 0.1,
        "loop_seconds": 0.05,
        "stages": {"sample": stage(18.7, 2.6, samples=960)},
        "lock": {"looks": 284, "held_share": 0.52, "asked": 167, "delay_seconds": 0.6},
        "cpu": {"cores": 2, "share": 0.152, "queued_seconds": 11.9},
    }
    assert verdict(stats(2, **seen)).kind == "python-bound"
    # Measured: a sleep of 5 ms and 1 ms of Python.
    seen |= {"seconds": 5.3, "stages": {"sample": stage(10.3, 1.0, samples=960)}}
    seen |= {"lock": {"looks": 215, "held_share": 0.12}, "cpu": {"cores": 2, "share": 0.1, "queued_seconds": 3.3}}
    assert verdict(stats(2, **seen)).kind == "read-bound"
