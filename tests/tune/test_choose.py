"""The choice of workers: what is right first, then what a measurement says is fastest."""

from __future__ import annotations

import re
import time
import warnings
from typing import Any

import pytest
import torch

import foreload as fl
from foreload.dataset_state.copied import CopiedState
from foreload.machine import granted_cores
from foreload.tune import choose, measure, sample_cost
from foreload.tune.candidates import Measurement
from foreload.tune.choice import Choice
from foreload.tune.measure import TOO_LONG
from foreload.tune.workload import Workload
from foreload.workers import selection
from tests.tune.rows import Breaks, Rows, SharedWaits, Waits, chosen, without_workers

warnings.filterwarnings("ignore", message="This DataLoader will create")


@pytest.mark.parametrize(
    ("rates", "threads", "expected"),
    [
        ({("threads", 2): 110, ("processes", 2): 190}, True, ("processes", 2)),
        ({("threads", 2): 185, ("processes", 2): 190}, True, ("threads", 2)),
        ({("threads", 8): 800, ("threads", 32): 3000}, True, ("threads", 32)),
        ({("threads", 8): 800, ("threads", 32): 800}, True, ("threads", 8)),
        ({("threads", 2): 60, ("processes", 2): 70}, True, ("threads", 0)),
        ({}, True, ("threads", 3)),
        # Where threads may not load, their rate is only said.
        ({("threads", 2): 500, ("processes", 2): 190}, False, ("processes", 2)),
        ({("threads", 2): 500, ("processes", 8): 400, ("processes", 2): 390}, False, ("processes", 8)),
        ({("threads", 2): 500, ("processes", 2): 70}, False, ("threads", 0)),
        ({("threads", 2): 500, ("processes", 2): 95}, False, ("processes", 2)),
        ({}, False, ("threads", 0)),
    ],
)
def test_what_is_faster_is_chosen_of_what_may_load(rates: Any, threads: bool, expected: tuple[str, int]) -> None:
    measured = Measurement({("threads", 0): 100, **rates}, [], 0.0, "")
    best = choose._best(measured, Choice("threads", 3 if threads else 0, ""), 1000)
    assert (best.kind, best.count) == expected


def test_workers_that_were_not_measured_may_be_the_best() -> None:
    measured = Measurement({("threads", 0): 100, ("threads", 3): 60}, [("processes", 3)], 0.0, TOO_LONG, "")
    best = choose._best(measured, Choice("threads", 3, ""), 1000)
    assert (best.kind, best.count) == ("threads", 3)
    assert "3 processes could not be measured (they took too long)" in best.why


def spin(seconds: float) -> None:
    """Keep a core busy, which takes the longer the more others want it."""
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


class Spins(Rows):
    """Keeps a core busy, for a tenth of a millisecond."""

    def __getitem__(self, index: int) -> Any:
        spin(1e-4)
        return index


@pytest.mark.parametrize("size", [2_000, 100_000])
def test_what_the_loop_takes_to_look_at_the_dataset_counts(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Before each batch, six times as long as its samples take."""
    monkeypatch.setattr(CopiedState, "changed", lambda self: spin(0.005))
    assert without_workers(lambda: Spins(size))["kind"] == "threads"


@pytest.mark.parametrize(
    ("missing", "trouble", "size", "expected", "why"),
    [
        # Where a sample takes so long that no candidate was measured, the first one is taken on trust ...
        ([("processes", 2)], TOO_LONG, 1000, ("processes", 2), "a sample takes 2 s, too long to try"),
        ([("threads", 2), ("processes", 2)], TOO_LONG, 1000, ("threads", 2), "too long to try"),
        # ... but not after any other trouble, which would perhaps be the loop's.
        ([("processes", 2)], "OSError: no", 1000, ("threads", 0), r"could not be measured \(OSError: no\)"),
        ([], "", 1000, ("threads", 0), "an epoch takes 2e[+]03 s in one thread"),
    ],
)
def test_if_no_candidate_was_measured_the_reason_decides(
    missing: Any, trouble: str, size: int, expected: tuple[str, int], why: str
) -> None:
    measured = Measurement({("threads", 0): 0.5}, missing, 0.0, trouble, "")
    best = choose._best(measured, Choice("threads", 0, ""), size)
    assert (best.kind, best.count) == expected
    assert re.search(why, best.why), best.why


def test_a_state_keeps_the_calling_thread_whatever_the_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: Any = {("threads", 0): 1.0, ("processes", 2): 100.0}
    monkeypatch.setattr(choose, "measure_workers", lambda *_: Measurement(rates, [], 0.0, "", "it counts"))
    work = Workload(Rows(1000), 2, None, None, lambda *_: iter(()), ("processes",), (Rows(1000),))
    choice = choose.choose_workers(work)
    assert (choice.kind, choice.count, choice.why) == ("threads", 0, "it counts")


def test_without_a_kind_of_workers_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "measure_workers", lambda *_: pytest.fail("measured"))
    work = Workload(Rows(1000), 2, None, None, lambda *_: iter(()), ())
    assert (choose.choose_workers(work).kind, choose.choose_workers(work).count) == ("threads", 0)


def test_processes_are_not_spawned_for_a_short_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: Any = {("threads", 0): 100.0, ("processes", 2): 190.0, ("threads", 2): 300.0}
    monkeypatch.setattr(choose, "measure_workers", lambda *_: Measurement(rates, [], 8.0, "", ""))
    for size, method, expected in (
        (1000, "spawn", 0),
        (1000, "forkserver", 0),
        (3000, "spawn", 2),
        (1000, "fork", 2),
    ):
        monkeypatch.setattr(selection, "why_not_started", lambda *_: None)
        monkeypatch.setattr(selection, "start_method", lambda _, method=method: method)
        found = chosen(Rows(size))
        assert found["count"] == expected, found
        assert found["kind"] == ("processes" if expected else "threads")
        assert ("too short to start processes by other means than a fork" in found["why"]) == (expected == 0)
        # In any case it is said what threads would give.
        assert "they would load" in found["why"]
        assert "foreload.check_threads(dataset)" in found["why"]


@pytest.mark.slow
@pytest.mark.parametrize("dataset", [SharedWaits, Waits])
def test_waiting_workers_are_many_and_few_samples_are_not_measured(
    dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of which there are many on a busy machine, and where measuring takes longer.
    monkeypatch.setattr(sample_cost, "queued_seconds", lambda task: 0.0)
    monkeypatch.setattr(measure, "_TIMEOUT_SECONDS", 300)
    shared = dataset is SharedWaits
    for size, least in ((1000, granted_cores() + 1), (20, granted_cores() if shared else 0)):
        loader = fl.DataLoader(dataset(size), batch_size=8)
        next(iter(loader))
        found = loader.stats()["workers"]
        assert found["kind"] == ("threads" if shared or size == 20 else "processes"), found
        assert found["count"] >= least, found
        assert loader.num_workers == found["count"]
        assert (found["samples_per_second"] != {}) == (size >= 32)


def test_epochs_that_end_at_once_are_worth_no_workers() -> None:
    found = without_workers(lambda: Rows(2000))
    assert found["kind"] == "threads"
    assert "in one thread" in found["why"] or "less than handing it" in found["why"]


def test_what_choosing_took_is_in_the_statistics() -> None:
    loader = fl.DataLoader(SharedWaits(300), batch_size=20)
    list(loader)
    stats = loader.stats()
    assert 0 < stats["workers"]["choosing_seconds"] <= stats["first_batch_seconds"]
    assert stats["workers"]["count"] > 0
    named = fl.DataLoader(SharedWaits(300), batch_size=20, num_workers=2, workers="threads")
    list(named)
    assert named.stats()["workers"]["choosing_seconds"] == 0


def test_choosing_is_done_once_for_a_dataset_and_settings() -> None:
    dataset = SharedWaits(300)
    first = chosen(dataset)
    assert first["choosing_seconds"] > 0
    again = chosen(dataset)
    assert again == {**first, "choosing_seconds": 0.0}
    assert chosen(SharedWaits(300))["choosing_seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"workers": "threads", "num_workers": 1}, "as requested"),
        ({"workers": "processes", "num_workers": 1}, "as requested"),
        ({"num_workers": 0}, "as requested"),
        ({"num_workers": 1}, "each worker has a copy of the dataset, as in torch"),
    ],
)
def test_nothing_is_measured_if_workers_were_named(arguments: dict[str, Any], why: str) -> None:
    found = chosen(Breaks(1000), **arguments)
    assert found["why"] == why
    assert (found["samples_per_second"], found["choosing_seconds"]) == ({}, 0.0)


def test_workers_are_as_many_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Large(Rows):
        thread_safe = True

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.01)
            return torch.empty(100_000)

    for memory, most in ((1 << 40, 32), (8 * 2 * 8 * 400_000, 2), (1 << 20, 1)):
        for module in (choose, measure):
            monkeypatch.setattr(module, "granted_memory", lambda memory=memory: memory)
        found = chosen(Large(1000))
        assert 1 <= found["count"] <= most, found
        assert ("too much for more than" in found["why"]) == (most < 32)


class KeepsSome(Rows):
    """Waits, and keeps one sample in fifty."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.kept: list[int] = []

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001)
        if index % 50 == 7:
            self.kept.append(index)
        return super().__getitem__(index)


def test_a_state_that_changes_rarely_is_seen_in_the_first_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_cost, "_COST_SECONDS", 0.005)
    workers = chosen(KeepsSome(100_000))
    assert (workers["kind"], workers["count"]) == ("threads", 0)
    assert "loading samples changes 'kept'" in workers["why"]


class Counts(Rows):
    """Its author says that threads may share it, not that copies are as good."""

    thread_safe = True

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        sum(range(20_000))
        return super().__getitem__(index)


def test_processes_do_not_load_what_threads_may_share_but_copies_would_not() -> None:
    workers = chosen(Counts(100_000))
    # (On a busy machine, more threads than cores are tried too.)
    assert {"none", f"{granted_cores()} threads"} <= set(workers["samples_per_second"])
    assert not any("process" in tried for tried in workers["samples_per_second"])
    assert workers["kind"] == "threads"


class Computes(Rows):
    def __getitem__(self, index: int) -> Any:
        sum(range(20_000))
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("seconds", "busy", "size", "expected"),
    [
        (1e-3, 1e-3, 500, ("processes", 2)),  # half a second
        (1e-3, 1e-3, 60, ("threads", 0)),  # so short that starting takes as long
        (1e-3, 1e-3, 3000, ("processes", 2)),  # three seconds, and clear
        (1e-3, 1e-6, 500, ("processes", 8)),  # waits
        (3e-4, 3e-4, 10_000, ("processes", 2)),
        (1e-5, 1e-5, 50_000, ("threads", 0)),  # eight samples of a batch take less than handing it over
        (1e-6, 1e-6, 100_000_000, ("threads", 0)),  # handing over takes longer, which nobody need try
    ],
)
def test_what_is_clear_by_an_estimate_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, seconds: float, busy: float, size: int, expected: tuple[str, int]
) -> None:
    class Alone:
        def __init__(self, *_: Any) -> None:
            self.best = 1 / seconds

        def rate(self) -> float:
            return self.best

        glance = rate

    monkeypatch.setattr(choose, "granted_cores", lambda: 2)
    monkeypatch.setattr(measure, "sample_cost", lambda *_: (seconds, busy, None))
    monkeypatch.setattr(measure, "Turns", Alone)
    workers = chosen(Computes(size))
    assert (workers["kind"], workers["count"]) == expected
    assert ("should load" in workers["why"]) == (expected[0] == "processes")


def test_what_samples_cost_in_batches_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def collate(samples: list[Any]) -> Any:
        until = time.perf_counter() + 3e-4 * len(samples)
        while time.perf_counter() < until:
            pass
        return samples

    monkeypatch.setattr(choose, "granted_cores", lambda: 2)
    monkeypatch.setattr(measure, "sample_cost", lambda *_: (1e-4, 1e-4, None))
    loader = fl.DataLoader(Rows(2000), batch_size=16, collate_fn=collate)
    loader.choose_workers()
    assert loader.stats()["workers"]["samples_per_second"]["none"] < 0.75 / 1e-4


@pytest.mark.slow
def test_large_samples_that_cost_little_are_not_handed_over_in_short_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Large(Rows):
        def __getitem__(self, index: int) -> Any:
            return torch.empty(1 << 22, dtype=torch.uint8)

    monkeypatch.setattr(measure, "sample_cost", lambda *_: (3e-4, 3e-4, None))
    without_workers(lambda: Large(1000))


class AsksWhere(Rows):
    """Waits, and says which worker it is in."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001)
        info = torch.utils.data.get_worker_info()
        return -1 if info is None else info.id


@pytest.mark.parametrize("size", [300, 1_000, 100_000])
def test_samples_that_ask_which_worker_they_are_in_are_loaded_as_in_torch(size: int) -> None:
    workers = chosen(AsksWhere(size))
    assert (workers["kind"], workers["count"]) == ("threads", 0)
    assert "samples ask for get_worker_info()" in workers["why"]
    assert next(iter(fl.DataLoader(AsksWhere(size), batch_size=2))).tolist() == [-1, -1]
