"""``foreload plan`` says what a cache would give, and which budget is enough."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import foreload as fl
from foreload.bench import curves
from foreload.cli import commands
from foreload.options import POLICIES, parse_bytes
from tests.cli.test_cli import run


def test_plan_says_what_a_cache_would_give(tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    result = run("plan", 1000, "--budget", "25%,500", "--order", "replacement", "--json", kept, "--epochs", 5)
    assert result.returncode == 0, result.stderr
    assert "500 samples (50%)" in result.stdout
    content = json.loads(kept.read_text())
    points = {(point["policy"], point["budget"]): point for point in content["points"]}
    assert sorted({budget for _, budget in points}) == [0, 250, 500]
    assert points["opt", 500]["hit_rate"] == pytest.approx(0.81, abs=0.03)
    assert points["lru", 500]["hit_rate"] == pytest.approx(0.50, abs=0.03)
    assert points["opt", 500]["seconds"] == pytest.approx(1 - points["opt", 500]["hit_rate"])
    result = run("plan", 1000, "--ranks", 4)
    assert "beyond" in result.stdout or "every step of memory pays" in result.stdout


def test_plan_measures_images(photos: Path, tmp_path: Path) -> None:
    result = run("plan", photos, "--budget", "50%,100%", "--plot", tmp_path / "p.png", "--epochs", 3)
    assert result.returncode == 0, result.stderr
    assert re.search(r"\d [KM]iB \(100%\)", result.stdout)  # a few photos are no part of a GiB
    assert Image.open(tmp_path / "p.png").width > 300
    tiny = run("plan", photos, "--budget", "500", "--epochs", 3)
    assert tiny.returncode == 2
    assert "--budget 500 is that many bytes, and the smallest sample takes" in " ".join(
        tiny.stderr.replace("│", " ").split()
    )
    whole = run("plan", photos, "--budget", "1TiB", "--epochs", 3)
    assert whole.returncode == 0, whole.stderr
    assert re.search(
        r"--budget 1TiB is more than all samples take, [\d.]+ [KM]iB: it counts as 100%", whole.stderr
    )
    argument = result.stdout.splitlines()[-1]
    if argument != "cache=None":
        amount = re.fullmatch(r'cache="([\d.]+)([KM]iB)"', argument)
        assert amount is not None, argument
        assert f"{amount[1]} {amount[2]} (" in result.stdout
    fl.DataLoader([1, 2], **eval(f"dict({argument})"))


def test_shares_that_hold_no_image_are_a_row_like_others(tmp_path: Path) -> None:
    for name in "abcde":
        Image.new("RGB", (60, 40)).save(tmp_path / f"{name}.jpg")
    result = run("plan", tmp_path, "--epochs", 2)
    assert result.returncode == 0, result.stderr
    assert "(5%)" in result.stdout


@pytest.mark.slow
def test_what_plan_ends_with_follows_from_its_table() -> None:
    result = run("plan", 1000, "--budget", "10%,50%,90%,99%,100%", "--epochs", 3)
    *_, before, sentence, argument = result.stdout.splitlines()
    assert before == "beyond 990 samples, more memory saves less than 5% of the time without a cache"
    assert argument == "cache=990 * sample_bytes"
    rate, took = re.search(r"990 samples \(99%\)\W+([\d.]+) +(\d+%)", result.stdout).groups()  # type: ignore[union-attr]
    assert sentence.startswith(f"hit rate {rate}, an epoch in {took} of its time")
    assert run("plan", 1000, "--ranks", 2, "--budget", "100%").stdout.splitlines()[-1].endswith("share=False)")
    assert run("plan", 1000, "--budget", "0").stdout.splitlines()[-1] == "cache=None"


def points_of(seconds: dict[str, list[float]], budgets: list[int]) -> list[curves.BudgetPoint]:
    return [
        curves.BudgetPoint(policy, budget, 1 - took / 10, took)
        for policy in POLICIES
        for budget, took in zip(budgets, seconds.get(policy, seconds["others"]), strict=True)
    ]


def test_plan_names_the_policy_if_another_is_faster_and_a_budget_that_there_is_memory_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = curves.SampleCosts(np.full(1000, 10 << 20), np.full(1000, 0.01), known=True)
    budgets = [0, 1 << 30, 3435973836, 10 << 30]
    usual = points_of({"opt": [10.0, 6.0, 1.0, 0.9], "others": [10.0, 8.0, 3.0, 0.9]}, budgets)
    monkeypatch.setattr(curves, "granted_memory", lambda: 64 << 30)
    gives, argument = curves.recommended_cache(usual, data)
    assert gives == "hit rate 0.900, 1 s per epoch instead of 10 s, with:"
    assert argument == 'cache="3.2GiB"'
    assert curves.recommended_cache(usual, data, "encoded")[1] == 'cache=foreload.Cache("3.2GiB", keep="encoded")'
    other = points_of({"opt": [10.0, 6.0, 1.0, 0.9], "lfu": [10.0, 5.0, 0.95, 0.9], "others": [10.0] * 4}, budgets)
    assert curves.recommended_cache(other, data)[1] == 'cache=foreload.Cache("3.2GiB", policy="lfu")'
    monkeypatch.setattr(curves, "granted_memory", lambda: 2 << 30)
    assert curves.recommended_cache(usual, data)[1] == 'cache="1GiB"'


def test_a_policy_with_more_hits_than_opt_in_no_less_time_is_explained() -> None:
    """Samples of half the cost are kept by ``fixed`` and left out by ``opt``."""
    data = curves.SampleCosts(np.full(10, 1 << 20), np.full(10, 1.0), known=True)
    hits = {"opt": 0.2, "fixed": 0.3}
    points = [curves.BudgetPoint(policy, 1 << 20, hits.get(policy, 0.1), 8.0) for policy in POLICIES]
    assert "opt saves the most time" in str(curves.table(points, data).caption)
    points = [curves.BudgetPoint(policy, 1 << 20, 0.2, 8.0) for policy in POLICIES]
    assert not curves.table(points, data).caption


@pytest.mark.parametrize(
    "budget", [1, 1000, 1 << 10, 12345, 999 << 10, (1 << 20) - 1, 3435973837, 10**12 + 7, 5 << 40]
)
def test_a_budget_in_words_is_enough_and_not_much_more(budget: int) -> None:
    data = curves.SampleCosts(np.ones(1, np.int64), np.ones(1), known=True)
    assert budget <= parse_bytes(curves.amount(budget, data)) <= max(budget + 1, 1.01 * budget)


@pytest.mark.slow
def test_lines_of_a_plan_differ_without_colours_and_where_they_lie_on_each_other(tmp_path: Path) -> None:
    styles = [curves.style(number, 21, "x") for number in range(len(POLICIES))]
    for what in ("linestyle", "marker", "linewidth", "markevery", "color"):
        assert len({str(style[what]) for style in styles}) == len(POLICIES), what
    # An earlier line is wider than the one that is drawn over it.
    assert [style["linewidth"] for style in styles] == sorted(
        (style["linewidth"] for style in styles), reverse=True
    )
    points = points_of({"others": [1.0, 0.5]}, [0, 10])
    curves.plot(tmp_path / "same.png", points, curves.SampleCosts.alike(10))
    assert Image.open(tmp_path / "same.png").width > 600


def test_a_plan_that_memory_cannot_hold_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise MemoryError("Unable to allocate 8.00 TiB")

    for name in ("SampleCosts.alike", "curves"):
        with (
            monkeypatch.context() as patched,
            pytest.raises(MemoryError, match="TiB; plan for fewer samples"),
        ):
            patched.setattr(f"foreload.bench.curves.{name}", refuse)
            commands.plan("1000")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", 0], "at least 1 sample"),
        (["plan", 10**20], "at most 1,099,511,627,776, got 1000000"),
        (["plan", 10, "--budget", "abc"], "--budget must be"),
        (["plan", 1000, "--budget", "x"], "or a number of samples, where DIR_OR_N is a number, got 'x'"),
        (["plan", 1000, "--budget", "1.5"], "or a number of samples, where DIR_OR_N is a number, got '1.5'"),
        (["plan", 1000, "--budget", "50%,1KiB"], "got '1KiB'; for a budget in bytes, give a folder of images"),
        (["plan", 100, "--budget=-5%"], "or a number of samples, where DIR_OR_N is a number, got '-5%'"),
        (["plan", 100, "--budget", "300%"], "--budget must be at most 100%, which is all samples, got '300%'"),
        (["plan", 100, "--budget", "10,200"], "--budget must be at most 100, which is all samples, got '200'"),
        (["plan", 10, "--order", "chaos"], "--order must be one of"),
        (["plan", 10, "--keep", "raw"], "--keep must be"),
        (["plan", 2, "--ranks", 3], "--ranks must be at most the number of samples, 2"),
        (["plan", "/nowhere"], "must be a folder of images or a number of samples"),
    ],
)
def test_plan_says_what_is_wrong(arguments: list[Any], words: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert words in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr
