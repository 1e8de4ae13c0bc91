"""Measuring workers for a choice: it ends, is not fooled by pauses, and leaves no trace."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import random
import threading
import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import foreload as fl
from foreload.dataset_state.digest import StateWatch
from foreload.machine import granted_cores
from foreload.tune import choose, measure
from foreload.tune.candidates import never_pays
from foreload.tune.sample_cost import _collating, sample_cost
from foreload.tune.workload import STRIDE, Sending, Workload
from tests.tune.rows import Breaks, Rows, SharedWaits, chosen

warnings.filterwarnings("ignore", message="This DataLoader will create")


@pytest.mark.slow
def test_candidates_that_find_no_room_together_are_measured_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Large(Rows):
        thread_safe = True

        def __getitem__(self, index: int) -> Any:
            sum(range(100_000))
            return torch.empty(1 << 20, dtype=torch.uint8)

    monkeypatch.setattr(choose, "granted_cores", lambda: 1)
    # On a busy machine, it seems to wait, and to take too long.
    monkeypatch.setattr(measure, "sample_cost", lambda *_: (0.002, 0.002, None))
    monkeypatch.setattr(measure, "_TIMEOUT_SECONDS", 100.0)
    for room, found in (
        ("1GiB", ("1 threads", "1 processes")),
        ("20MiB", ("1 threads", "1 processes")),
        ("8MiB", ()),
    ):
        loader = fl.DataLoader(Large(10_000), batch_size=2, memory=room)
        loader.choose_workers()
        workers = loader.stats()["workers"]
        assert set(workers["samples_per_second"]) == {"none", *found}, workers
        assert ("no room to try" in workers["why"]) == (not found)


def test_each_candidate_has_turns_and_its_best_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[Any] = []

    class FakeTurns:
        def __init__(self, loader: Any, kind: str, number: int, batch: int) -> None:
            self.who = kind, number
            self.best = 0.0

        def rate(self) -> float:
            turns.append(self.who)
            if slow:
                now[0] += 1.0
            self.best = max(self.best, float(100 if len(turns) in {1, 5} else 50))
            return self.best

        def rest(self) -> None:
            turns.append("rest")

        def close(self) -> None:
            pass

    now = [0.0]
    monkeypatch.setattr(measure, "Turns", FakeTurns)
    monkeypatch.setattr(measure, "sample_cost", lambda *_: (0.01, 0.01, None))
    monkeypatch.setattr(measure.time, "monotonic", lambda: now[0])
    alone: Any = ("threads", 0)
    for kinds in (("threads", "processes"), ("processes",), ("threads",)):
        work = Workload(Rows(100_000), 2, None, None, lambda *trial: iter(()), kinds)
        for slow, rounds in ((False, 3), (True, 1)):
            turns.clear()
            answers = list(measure._measure(work, 2))
            who = [(kind, 2) for kind in kinds]
            # If threads may not load, they have one turn in the end, to say what they would load.
            last = [] if "threads" in kinds else [("threads", 2)]
            assert [turn for turn in turns if turn != "rest"] == [alone, *[*who, alone] * rounds, *last]
            assert turns.count("rest") == (len(kinds) + 1) * rounds + len(last)
            rates = {name: rate for name, rate in answers if isinstance(name, tuple)}
            assert rates[alone] == 100
            assert set(rates) == {alone, *who, *last}
            assert dict(answers)["candidates"] == who


class Logged(Rows):
    """A dataset that shows from outside which process loads it."""

    opened: int | None = None

    def __getitem__(self, index: int) -> Any:
        Logged.opened = os.getpid()
        torch.rand(1), random.random(), np.random.rand()
        return index


def children() -> list[str]:
    return pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_measuring_leaves_no_trace() -> None:
    before = children()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert chosen(Logged(2000))["samples_per_second"]
    assert Logged.opened is None
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]
    assert children() == before


class Hangs(Rows):
    """Hangs where it is measured."""

    home = 0

    def __getitem__(self, index: int) -> Any:
        if os.getpid() != Hangs.home:
            time.sleep(100)
        return index


@pytest.mark.slow
def test_what_cannot_be_measured_is_loaded_by_the_calling_thread() -> None:
    loader = fl.DataLoader(Breaks(1000), batch_size=8)
    with pytest.raises(ValueError, match="nothing can be loaded here"):
        next(iter(loader))
    workers = loader.stats()["workers"]
    assert "ValueError: nothing can be loaded here" in workers["why"]
    assert (workers["kind"], workers["count"]) == ("threads", 0)
    Hangs.home = os.getpid()
    loader = fl.DataLoader(Hangs(300), batch_size=100)
    assert torch.cat(list(loader)).tolist() == list(range(300))
    assert "took too long" in loader.stats()["workers"]["why"]
    assert loader.num_workers == 0


def test_what_cannot_be_measured_is_loaded_by_threads_that_may() -> None:
    class SharedBreaks(Breaks):
        thread_safe = True

    found = chosen(SharedBreaks(1000))
    assert (found["kind"], found["count"]) == ("threads", granted_cores())
    assert "ValueError: nothing can be loaded here" in found["why"]


def test_measuring_computes_also_after_torch_has_used_all_cores() -> None:
    class Sums(Rows):
        def __getitem__(self, index: int) -> Any:
            return (torch.ones(400_000) * index).sum()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(4_000_000).mul(2).sum()  # starts torch's threads
        assert chosen(Sums(2000))["samples_per_second"]
    finally:
        torch.set_num_threads(before)


def test_measuring_does_not_touch_the_cache() -> None:
    loader = fl.DataLoader(SharedWaits(400), batch_size=50, cache="1MiB")
    list(loader)
    assert loader.stats()["workers"]["samples_per_second"]
    counts = loader.stats()["cache"]
    assert (counts["hits"], counts["misses"]) == (0, 400)


def test_the_cost_of_a_sample_is_looked_at_before_and_after_others() -> None:
    class Lazy(Rows):
        seen: int | None = None

        def __getitem__(self, index: int) -> Any:
            self.seen = index
            return index

    dataset = Lazy(97)
    watch = StateWatch(dataset)
    sample_cost(Workload(dataset, None, None, None, lambda *_: iter(())), 97, watch, [])
    assert watch.change == "seen"


def test_no_thread_of_the_loops_process_loads_while_workers_are_measured() -> None:
    loaded: list[int] = []

    class Where(Rows):
        def __getitem__(self, index: int) -> Any:
            loaded.append(threading.get_ident())
            time.sleep(0.005)
            return index

    chosen(Where(1000))
    assert loaded == []


class CountsForAll(Dataset[int]):
    """A dataset that counts what all processes load."""

    def __init__(self, calls: Any) -> None:
        self.calls = calls

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        if isinstance(self.calls, torch.Tensor):
            self.calls += 1
            return int(self.calls)
        with self.calls.get_lock():
            self.calls.value += 1
            return int(self.calls.value)


@pytest.mark.parametrize("calls", [torch.zeros(1).share_memory_(), multiprocessing.Value("i", 0)])
def test_measuring_is_not_seen_in_shared_memory(calls: Any) -> None:
    """A counter that processes share counts what the loop gets, as in torch, and no copies load by it."""
    loader = fl.DataLoader(CountsForAll(calls), 32)
    assert torch.cat(list(loader)).tolist() == list(range(1, 65))
    assert "changes 'calls" in loader.stats()["workers"]["why"]


def test_at_least_one_sample_is_measured_however_long_the_machine_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foreload.tune.sample_cost._COST_SECONDS", 0.0)
    dataset = Rows(97)
    work = Workload(dataset, None, None, None, lambda *_: iter(()))
    seconds, *_ = sample_cost(work, 97, StateWatch(dataset), [])
    assert seconds > 0


def test_a_pause_of_the_machine_is_not_the_time_of_a_sample() -> None:
    class Paused(Rows):
        paused = False

        def __getitem__(self, index: int) -> Any:
            if index == 3 * STRIDE + 1 and not self.paused:
                self.paused = True
                time.sleep(0.1)
            return index

    dataset = Paused(10 * STRIDE)
    work = Workload(dataset, None, None, None, lambda *_: iter(()))
    seconds, busy, _ = sample_cost(work, len(dataset), StateWatch(dataset), [])
    assert busy <= seconds < 0.02


def test_what_a_collate_function_takes_counts() -> None:
    """Texts that are tokenized in batches, say: a sample takes next to nothing, and its batch all of it."""
    dataset, sizes = Rows(5000), []

    def collate(samples: list[Any]) -> None:
        sizes.append(len(samples))
        time.sleep(0.002 * len(samples))

    work = Workload(dataset, 16, None, None, lambda *_: iter(()), collate=collate)
    seconds, busy, _ = sample_cost(work, len(dataset), StateWatch(dataset), [])
    assert seconds >= 0.001
    assert busy <= seconds
    assert max(sizes) <= 16


@pytest.mark.parametrize(("fixed", "each"), [(0.0, 0.002), (0.004, 0.0), (0.15, 0.001), (0.6, 0.0)])
@pytest.mark.parametrize(("count", "batch_size"), [(2, 320), (64, 320), (16, 16), (1, 1)])
def test_what_any_batch_takes_is_shared_by_its_samples(
    monkeypatch: pytest.MonkeyPatch, fixed: float, each: float, count: int, batch_size: int
) -> None:
    monkeypatch.setattr(
        "foreload.tune.sample_cost._timed", lambda collate, samples: (None, fixed + each * len(samples))
    )
    _, (seconds, busy) = _collating(lambda samples: None, [0] * count, fixed + each, batch_size)
    assert seconds == pytest.approx(fixed / batch_size + each)
    assert 0 <= busy <= seconds


def test_what_it_takes_to_send_the_batches_of_a_collate_function_counts() -> None:
    dataset = Rows(5000)
    work = Workload(dataset, 16, None, None, lambda *_: iter(()), kinds=("processes",), collate=list)
    _, _, sent = sample_cost(work, len(dataset), StateWatch(dataset), [])
    assert sent is not None
    assert min(sent) >= 0
    cheap, costly = (replace(work, sending=Sending(*each)) for each in ((0.0, 0.0, 0.0), (1e-5, 0.0, 2e-5)))
    assert not never_pays(cheap, 2, 1e-4, 1e-4)
    assert never_pays(costly, 2, 1e-5, 1e-5)
    plain = replace(work, collate=None)
    assert sample_cost(plain, len(dataset), StateWatch(dataset), [])[2] is None


class Buckets(torch.utils.data.Sampler[list[int]]):
    """Batches of a sampler of one's own, which says nothing of their size."""

    def __iter__(self) -> Any:
        return iter([[number, number + 1] for number in range(0, 400, 2)])

    def __len__(self) -> int:
        return 200


class Texts(Rows):
    """Samples that only a collate function makes a batch of."""

    def __getitem__(self, index: int) -> Any:
        sum(range(100_000))
        return {"text": "a" * (index % 7)}


@pytest.mark.slow
@pytest.mark.parametrize("collate", [None, lambda samples: [sample["text"] for sample in samples]])
def test_batches_of_a_sampler_of_ones_own_are_measured(collate: Any) -> None:
    loader = fl.DataLoader(Texts(400), batch_sampler=Buckets(), collate_fn=collate)
    loader.choose_workers()
    found = loader.stats()["workers"]
    assert "could not be measured" not in found["why"]
    assert found["samples_per_second"]
