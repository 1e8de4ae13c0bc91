"""The run in the manner of MLPerf Storage: utilisation, the search, the bytes of all contestants, the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.storage import accelerator, check, contestants, data, page, ranks, search, work
from benchmarks.storage.accelerator import Emulated, emulate
from benchmarks.storage.work import ALL, Work


class Clock:
    """Time that passes only where it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def batches(self, waits: list[float]) -> Iterator[torch.Tensor]:
        for wait in waits:
            self.now += wait
            yield torch.zeros(4)


def test_utilisation_is_the_share_of_computing_without_the_first_step() -> None:
    clock = Clock()
    waits = [50.0, 0.0, 1.0, 0.0, 3.0]
    found = emulate(clock.batches(waits), 2.0, 4, sleep=clock.sleep, clock=lambda: clock.now)
    assert found == Emulated(steps=4, samples=16, seconds=12.0)
    assert found.utilisation(2.0) == pytest.approx(8 / 12)


def test_a_loader_that_is_always_ahead_keeps_the_accelerator_busy() -> None:
    clock = Clock()
    found = emulate(clock.batches([9.0] + [0.0] * 20), 0.5, 10, sleep=clock.sleep, clock=lambda: clock.now)
    assert found.steps == 10
    assert found.utilisation(0.5) == 1.0


def test_an_epoch_may_end_before_the_last_step() -> None:
    clock = Clock()
    found = emulate(clock.batches([1.0, 1.0]), 1.0, 10, sleep=clock.sleep, clock=lambda: clock.now)
    assert (found.steps, found.seconds) == (1, 2.0)
    assert emulate([], 1.0, 10).utilisation(1.0) == 0.0


@pytest.mark.parametrize("limit", [0.2, 1.0, 7.3, 900.0])
@pytest.mark.parametrize("guess", [0.05, 1.0, 64.0])
def test_the_largest_number_is_found_from_any_guess(limit: float, guess: float) -> None:
    asked: list[float] = []

    def utilisation(accelerators: float) -> float:
        asked.append(accelerators)
        return min(1.0, limit / accelerators)

    found = search.largest(utilisation, 0.9, guess)
    assert limit / 0.9 / 1.03 <= found <= limit / 0.9
    assert utilisation(found) >= 0.9
    assert len(asked) < 25


def test_a_threshold_that_is_never_reached_gives_none_and_one_that_always_is_ends() -> None:
    assert search.largest(lambda number: 0.5, 0.9, 1.0) == 0.0
    assert search.largest(lambda number: 1.0, 0.9, 1.0) == search.MOST


@pytest.mark.parametrize("accelerators", [0.03, 0.5, 1.0, 1.7, 2.0, 33.3])
def test_processes_and_steps_ask_for_as_much_as_the_accelerators(accelerators: float) -> None:
    count, step = search.layout(accelerators, 0.3, 2)
    assert count <= 2
    assert count / step == pytest.approx(accelerators / 0.3)


@pytest.mark.parametrize("together", [1, 4])
def test_ranks_share_the_samples_and_each_pass_has_all_of_a_part(together: int) -> None:
    one = replace(ALL[0], count=96, together=together)
    orders = [one.order(rank, 2, 144) for rank in range(2)]
    for rank, order in enumerate(orders):
        part = list(range(48 * rank, 48 * rank + 48))
        for start in (0, 48, 96):
            assert sorted(order[start : start + 48]) == part
        assert order[:48] != part
        blocks = np.array(order).reshape(-1, together)
        assert (blocks == blocks[:, :1] + np.arange(together)).all()
    assert one.order(0, 2, 7) == orders[0][:7]


def test_passes_add_up() -> None:
    passes = [Emulated(2, 10, 4.0, 0.1), Emulated(3, 30, 6.0, 0.2)]
    assert accelerator.together(passes) == Emulated(5, 40, 10.0, pytest.approx(0.175))


def test_no_file_is_read_twice_from_disk() -> None:
    for one in (*ALL, *(one.shortened() for one in ALL)):
        assert one.most_steps(2) is None or one.most_steps(2) > 1
        most = one.most_steps(2)
        assert (most is None) == (one.source != "disk")
        if most is not None:
            order = one.order(1, 2, most * one.batch_size)
            assert len(set(order)) == len(order)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a workload of small samples."""
    monkeypatch.setattr(work, "ROOT", tmp_path)
    for name, value in (("HEIGHT", 48), ("WIDTH", 64), ("IMAGE", 6000), ("RECORD", 700), ("VOLUME", 400)):
        monkeypatch.setattr(data, name, value)
    monkeypatch.setattr(data, "COLUMNS", {"t5_encodings": 33, "timestamp": 7})
    monkeypatch.setattr(contestants, "_BLOCK", bytes(7000))

    def make(name: str) -> Work:
        short = replace(work.find(name), count=64, batch_size=8)
        if short.form == "bytes":
            short = replace(short, size=700)
        short.prepare()
        return short

    return make


def loads_of(short: Work) -> dict[str, contestants.Load]:
    """Return what takes part in a workload, without worker processes of stock's."""
    found = {"stock": partial(contestants.stock, 0)}
    found |= {one.name: one.load for one in contestants.ALL if one.family == "foreload" and one.loads(short)}
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("one", [one for one in ALL if one.source != "http"], ids=lambda one: one.name)
def test_all_contestants_give_the_bytes_of_the_samples_in_order(tiny: Any, one: Work) -> None:
    short = tiny(one.name)
    order = short.order(1, 2, 32)
    right = [check.digest(content) for content in check.expected(short, order)]
    assert len(set(right)) == len(right) or short.form == "image"
    for name, load in loads_of(short).items():
        assert accelerator.digests(short, load(short, order, []), 4) == right, name
        assert emulate(load(short, order, []), 0.0, 10).samples == 24, name


@pytest.mark.slow  # it compiles the server
def test_records_over_http_are_the_same(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tiny("ResNet-50, bytes, over HTTP")
    monkeypatch.setattr(data, "SHARD", 64)
    order = short.order(0, 2, 32)
    right = [check.digest(content) for content in check.expected(short, order)]
    with ranks.served(short) as urls:
        for name, load in loads_of(short).items():
            assert accelerator.digests(short, load(short, order, urls), 4) == right, name


@pytest.mark.slow
def test_ranks_run_in_processes_of_their_own_and_an_error_is_reported() -> None:
    uneven = work.find("uneven samples, computing")
    wanted = {"work": uneven.name, "quick": True, "urls": [], "step": 0.01, "steps": 3, "checks": False}
    for name in ("torch, DLIO's reader, 2 workers", "foreload, DLIO's reader, defaults"):
        found = [Emulated(**answer) for answer in ranks.run(contestants.find(name), wanted, 2)]
        assert [(one.steps, one.samples) for one in found] == [(3, 24)] * 2
        assert all(one.seconds >= 0.03 and 0 < one.utilisation(0.01) <= 1 and one.cpu >= 0 for one in found)
    with pytest.raises(ranks.Failed, match="StopIteration"):
        ranks.run(contestants.find(name), {**wanted, "work": "no such work"}, 1)


def test_files_keep_their_content_when_they_leave_the_page_cache(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(data.padded(b"x", 3, 10_000))
    data.drop([str(file)])
    data.warm([str(file)])
    assert file.read_bytes() == data.padded(b"x", 3, 10_000)


def made_row(name: str, *, emulated: bool, quiet: bool = True) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for family, per_core in (("torch", 0.5), ("torch", 0.7), ("foreload", 4.2)):
        entry = {"contestant": f"{family} {per_core}", "family": family, "rate": 100 * per_core, "cpu": 1e-3}
        rows.append({**entry, "per_core": per_core} if emulated else entry)
    rows.append({"contestant": "DALI", "family": "dali", "reason": "wrong: 0 of 8 samples are right"})
    about = {"work": name, "about": "files", "decoded": False, "threshold": 0.85, "size": 1000}
    measured = {"date": "2026-01-02", "command": "run --only A", "machine": {"cores": 2}}
    return {**about, **measured, "emulated": emulated, "quiet": quiet, "contestants": rows}


def test_the_table_has_ratios_reasons_and_whether_the_machine_was_quiet() -> None:
    rows = [made_row("A", emulated=True), made_row("B", emulated=False, quiet=False)]
    text = page.tables({"machine": {"cores": 4}, "rows": rows, "missing": {"DALI": "not installed"}})
    assert "| A | >= 85% | 0.700 | 4.20 |  | 6.0 |" in text
    assert "| B | samples/s | 70.0 | 420 |  | 6.0 |" in text
    assert "**not quiet** when these were measured: B." in text
    assert "- DALI: wrong: 0 of 8 samples are right" in text
    assert "- not run: DALI: not installed" in text
    assert "2026-01-02: `run --only A`. Another machine: cores: 2." in text


def test_the_document_has_the_section_and_what_is_generated_from_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.DOCUMENT.read_text()
    assert page.rendered(text) == text
    content = {"machine": {"cores": 2}, "missing": {}, "rows": [made_row("A", emulated=True)]}
    monkeypatch.setattr(page, "RESULT", tmp_path / "storage.json")
    assert "Not measured yet on a quiet machine" in page.rendered(text)
    page.RESULT.write_text(json.dumps(content))
    assert "| A | >= 85% | 0.700 | 4.20 |  | 6.0 |" in page.rendered(text)
    assert page.rendered(page.rendered(text)) == page.rendered(text)
