"""Trials of settings end, whatever is measured, and keep what is better."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from foreload.cache.budget import MemoryBudget
from foreload.machine import granted_cores
from foreload.tune import between_epochs
from foreload.tune.interval import Observed
from foreload.tune.trials import Trials

# The most changes, whatever is measured: 4 trials and 4 steps back, and all that twice more.
MOST_CHANGES = 24


def ladder(gain: float) -> Any:
    """Propose all powers of two, each as so much better."""

    def propose(setting: int, tried: set[int]) -> tuple[int, float] | None:
        left = [1 << power for power in range(6) if 1 << power not in tried]
        return (left[0], gain) if left else None

    return propose


@settings(max_examples=2 * settings.default.max_examples)
@given(
    paces=st.lists(st.floats(0, 1e6), min_size=1, max_size=40),
    gains=st.lists(st.floats(0, 50), min_size=1, max_size=10),
    asks=st.integers(1, 5),
)
def test_whatever_is_measured_and_predicted_changes_are_few_and_end(
    paces: list[float], gains: list[float], asks: int
) -> None:
    trials = Trials(2, windows=asks)
    changes, settings_seen = 0, [2]
    for number in range(600):
        before = trials.setting
        changed = trials.observe(paces[number % len(paces)], 1.0, ladder(gains[number % len(gains)]))
        assert changed == (trials.setting != before)
        if changed:
            changes += 1
            settings_seen.append(trials.setting)
            assert changes <= MOST_CHANGES
    for steady in (1.0,) * 200:  # and with a pace that stays, it stays as it is
        trials.observe(steady, 1.0, ladder(0.0))
    assert trials.frozen
    # It may go back to where it was, but never tries twice what it gave up, unless all has become different.
    assert len(trials.done) <= 12


@settings(deadline=None, max_examples=100)
@given(
    best=st.integers(0, 5),
    steepness=st.floats(0.1, 1.0),
    noise=st.floats(0, 0.02),
    seed=st.integers(0, 1 << 20),
    error=st.floats(0.8, 1.25),
)
def test_with_a_model_that_is_about_right_it_ends_near_the_best(
    best: int, steepness: float, noise: float, seed: int, error: float
) -> None:
    draw = np.random.default_rng(seed)

    def pace(setting: int) -> float:
        return 1000.0 * 2 ** (-steepness * abs(math.log2(setting) - best))

    def propose(setting: int, tried: set[int]) -> tuple[int, float] | None:
        left = {1 << power: pace(1 << power) / pace(setting) for power in range(6) if 1 << power not in tried}
        if not left:
            return None
        other = max(left, key=left.__getitem__)
        return other, left[other] * error

    trials, changes = Trials(2), 0
    for _ in range(100):
        changes += trials.observe(pace(trials.setting) * draw.normal(1, noise), 1.0, propose)
    assert trials.frozen
    assert changes <= 8
    # What an error of the model hides, or the noise of three windows, may be lost.
    assert pace(trials.setting) >= 0.7 * pace(1 << best)


def test_a_change_that_does_not_help_is_taken_back_and_not_tried_again() -> None:
    trials = Trials(4)
    told = [4]
    for _ in range(100):
        pace = 50.0 if trials.setting == 4 else 40.0
        trials.observe(pace, 1.0, lambda _, tried: (8, 2.0) if 8 not in tried else None)
        told += [trials.setting] * (trials.setting != told[-1])
    assert told == [4, 8, 4]
    assert trials.frozen
    assert [(done.kept, round(done.measured, 2)) for done in trials.done] == [(False, 0.8)]


def test_it_is_opened_again_only_where_all_is_different_for_long() -> None:
    trials = Trials(4)
    for _ in range(20):
        trials.observe(100.0, 1.0, lambda *_: None)
    assert trials.frozen
    for number in range(300):  # now and then is not for long
        trials.observe(100.0 if number % 5 else 1.0, 1.0, lambda *_: (8, 9.0))
    assert trials.setting == 4
    for times in (10.0, 100.0):
        for _ in range(25):
            assert not trials.observe(100.0 * times, 1.0, lambda *_: None)
        assert not trials.frozen
        for _ in range(20):
            trials.observe(100.0 * times, 1.0, lambda *_: None)
        assert trials.frozen
    assert trials.over
    for _ in range(100):
        assert not trials.observe(1.0, 1.0, lambda *_: (8, 9.0))


def test_a_prediction_that_did_not_come_true_is_believed_less() -> None:
    trials = Trials(2)
    for _ in range(100):
        trials.observe(100.0, 1.0, ladder(1.9))  # nothing helps, whatever is promised
    assert [trial.tried for trial in trials.done] == [1]
    assert trials.setting == 2


class Epochs:
    """A recorder of epochs by worker processes, of which each sample costs the same."""

    last = None

    def __init__(self, cpu: float, idle: float) -> None:
        self.cpu, self.idle = cpu, idle
        self.seconds = 0.0
        self.epoch = (0.0, 0)

    def add(self, seconds: float, pace: float) -> None:
        self.seconds += seconds
        self.epoch = (seconds, max(1, int(seconds * pace)))

    def stats(self, observed: Observed, *_: Any) -> dict[str, Any]:
        seconds, samples = self.epoch
        stage = {
            "count": samples,
            "samples": samples,
            "seconds": samples * (self.cpu + self.idle),
            "cpu_seconds": samples * self.cpu,
        }
        cores = granted_cores()
        return {
            "epochs": 1,
            "batches": samples,
            "samples": samples,
            "seconds": seconds,
            "first_batch_seconds": seconds / samples,
            "wait_seconds": seconds,
            "loop_seconds": 0.0,
            "loop_cpu_seconds": 0.0,
            "stages": {"sample": stage},
            "cache": None,
            "memory": {"batch_bytes": 0},
            "cpu": {"cores": cores, "share": min(1.0, samples * self.cpu / (seconds * cores))},
            "lock": None,
            "workers": {"kind": "processes", "count": observed.count, "depth": 2 * observed.count},
            "loader": {"native": False},
        }


def counts(recorder: Epochs, paces: list[float], monkeypatch: pytest.MonkeyPatch, epochs: int = 60) -> list[int]:
    """The numbers of processes that tuning between epochs chooses, whatever pace each gives."""
    monkeypatch.setattr(between_epochs, "between", recorder.stats)
    monkeypatch.setattr(
        between_epochs.CounterReading, "of", lambda recorder, **_: SimpleNamespace(seconds=recorder.seconds)
    )
    retuner = between_epochs.Retuner([])
    count, chosen = granted_cores(), []
    for number in range(epochs):
        observed: Any = Observed(recorder, "processes", count)  # type: ignore[arg-type]
        count = retuner.begin(observed, MemoryBudget(None), 2)
        chosen.append(count)
        recorder.add(2.0, paces[number % len(paces)])
    return chosen


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(paces=st.lists(st.floats(1, 1e4), min_size=1, max_size=20), cpu=st.floats(1e-6, 1e-2))
def test_samples_that_compute_never_get_more_processes_than_cores_whatever_is_measured(
    paces: list[float], cpu: float
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        chosen = counts(Epochs(cpu, 0.0), paces, monkeypatch)
    assert max(chosen) <= granted_cores()
    assert sum(a != b for a, b in pairwise(chosen)) <= MOST_CHANGES


def test_samples_that_wait_get_more_processes_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Epochs(1e-5, 1e-2)
    chosen = counts(recorder, [100.0 * granted_cores()], monkeypatch, 3)
    assert max(chosen) > granted_cores()
