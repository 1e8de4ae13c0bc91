"""Shares of the time: all of one whole, in the sentence, the evidence and the table."""

from __future__ import annotations

import re
from typing import Any

import pytest

from foreload.report.report import Report
from foreload.report.stages import stage_times
from tests.made_stats import stage, stats
from tests.report.cases import CASES

MEASURED = [name for name, (kind, _) in CASES.items() if kind != "too-short"]


def table(text: str) -> dict[str, str]:
    """The shares in a report's table of stages, by the names of its rows."""
    rows = text[text.index("\nstage ") :].splitlines()[2:]
    cells = [re.split(r" {2,}", row) for row in rows]
    return {name: share for name, share, *_ in cells}


@pytest.mark.parametrize("case", MEASURED)
def test_waiting_and_working_are_all_of_the_loops_time(case: str) -> None:
    seen = CASES[case][1]
    shares = {time.stage: time.share for time in stage_times(seen)}
    assert shares.get("wait", 0.0) + shares.get("loop", 0.0) == pytest.approx(1.0)
    assert all(0 < share <= 1 for share in shares.values())


@pytest.mark.parametrize("case", MEASURED)
def test_a_workers_stages_fit_into_the_loops_time(case: str) -> None:
    seen = CASES[case][1]
    count = max(1, seen["workers"]["count"])
    for time in stage_times(seen):
        if time.stage in ("read", "decode", "sample", "batch"):
            assert time.share == pytest.approx(min(1.0, time.seconds / count / seen["seconds"]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", MEASURED)
def test_sentence_evidence_and_table_speak_of_the_same_whole(case: str) -> None:
    report = Report(CASES[case][1])
    rows = table(str(report))
    waits = re.search(r"waits for data (?:only )?(.*?%) of the time", report.verdict.sentence)
    assert waits is not None
    assert rows.get("the loop, waiting", "0%") == waits[1]
    names = {
        "reading": "reading",
        "decoding": "decoding",
        "in your dataset": "your dataset",
        "collating": "collating",
    }
    (spent,) = [line for line in report.verdict.evidence if line.startswith("of the loop's ")] or [""]
    for share, what in re.findall(r"((?:under )?[\d.]+%) ([a-z ]+)", spent):
        if what in names:
            assert rows[names[what]] == share


def test_the_table_says_what_its_shares_are_of() -> None:
    seen = stats(2, stages={"sample": stage(9.0, 1.0), "batch": stage(1.0, 1.0)})
    text = str(Report(seen))
    assert "Of the loop's 5 s (a worker's stages: the mean of 2 workers)" in text
    assert table(text)["your dataset"] == "90%"
    assert "Of the loop's 5 s (a worker" in Report(seen)._repr_html_().replace("&#x27;", "'")
    alone: dict[str, Any] = stats(0, stages={"sample": stage(9.0, 1.0)})
    assert "\nOf the loop's 10 s\n" in str(Report(alone))
    assert table(str(Report(alone)))["your dataset"] == "90%"


def test_waits_for_copies_are_waits_in_the_table_too() -> None:
    # Torch's loop waits for 3 s of batches and 1 s of copies.
    stages = {"sample": stage(4.0, 4.0), "wait": stage(3.0, 0.1), "device": stage(1.0)}
    seen = stats(2, "processes", stages=stages, seconds=8.0, wait_seconds=4.0, loop_seconds=4.0)
    rows = table(str(Report(seen)))
    assert rows["the loop, waiting"] == "50%"
    assert rows["copying to the device"] == "12%"
