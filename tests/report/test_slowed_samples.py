"""Verdicts on loops whose Python code keeps the lock from samples that need it time and again."""

from __future__ import annotations

from typing import Any

import pytest

from foreload.report.verdict import verdict
from tests.made_stats import stage, stats
from tests.report.cases import DELAYED, STARVED

# Of threads that wait for 0.6 ms each time, and for 0.1 ms while the loop does not work.
SLOWED = {"delay_seconds": 0.3, "held_seconds": 0.006, "slowed_seconds": 13.0}


def test_samples_that_the_loop_slows_down_wait_for_the_lock() -> None:
    # Threads get it soon before a sample, but late after each call that had let go of it.
    lock = {**DELAYED, **SLOWED}
    found = verdict(stats(2, lock=lock, **STARVED))
    assert found.kind == "lock-bound"
    assert "processes" in found.advice[0].change
    assert any("samples took 12 s longer then" in line for line in found.evidence)  # as long as the loop computes


@pytest.mark.parametrize(
    "change", [{"asked": 3}, {"delay_seconds": 0.02}, {"slowed_seconds": 1.0}, {"held_seconds": 0.03}]
)
def test_samples_that_are_slower_for_another_reason_do_not(change: dict[str, Any]) -> None:
    lock = {**DELAYED, **SLOWED, **change}
    assert verdict(stats(2, lock=lock, **STARVED)).kind == "read-bound"


def test_a_loop_that_does_not_compute_cannot_keep_the_lock() -> None:
    lock = {**DELAYED, **SLOWED}
    assert verdict(stats(2, lock=lock, **{**STARVED, "loop_cpu_seconds": 0.1})).kind == "read-bound"


def test_workers_that_keep_the_lock_from_each_other_within_samples_are_not_the_loop_either() -> None:
    # That they wait for 2 ms each time is what the other one of them explains.
    lock = {"looks": 100, "held_share": 0.99, "held_seconds": 0.2, "asked": 500, "delay_seconds": 1.0}
    seen = {**STARVED, "stages": {"sample": stage(18.0, 9.0)}, "cpu": {"share": 0.4}}
    assert verdict(stats(2, lock={**lock, "slowed_seconds": 5.0}, **seen)).kind != "lock-bound"


def test_threads_that_wait_for_a_core_do_not_wait_for_the_lock() -> None:
    lock = {**DELAYED, **SLOWED}
    cpu = {"cpu": {**STARVED["cpu"], "queued_seconds": 12.5}}
    assert verdict(stats(2, lock=lock, **{**STARVED, **cpu})).kind != "lock-bound"
