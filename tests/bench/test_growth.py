"""Lines through the costs of growing work: what is straight, and what is not."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.lines import fit

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SAMPLES = [10**power for power in range(3, 10)]


@pytest.fixture
def growth(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("growth")


def test_a_line_is_found_over_six_orders_of_magnitude() -> None:
    line = fit(SAMPLES, [2e-3 + 5e-8 * count for count in SAMPLES])
    assert line.fixed == pytest.approx(2e-3, rel=1e-6)
    assert line.each == pytest.approx(5e-8, rel=1e-6)
    assert line.worst < 1e-6


def test_a_cost_that_does_not_grow_is_a_line_and_one_that_shrinks_is_not() -> None:
    assert fit(SAMPLES, [3.0] * 7) == pytest.approx((3.0, 0.0, 0.0), abs=1e-9)
    shrinking = fit(SAMPLES, [7.0, 6, 5, 4, 3, 2, 1])
    assert shrinking.each == 0
    assert shrinking.worst > 0.5


@pytest.mark.parametrize("power", [0.5, 1.5, 2])
def test_a_curve_is_far_from_any_line(power: float) -> None:
    assert fit(SAMPLES, [count**power for count in SAMPLES]).worst > 0.5


def test_a_cost_per_sample_that_doubles_at_the_end_is_seen() -> None:
    assert fit(SAMPLES, [count * (2 if count == 10**9 else 1) for count in SAMPLES]).worst > 0.25


def test_what_is_within_the_noise_does_not_bend_a_line() -> None:
    assert fit([1, 2, 3], [10.0, 900.0, 20.0], least=10_000).worst < 0.1


def test_a_series_says_whether_it_is_straight_or_why_not(growth: Any) -> None:
    straight = growth.Series("batch", "rows", "time", [1, 4, 16], [1.1e-6, 1.4e-6, 2.6e-6])
    assert straight.row()[1:] == ["1 to 16", "1 us + 100 ns per sample", "0%", "straight"]
    bent = growth.Series("batch", "rows", "time", [1, 4, 16], [1e-6, 1e-6, 9e-3])
    assert bent.row()[-1] == "not straight: no reason is known"
    known = growth.Series("samples", "memory map", "time", SAMPLES, [count**1.5 for count in SAMPLES])
    assert known.row()[-1].startswith("not straight: the larger the map")


def test_more_workers_than_cores_are_not_expected_to_be_faster(
    growth: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "CORES", 2)
    shared = growth.Series("workers", "photos", "time", [0, 1, 2, 3, 4], [2.1, 2.1, 1.1, 1.1, 1.1])
    assert shared.row()[2:] == ["100 ms + 2 s per share of a core", "0%", "straight"]


def test_memory_is_shown_in_units_of_1024(growth: Any) -> None:
    assert growth.shown(3 << 20, "memory") == "3 MiB"
    assert growth.shown(0.125, "memory") == "0.125 B"
    assert growth.shown(2.5, "time") == "2.5 s"


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["time", "memory"])
@pytest.mark.parametrize(
    "point", [("samples", "Python rows, cache", "1000"), ("batch", "Python rows, 2 processes", "64")], ids=str
)
def test_a_point_is_measured(figure: str, point: tuple[str, str, str]) -> None:
    command = [sys.executable, "-W", "ignore", BENCHMARKS / "growth_point.py", *point, figure, "--seconds", "0.1"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    if figure == "memory":
        assert found.keys() == {"memory"}
        assert 0 < found["memory"] < 1 << 30
    else:
        assert found["epoch"] >= found["batch"] > found["sample"] > 0
        assert found["first batch"] > 0
