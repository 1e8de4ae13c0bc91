"""The check of instruction counts: what is compared, what fails, and that a count can be repeated."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.counts import check

WRITTEN = """desc: I1 cache: 32768 B, 64 B, 8-way associative
cmd: counts PATH 1
events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw Bc Bcm Bi Bim
fl=???
fn=main
0 1000 3 2 200 20 4 100 10 1 150 15 5 1
summary: {} 3 2 200 20 4 100 10 1 150 15 5 1
"""
CONDITIONS = {"compiler": "GCC 12.2.0", "kernels": "avx2"}


def counts(instructions: float) -> check.Counts:
    return {"instructions": instructions, "L1 data misses": 3.0, "last-level misses": 0.0, "mispredictions": 1.5}


def test_the_count_of_an_item_is_what_a_second_pass_adds() -> None:
    once, twice = (check.events(WRITTEN.format(instructions)) for instructions in (1_000_000, 1_004_002))
    assert once["Ir"] == 1_000_000
    assert once["Bim"] == 1
    twice |= {"D1mr": 60, "D1mw": 20, "ILmr": 4, "Bcm": 20, "Bim": 2}
    assert check.per_item(once, twice, 8) == {
        "instructions": 500.25,
        "L1 data misses": 6.25,
        "last-level misses": 0.25,
        "mispredictions": 0.75,
    }


def test_three_per_cent_more_instructions_on_any_path_are_a_problem() -> None:
    kept = {"a": counts(1000), "b": counts(1000), "c": counts(1000)}
    now = {"a": counts(1030), "b": counts(1031), "c": counts(500)}
    changes = check.compare(kept, now)
    assert [change.problem for change in changes] == [None, "takes +3.1% instructions", None]
    assert [change.share for change in changes] == pytest.approx([0.03, 0.031, -0.5])
    text = check.table(changes, now)
    assert "+3.10%" in text.splitlines()[2]
    assert len({len(line) for line in text.splitlines()}) == 1


def test_a_path_that_cannot_be_compared_is_a_problem() -> None:
    changes = check.compare({"gone": counts(1)}, {"new": counts(1)})
    assert [(change.path, change.problem) for change in changes] == [("new", "is new"), ("gone", "is gone")]
    check.table(changes, {"new": counts(1)})


def test_other_compilers_and_instruction_sets_are_named() -> None:
    assert check.other_conditions(CONDITIONS, CONDITIONS) == []
    other = {**CONDITIONS, "compiler": "GCC 13.1.0", "valgrind": "valgrind-3.19.0"}
    assert check.other_conditions(CONDITIONS, other) == [
        "compiler: kept 'GCC 12.2.0', now 'GCC 13.1.0'",
        "valgrind: kept None, now 'valgrind-3.19.0'",
    ]


def test_the_exit_status_tells_a_step_back_from_counts_that_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now: dict[str, Any] = {"conditions": CONDITIONS, "instructions": 1000}
    monkeypatch.setattr(check, "RESULT", tmp_path / "counts.json")
    monkeypatch.setattr(check, "build", lambda: tmp_path / "counts")
    monkeypatch.setattr(check, "describe", lambda program: (now["conditions"], {"row": 1, "order": 1}))
    monkeypatch.setattr(check, "count", lambda program, path, items: counts(now["instructions"]))

    def run(*options: str) -> int:
        monkeypatch.setattr(sys, "argv", ["check", *options])
        return check.main()

    assert run() == 2
    assert run("--keep") == 0
    assert run() == 0
    now["instructions"] = 1050
    assert run("--only", "row") == 1
    said = capsys.readouterr().out
    assert "row takes +5.0% instructions" in said
    assert "order takes" not in said
    now["conditions"] = {**CONDITIONS, "kernels": "baseline"}
    assert run() == 2
    assert "--keep" in capsys.readouterr().out
    assert run("--keep") == 0
    assert run() == 0
    with pytest.raises(SystemExit):
        run("--keep", "--only", "row")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_count_is_repeated_and_all_paths_are_kept() -> None:
    for tool in ("valgrind", "cmake"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    program = check.build()
    _, items = check.describe(program)
    assert set(items) == set(json.loads(check.RESULT.read_text())["paths"])
    path = "position of a keyed permutation"
    first, second = (check.count(program, path, items[path])["instructions"] for _ in range(2))
    assert first > 10
    assert second == pytest.approx(first, rel=0.005)
