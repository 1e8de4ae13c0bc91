"""What is tuned while it runs: that it ends, that it keeps what is better, and that batches stay what they are."""

from __future__ import annotations

import math
import pickle
import threading
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.utils.data import Dataset

import foreload as fl
from foreload.cache.budget import MemoryBudget
from foreload.machine import granted_cores
from foreload.tune import between_epochs
from foreload.tune.interval import Observed
from foreload.tune.trials import Trials
from foreload.tune.within_epoch import Setting, Tuner

# The most changes, whatever is measured: 4 trials and 4 steps back, and all that twice more.
MOST_CHANGES = 24


def ladder(gain: float) -> Any:
    """Propose all powers of two, each as so much better."""

    def propose(setting: int, tried: set[int]) -> tuple[int, float] | None:
        left = [1 << power for power in range(6) if 1 << power not in tried]
        return (left[0], gain) if left else None

    return propose


@settings(deadline=None, max_examples=200)
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


class Sleeping(Dataset[Any]):
    """Waits, as for a disk."""

    def __init__(self, size: int, seconds: float = 0.004, broken: int = -1, side: int = 1) -> None:
        self.size, self.seconds, self.broken, self.side = size, seconds, broken, side

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if index == self.broken:
            raise LookupError(f"no {index}")
        time.sleep(self.seconds)
        return torch.full((self.side,), float(index)), index


class Locked(Dataset[Any]):
    """Python, with the interpreter's lock."""

    def __len__(self) -> int:
        return 3000

    def __getitem__(self, index: int) -> Any:
        return sum(range(20_000)) + index


def alive() -> int:
    return sum(thread.name.startswith("foreload") for thread in threading.enumerate())


def tuned(**options: Any) -> fl.DataLoader[Any]:
    options = {"batch_size": 4, "shuffle": True, "seed": 3, "workers": "threads"} | options
    return fl.DataLoader(options.pop("dataset", None) or Sleeping(3000), **options)


def test_threads_grow_where_samples_wait_and_batches_stay_the_same() -> None:
    wanted = list(fl.DataLoader(Sleeping(3000, 0.0), batch_size=4, shuffle=True, seed=3, num_workers=0))
    for _ in range(10):  # what else runs on the machine may hide what more threads gain
        loader = tuned()
        begun = loader.num_workers
        for (row, index), (other_row, other_index) in zip(loader, wanted, strict=True):
            assert torch.equal(row, other_row)
            assert torch.equal(index, other_index)
        if loader.num_workers > begun:
            break
    assert loader.num_workers > begun
    stats = loader.stats()["workers"]
    assert stats["count"] == loader.num_workers
    assert stats["depth"] <= 128
    assert stats["tuning"][0].startswith(
        f"{loader.crew.tuner.trials.done[0].tried.threads} threads instead of {begun}: "
    )
    assert "times the samples/s predicted" in stats["tuning"][0]
    assert loader.crew.tuner.trials.setting.threads <= 32
    assert alive() == 0
    # The next epoch begins with what was found.
    threads = loader.num_workers
    next(iter(loader))
    assert loader.num_workers == threads


@pytest.mark.parametrize(
    ("held", "cpu", "waited", "wanted"),
    [
        (0.97, 0.5, 1.0, {1, 2}),  # the lock is taken: fewer, who hand it around less
        (0.1, 0.99, 1.0, set()),  # all cores are busy
        (0.1, 0.5, 0.01, set()),  # the loop does not wait
        (0.1, 0.5, 1.0, {8, 16, 32}),  # samples wait for something
    ],
)
def test_only_what_can_help_is_considered(held: float, cpu: float, waited: float, wanted: set[int]) -> None:
    stages = {name: {"seconds": 0.0} for name in ("read", "decode", "cache", "sample", "transform", "batch")}
    stats = {
        "seconds": 1.0,
        "wait_seconds": waited,
        "lock": {"looks": 50, "held_share": held},
        "cpu": {"share": cpu, "cores": 2},
        "stages": {**stages, "sample": {"seconds": 4.0}},
    }
    tuner = Tuner(Setting(4, 8), 2, [], deeper=True)
    others = tuner._others(tuner.setting, 100, stats)
    cores = {granted_cores()} & ({*range(4)} if held > 0.9 else {*range(5, 99)} if wanted else set())
    assert {other.threads for other in others} == wanted | cores
    # Where batches in the making take all the room there is, no thread is added.
    assert all(other.threads <= 4 for other in tuner._others(tuner.setting, 8, stats, copies=1))


def test_batches_of_python_that_holds_the_lock_stay_the_same() -> None:
    loader = tuned(dataset=Locked(), batch_size=16)
    plain = tuned(dataset=Locked(), batch_size=16, num_workers=0)
    assert all(torch.equal(one, other) for one, other in zip(loader, plain, strict=True))


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 2}, {"num_workers": 2, "prefetch_factor": 3}, {"worker_init_fn": lambda worker: None}],
)
def test_what_the_user_chose_is_left_alone(options: dict[str, Any]) -> None:
    loader = tuned(dataset=Sleeping(1000, 0.001), **options)
    begun, depths = loader.num_workers, set()
    for _ in loader:
        depths.add(loader.recorder.last.depth)
        assert loader.num_workers == begun
    assert depths == {begun * (options.get("prefetch_factor") or 2)}
    assert loader.stats()["workers"]["tuning"] == []


def test_an_explicit_prefetch_factor_holds_for_whatever_number_of_threads() -> None:
    loader = tuned(prefetch_factor=3)
    for _ in loader:
        pass
    assert loader.num_workers > 2 or loader.crew.tuner.trials.done
    assert {trial.tried.depth / trial.tried.threads for trial in loader.crew.tuner.trials.done} == {3.0}


def test_the_memory_budget_holds_whatever_is_tuned() -> None:
    side = 1 << 16  # 256 KiB a row, 1 MiB a batch
    loader = tuned(dataset=Sleeping(1200, 0.004, side=side), memory="20MiB")
    depths: list[int] = []
    for _ in range(5):  # on a busy machine it takes longer to see that more threads are faster
        depths += [loader.recorder.last.depth for _ in loader]
        if loader.num_workers > 2:
            break
    # Samples and batch are there at a time, two batches are with the loop, and each new thread may keep one.
    assert max(depths[5:]) * 2 + 2 + (loader.num_workers - 2) <= 20
    assert loader.num_workers > 2


def test_errors_breaks_and_closing_while_it_tunes() -> None:
    loader = tuned(dataset=Sleeping(2000, broken=900), shuffle=False)
    with pytest.raises(LookupError, match="no 900"):
        for _ in loader:
            pass
    assert alive() == 0
    loader = tuned()
    for number, _ in enumerate(loader):
        if number == 150:
            break
    assert alive() == 0
    loader = tuned(persistent_workers=True)
    for number, _ in enumerate(loader):
        if number == 150:
            grown = loader.num_workers
            assert alive() >= grown
            break
    del _
    loader.close()
    assert alive() == 0


def test_a_state_taken_while_it_tunes_goes_on_exactly() -> None:
    loader, given = tuned(dataset=Sleeping(1000)), []
    epoch = iter(loader)
    while len(given) < 120:
        given += next(epoch)[1].tolist()
        state = loader.state_dict()
    again = tuned(dataset=Sleeping(1000))
    again.load_state_dict(state)
    rest = [index for _, batch in again for index in batch.tolist()]
    whole = fl.DataLoader(Sleeping(1000, 0), batch_size=4, shuffle=True, seed=3, num_workers=0)
    wanted = [index for _, batch in whole for index in batch.tolist()]
    assert given + rest == wanted


def test_workers_know_how_many_they_are() -> None:
    seen = set()

    class Asking(Sleeping):
        def __getitem__(self, index: int) -> Any:
            info = torch.utils.data.get_worker_info()
            seen.add((info.id, info.num_workers))
            return super().__getitem__(index)

    loader = tuned(dataset=Asking(2500))
    for _ in loader:
        pass
    assert all(worker < count for worker, count in seen)
    done = loader.crew.tuner.trials.done
    assert {count for _, count in seen} <= {
        loader.num_workers,
        *(each.threads for trial in done for each in trial[:2]),
    }


def test_a_prediction_that_did_not_come_true_is_believed_less() -> None:
    trials = Trials(2)
    for _ in range(100):
        trials.observe(100.0, 1.0, ladder(1.9))  # nothing helps, whatever is promised
    assert [trial.tried for trial in trials.done] == [1]
    assert trials.setting == 2


@pytest.mark.slow
def test_worker_processes_become_more_between_epochs_where_samples_wait() -> None:
    loader = fl.DataLoader(Sleeping(400, 0.01), batch_size=4, workers="processes")
    begun = loader.num_workers
    for _ in range(12):
        seen = torch.cat([index for _, index in loader])
        assert seen.tolist() == list(range(400))
        if loader.crew.changes:
            break
    assert loader.num_workers > begun
    assert loader.stats()["workers"]["tuning"][0].startswith(
        f"{loader.num_workers} processes instead of {begun} processes: "
    )
    for options in ({"num_workers": 2}, {"persistent_workers": True}):
        loader = fl.DataLoader(Sleeping(260, 0.01), batch_size=4, workers="processes", **options)
        begun = loader.num_workers
        for _ in range(2):
            for _ in loader:
                pass
        assert loader.num_workers == begun
        loader.close()


def test_the_cache_leaves_room_for_more_batches_only_within_the_budget() -> None:
    budget = MemoryBudget(100)
    budget.cache_room(80)
    budget.depth(4, copies=2)
    budget.batch = 10
    for reserve in (1, 2, 3, 4):
        budget.reserve = reserve
        room = budget.cache_room(80)
        assert room == {1: 70, 2: 40, 3: 20, 4: 0}[reserve]
    budget.reserve = 1
    assert budget.most() == 8


@pytest.mark.slow
def test_a_tuned_loader_can_be_pickled_and_begins_anew() -> None:
    loader = tuned()
    for _ in loader:
        pass
    other = pickle.loads(pickle.dumps(loader))
    assert other.stats()["workers"]["tuning"] == []
    assert len(next(iter(other))[1]) == 4


def test_the_number_of_workers_of_an_epoch_is_known_before_any_tuning() -> None:
    loader = fl.DataLoader([torch.zeros(1)] * 64, workers="threads", batch_size=2)  # type: ignore[arg-type]
    epoch = iter(loader)
    assert loader.crew.count == loader.num_workers == granted_cores()
    epoch.resize(1, 2)  # as the tuner does
    assert loader.crew.count == loader.num_workers == 1


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
        between_epochs.Reading, "of", lambda recorder, **_: SimpleNamespace(seconds=recorder.seconds)
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
