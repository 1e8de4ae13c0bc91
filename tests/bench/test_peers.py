"""The comparison with other loaders: checks, turns, the page; foreload and stock torch give the same samples."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import quiet
from benchmarks.peers import adapters, install, page, run, turns, work
from benchmarks.peers.turns import Contestant
from benchmarks.peers.work import Work, WrongResult
from benchmarks.peers.workloads import ALL, find

ADAPTERS = sorted(Path(adapters.__file__).parent.glob("[!_]*.py"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("peers")


@pytest.fixture
def tiny(data: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a workload with few samples."""
    monkeypatch.setattr(work, "ROOT", data)

    def make(name: str, count: int = 24, **changes: Any) -> Work:
        short = replace(find(name), count=count, batch_size=7, workers=0, **changes)
        short.prepare()
        return short

    return make


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters register in a process of their own; here the next one replaces the last."""
    monkeypatch.setattr(adapters, "LOADERS", {})


def loader(adapter: str, short: Work, settings: str = "") -> Any:
    """A loader of an adapter, as the contestant's process makes it."""
    adapters.LOADERS.clear()
    sys.modules.pop(f"benchmarks.peers.adapters.{adapter}", None)
    adapters.load_adapter(adapter)
    return next(load for name, load in adapters.LOADERS[short.family].items() if settings in name)(short)


def test_adapters_packages_and_workloads_name_each_other() -> None:
    assert {path.stem for path in ADAPTERS} == set(install.packages())
    families = {one.family for one in ALL}
    for path in ADAPTERS:
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        named = {
            ast.literal_eval(call.args[0])
            for call in calls
            if getattr(call.func, "id", "") in ("loads", "register") and isinstance(call.args[0], ast.Constant)
        }
        assert named <= families, path
    assert len({one.name for one in ALL}) == len(ALL)


@pytest.mark.slow
def test_validation_is_the_same_by_foreload_and_by_stock(tiny: Any) -> None:
    short = tiny("validation, float32")
    ours = [(images.clone(), labels.clone()) for images, labels in loader("foreload", short)]
    theirs = list(loader("torch", short, "Pillow, 0"))
    for (a, numbers), (b, others) in zip(ours, theirs, strict=True):
        assert numbers.tolist() == others.tolist()
        assert (a - b).abs().mean() < 0.01
    for batches in (ours, theirs):
        short.check(short, batches)
    with pytest.raises(WrongResult, match="pixels of image 0 are off"):
        short.check(short, [(images.flip(-1), labels) for images, labels in ours])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("small files, warm", "0 workers"),
        ("tokens", "0 workers"),
        ("tensors in memory, batch 64", "0 workers"),
        ("HDF5", "0 workers"),
    ],
)
def test_the_same_samples_come_from_foreload_and_from_stock(tiny: Any, name: str, settings: str) -> None:
    short = tiny(name)
    whole = []
    for batches in (loader("foreload", short), loader("torch", short, settings)):
        given = [work.array(batch[0] if isinstance(batch, (tuple, list)) else batch) for batch in batches]
        short.check(short, given)
        rows = np.concatenate(given)
        whole.append(rows[np.lexsort(rows[:, ::-1].T)])
        with pytest.raises(WrongResult, match="samples came, not 24"):
            short.check(short, given[1:])
        with pytest.raises(WrongResult, match="came twice"):
            short.check(short, [given[0], given[0], *given[2:]])
    assert np.array_equal(*whole)


@pytest.mark.slow
def test_crops_of_other_images_than_the_labels_name_are_wrong(tiny: Any) -> None:
    short = tiny("train, uint8")
    batches = [(images.clone(), labels.clone()) for images, labels in loader("foreload", short)]
    short.check(short, batches)
    with pytest.raises(WrongResult, match="not of the images that their labels name"):
        short.check(short, [(images, 23 - labels) for images, labels in batches])
    with pytest.raises(WrongResult, match="colours are off"):
        short.check(short, [(images // 2, labels) for images, labels in batches])
    with pytest.raises(WrongResult, match="not uint8"):
        short.check(short, [(images.float(), labels) for images, labels in batches])


class Told(Contestant):
    """Answers from a list instead of a process."""

    answers: list[dict[str, Any]]
    log: list[str]

    def run(self, work: Work, what: str) -> dict[str, Any]:
        self.log.append(f"{self.adapter} {what}")
        return self.answers.pop(0)


def told(log: list[str], adapter: str, answers: list[dict[str, Any]]) -> Told:
    one = Told(adapter, "best", Path("python"))
    one.answers, one.log = answers, log
    return one


def epoch(seconds: float, samples: int = 100) -> dict[str, Any]:
    first = {"seconds": 9.0, "first": 0.5, "samples": samples, "batches": 2}
    return {"epochs": [first, {**first, "seconds": seconds, "first": 0.25}]}


def test_contestants_run_in_turns_and_wrong_ones_are_not_timed() -> None:
    log: list[str] = []
    good = told(log, "good", [epoch(1)] + [epoch(seconds) for seconds in (2, 1, 4)])
    wrong = told(log, "wrong", [{"wrong": "99 samples came"}])
    breaks = told(log, "breaks", [epoch(1), epoch(1), {"failed": "ValueError: no"}])
    all_ = [good, wrong, breaks]
    turns.check(ALL[0], all_, lambda line: None)
    turns.time_turns(ALL[0], all_, 3)
    assert log[:3] == ["good check", "wrong check", "breaks check"]
    assert log[3:] == ["good time", "breaks time", "good time", "breaks time", "good time"]
    rows = [turns.summary(ALL[0], one) for one in all_]
    assert rows[0]["value"] == 50
    assert rows[0]["measures"]["first"]["median"] == 500
    assert rows[0]["measures"]["second"]["median"] == 250
    assert [row.get("reason") for row in rows] == [None, "wrong: 99 samples came", "failed: ValueError: no"]
    assert "value" not in rows[2]


def test_contestants_far_behind_the_best_have_one_turn() -> None:
    log: list[str] = []
    fast = told(log, "fast", [epoch(seconds) for seconds in (1, 1, 1)])
    far = told(log, "far", [epoch(3)])
    near = told(log, "near", [epoch(seconds) for seconds in (2, 4, 2)])
    turns.time_turns(ALL[0], [fast, far, near], 3)
    assert [len(one.turns) for one in (fast, far, near)] == [3, 1, 3]
    times = [{"import": seconds, "epochs": []} for seconds in (0.5, 0.1)]
    slow, quick = told(log, "slow", times[:1]), told(log, "quick", times[1:] * 2)
    turns.time_turns(find("import"), [slow, quick], 2)
    assert [len(one.turns) for one in (slow, quick)] == [1, 2]


def test_a_row_takes_the_place_of_the_one_that_was_kept() -> None:
    names = [one.name for one in ALL[:3]]
    kept = [{"work": names[1], "load": 1, "quiet": True}, {"work": names[2], "load": 1, "quiet": False}]
    for name, is_quiet in ((names[2], False), (names[1], False), (names[0], True)):
        kept = run.renewed(kept, {"work": name, "load": 2, "quiet": is_quiet})
    assert [(row["work"], row["load"]) for row in kept] == [(names[0], 2), (names[1], 1), (names[2], 2)]
    assert [row["load"] for row in run.renewed(kept, {"work": names[1], "load": 3, "quiet": True})] == [2, 3, 2]


@pytest.mark.slow
def test_a_contestant_is_a_process_that_says_what_it_has_and_what_went_wrong() -> None:
    python = Path(sys.executable)
    answer, _ = turns.ask(python, "torch", "list")
    assert "TensorDataset, 0 workers" in answer["families"]["rows"]
    answer, _ = turns.ask(python, "none_such", "list")
    assert answer["failed"].startswith("ModuleNotFoundError")
    find("tensors in memory, batch 64").shortened().prepare()
    wanted = json.dumps(
        {"work": "tensors in memory, batch 64", "quick": True, "settings": "TensorDataset, 0 workers"}
    )
    answer, memory = turns.ask(python, "torch", "check", wanted, watch=True)
    assert answer == {"epochs": []}  # the only one was checked
    assert memory > 20
    answer, _ = turns.ask(python, "torch", "time", wanted)
    assert [one["samples"] for one in answer["epochs"]] == [2000, 2000]


def test_waiting_for_quiet_has_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    shares, times = iter([0.9, 0.5, 0.01]), iter(range(100))
    assert quiet.wait(60, lambda: next(shares), lambda: float(next(times)))
    assert "waiting" in capsys.readouterr().out
    assert not quiet.wait(5, lambda: 0.9, lambda: float(next(times)))
    assert "not quiet" in capsys.readouterr().out


def compared(ours: float, theirs: float, shows: str = "rate") -> dict[str, Any]:
    def one(adapter: str, value: float) -> dict[str, Any]:
        measures = {shows: {"median": value, "all": [value]}}
        return {"contestant": f"{adapter}: best", "adapter": adapter, "value": value, "measures": measures}

    contestants = [
        one("foreload", ours),
        one("a", theirs),
        {"contestant": "b", "adapter": "b", "reason": "wrong: x"},
    ]
    row = {"work": f"{ours}", "about": "it", "unit": "s", "shows": shows, "samples": 9, "quiet": True}
    return {**row, "command": "run it", "rounds": 5, "date": "2026-01-01", "contestants": contestants}


def test_the_page_says_where_foreload_is_behind() -> None:
    rows = [compared(300, 100), compared(50, 100), compared(2, 10, "import")]
    assert [page.ratio(row) for row in rows] == [3, 0.5, 5]
    rows[1]["machine"], rows[2]["machine"] = {"cores": 2}, {"cores": 64}
    text = page.tables({"machine": {"cores": 2}, "rows": rows, "missing": {"dali": "no wheel"}})
    assert "behind in 1 of 3 rows: 50 (0.50)" in text
    assert "**0.50**, behind" in text
    assert "- b: wrong: x" in text
    assert "- dali: no wheel" in text
    assert text.count("5 rounds on 2026-01-01: `run it`.\n") == 2
    assert "5 rounds on 2026-01-01: `run it`. Another machine: cores: 64.\n" in text


def test_the_document_is_that_of_the_results() -> None:
    text = page.DOCUMENT.read_text()
    assert page.rendered(text) == text, "run `python -m benchmarks.peers.page`"
