"""The report as text, with rich, and in notebooks."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from foreload.report.report import Report
from tests.made_stats import stats
from tests.report.cases import CASES


def shown(report: Report, width: int, *, terminal: bool) -> str:
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=terminal, color_system="standard" if terminal else None).print(
        report
    )
    return file.getvalue()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES)
def test_every_verdict_is_told_as_text(case: str) -> None:
    kind, seen = CASES[case]
    report = Report(seen)
    text = str(report)
    assert text.startswith(f"{kind}: ")
    assert " ".join(report.verdict.sentence.split()) in " ".join(text.split())
    assert "\033" not in text
    assert max(map(len, text.splitlines())) <= 110
    for advice in report.verdict.advice:
        assert " ".join(advice.change.split()) in " ".join(text.split())
    assert repr(report) == f"<Report: {kind}>"


@pytest.mark.slow
@pytest.mark.parametrize("width", [30, 80, 200])
def test_nothing_is_cut_off_on_a_terminal_of_any_width(width: int) -> None:
    for _, seen in CASES.values():
        report = Report(seen)
        text = shown(report, width, terminal=False)
        assert max(map(len, text.splitlines())) <= width
        assert report.verdict.sentence.split()[-1] in text
        assert "…" not in text or width < 80


def test_what_is_not_there_is_not_told() -> None:
    none = {"median": 0.0, "p95": 0.0, "p99": 0.0}
    text = str(Report(stats(0, batch_seconds=none)))
    assert "batch time" not in text
    assert "workers      none, as requested" in text
    assert "2 threads, as requested" in str(Report(stats(2)))


def test_there_are_colours_on_terminals_only() -> None:
    report = Report(stats())
    assert "\033[" in shown(report, 80, terminal=True)
    assert "\033[" not in shown(report, 80, terminal=False)


def because(why: str) -> dict[str, Any]:
    seen = stats()
    seen["workers"]["why"] = why
    return seen


def test_text_in_brackets_is_text() -> None:
    assert "[bold]measured[/bold]" in shown(Report(because("[bold]measured[/bold]")), 120, terminal=True)


def test_a_notebook_gets_html() -> None:
    page = Report(because("<b> & so on"))._repr_html_()
    assert "read-bound" in page
    assert "&lt;b&gt; &amp; so on" in page
    assert "<b> &" not in page


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_all_of_it_goes_through_json(case: str) -> None:
    kind, seen = CASES[case]
    found = json.loads(json.dumps(Report(seen).to_dict()))
    assert found["verdict"]["kind"] == kind
    assert found["stats"]["batches"] == seen["batches"]
    assert all(set(advice) == {"change", "gain"} for advice in found["verdict"]["advice"])
