"""The figures in the documents are those of benchmarks/results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("figures", ROOT / "benchmarks" / "figures.py")
assert SPEC is not None
assert SPEC.loader is not None
figures: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(figures)


@pytest.mark.parametrize("document", figures.DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_figures_follow_from_the_results(document: Path) -> None:
    text = document.read_text()
    assert text == figures.rendered(text), "run `python benchmarks/figures.py`"
    assert figures.unsourced(text) == [], "a comment must name the source; see benchmarks/figures.py"
    assert figures._FIGURE.search(text)


def test_the_picture_shows_the_figures() -> None:
    picture = figures.picture()
    assert figures.PICTURE.read_text() == picture, "run `python benchmarks/figures.py`"
    assert picture.count("<rect") >= 8


def test_a_figure_that_is_no_longer_true_is_written_anew() -> None:
    verdicts = json.loads((ROOT / "benchmarks" / "results" / "images.json").read_text())["verdicts"]
    key, value = verdicts[0]["what"], verdicts[0]["reached"]
    assert (
        figures.rendered(f"about 9.99<!-- images: {key} --> times")
        == f"about {value:.2f}<!-- images: {key} --> times"
    )
    ratio = "9<!-- files: plain loop in C++, 2 threads / foreload, 2 threads -->"
    assert figures.rendered(ratio).startswith("1<!-- files")
    samples = json.loads((ROOT / "benchmarks" / "results" / "files.json").read_text())["samples"]
    shown = f"{samples['stock, 0 workers']['median']:,.0f}"
    assert figures.rendered("1<!-- files: stock, 0 workers --> a second").startswith(f"{shown}<!-- ")
    with pytest.raises(KeyError, match="neither a verdict nor samples named 'nonsense'"):
        figures.rendered("1<!-- images: nonsense -->")


def test_figures_without_a_source_are_found() -> None:
    found = figures.unsourced("7.4 of stock, 0.95 of it, 12 times more, 3 to 4 times")
    assert found == ["7.4", "0.95", "12 times", "4 times"]
    assert (
        figures.unsourced(
            "7.4<!-- a: b --> times `x 1.5`, 22<!-- a: c --> times, 8 KB files, 30 ms, Python 3.11, torch 2.6+"
        )
        == []
    )


def test_the_table_is_that_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    text = "<!-- table: bench_x -->\nold\n<!-- end -->\n"
    assert "make bench" in figures.rendered(text)
    entry = {"stock": True, "samples_per_second": [50.0, 100.0, 150.0], "batch_ms": [1.0, 2.0, 3.0]}
    entry |= {"first_batch_ms": [1.0, 2.0, 3.0], "memory_mib": 5.0, "about": "torch's"}
    results = [{**entry, "name": "stock, workers"}, {**entry, "name": "foreload, full", "stock": False}]
    record = json.dumps({"work": {"rows": 0}, "results": results})
    (tmp_path / "benchmarks" / "results" / "bench_x.json").write_text(record)
    written = figures.rendered(text)
    assert "| foreload, full | 100 | 2.0 ± 1.0 | 1.0 to 3.0 | 2.0 | 5 | 1.00x | torch's |\n" in written
    assert figures.rendered(written) == written
