"""The page's forecast of the end of an epoch, and advice that can be copied."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from foreload.cli.serve.argument import argument
from foreload.cli.serve.curves import progress
from foreload.report.verdict import verdict
from tests import made_stats
from tests.cli.test_serve_history import running

for needed in ("starlette", "uvicorn", "plotly"):
    pytest.importorskip(needed)


def epoch(**changes: Any) -> dict[str, Any]:
    return {
        "number": 0,
        "batches": 100,
        "length": 400,
        "expected": None,
        "running": True,
        "seconds": 10.0,
        **changes,
    }


def test_an_epoch_ends_when_its_pace_says() -> None:
    (shown, *rest) = [
        progress(running(0, 5, 10), epoch(**changes), 0.1) or {}
        for changes in (
            {},
            {"length": None},
            {"length": None, "expected": 200},
            {"length": None, "expected": 50},  # it has got longer than the one before
            {"running": False},
        )
    ]
    assert shown["seconds_left"] == pytest.approx(30.0)
    assert shown["pause"] is None
    unknown, expected, longer, over = rest
    assert unknown["seconds_left"] is None
    assert expected["seconds_left"] == pytest.approx(10.0)
    assert longer["seconds_left"] is None
    assert over["seconds_left"] is None


def test_a_resumed_epoch_is_paced_by_what_this_run_has_loaded() -> None:
    resumed = [moment._replace(over=moment.over + 200) for moment in running(0, 5, 10)]
    shown = progress(resumed, epoch(batches=300), 0.1)
    assert shown is not None
    assert shown["seconds_left"] == pytest.approx(10.0)


def test_a_loop_that_pauses_is_not_promised_an_end_that_moves() -> None:
    moving = running(0, 5, 10)
    still = [moving[-1]._replace(time=time, observed=time) for time in (15.0, 20.0, 25.0, 300.0)]
    first = progress([*moving, *still[:1]], epoch(), 0.1)
    later = progress([*moving, *still], epoch(), 0.1)
    assert first is not None
    assert later is not None
    assert first["pause"] is None
    assert later["pause"] == pytest.approx(290.0)
    assert later["seconds_left"] == pytest.approx(30.0)  # as before the pause
    slow = progress([*moving, *still[:3]], epoch(), 5.0)
    assert slow is not None
    assert slow["pause"] is None  # batches take so long here


def test_without_facts_there_is_no_progress() -> None:
    assert progress([], None, 0.1) is None
    assert progress([], {"number": 1}, 0.1) is None
    assert (progress([], epoch(), 0.1) or {})["seconds_left"] is None
    assert (progress(running(0, epoch=None), epoch(), 0.1) or {})["seconds_left"] is None


@pytest.mark.parametrize(
    "stages",
    [
        {"read": made_stats.stage(9.0, 0.5, size=10**8), "decode": made_stats.stage(1.0, 1.0)},
        {"read": made_stats.stage(1.0, 0.5, size=10**8), "decode": made_stats.stage(9.0, 9.0)},
        {"sample": made_stats.stage(10.0, 10.0)},
        {"sample": made_stats.stage(10.0, 1.0)},
        {"batch": made_stats.stage(10.0, 10.0)},
    ],
    ids=lambda stages: "-".join(stages),
)
def test_every_advice_has_something_to_copy(stages: dict[str, Any]) -> None:
    found = verdict(made_stats.stats(stages=stages)).advice
    assert found
    for advice in found:
        text = argument(advice.change)
        assert text
        assert text in advice.change
        begin = re.match(r"[a-z_]+=", advice.change)
        assert begin is None or text.startswith(begin[0])
        assert text == advice.change or text.startswith("foreload") or ast.parse(f"f({text})")


@pytest.mark.parametrize(
    ("advice", "words"),
    [
        ('memory="100MiB" or more: room to make batches ahead', 'memory="100MiB"'),
        ("batch_size=128 instead of 64, if training allows it", "batch_size=128"),
        ("4 cores instead of 2, with num_workers=4", "num_workers=4"),
        ('workers="threads", if foreload.check_threads(dataset) finds nothing against it', 'workers="threads"'),
        ("num_workers=2 (each)", "num_workers=2"),
        ("x == 3 or y", "x == 3 or y"),
        ("", ""),
        ("a=" + "(" * 100_000, "a=" + "(" * 100_000),
        ("memory=\x00", "memory=\x00"),
    ],
)
def test_what_is_copied_is_the_argument(advice: str, words: str) -> None:
    assert argument(advice) == words
