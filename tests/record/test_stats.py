"""Figures of loaders, held against clocks and counts that the test keeps itself."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

import foreload as fl
from foreload.record.restart import Restart
from tests.record.checked import KINDS, Slow, check


def iterate(loader: Any) -> tuple[int, dict[str, float]]:
    """Two epochs with a loop that works: its batches, and what its own clock says, in seconds."""
    given = 0
    mine = dict.fromkeys(("seconds", "loop_seconds", "wait_seconds"), 0.0)
    for _ in range(2):
        started = asked = time.perf_counter()
        for _ in loader:
            got = last = time.perf_counter()
            mine["wait_seconds"] += got - asked
            time.sleep(0.01)
            given += 1
            asked = time.perf_counter()
            mine["loop_seconds"] += asked - got
        mine["seconds"] += last - started
        mine["loop_seconds"] -= asked - last  # of the last batch
        time.sleep(0.05)  # between epochs
    return given, mine


@pytest.mark.parametrize("kind", KINDS)
def test_a_loops_own_time_is_not_waiting(kind: str) -> None:
    for _ in range(30):
        loader = fl.DataLoader(Slow(), batch_size=2, **KINDS[kind])
        given, mine = iterate(loader)
        stats = loader.stats()
        check(stats)
        assert (stats["epochs"], stats["batches"], stats["samples"], given) == (2, 12, 24, 12)
        # The loader's clock is read before the loop's own begins and after it ends. What else runs in between is
        # in the loader's alone, so one of several times has to be near.
        assert stats["loop_seconds"] >= mine["loop_seconds"] - 0.001
        if all(stats[name] == pytest.approx(value, abs=0.01) for name, value in mine.items()):
            break
    else:
        pytest.fail(f"{[stats[name] for name in mine]} are not near {mine}")
    assert stats["loop_cpu_seconds"] < 0.5 * stats["loop_seconds"]
    assert stats["stages"]["sample"]["seconds"] >= 24 * 0.003
    assert stats["stages"]["batch"]["count"] == 12
    assert stats["batch_seconds"]["median"] >= 0.01
    assert stats["workers"]["kind"] == ("processes" if kind == "processes" else "threads")
    assert stats["workers"]["depth"] == (0 if kind == "none" else 4)
    assert stats["loader"] == {
        "batch_size": 2,
        "iterable": False,
        "pin_memory": False,
        "native": False,
        "stock": False,
        "dataset": "Slow",
        "direct_problem": None,
    }


def test_before_the_first_batch_all_is_zero() -> None:
    loader = fl.DataLoader(Slow(), num_workers=0)
    stats = loader.stats()
    check(stats)
    assert stats["epochs"] == stats["batches"] == stats["seconds"] == stats["samples_per_second"] == 0
    iter(loader)
    check(loader.stats())
    assert loader.stats()["epochs"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_that_are_left_count_as_far_as_they_came(kind: str) -> None:
    loader = fl.DataLoader(Slow(seconds=0.0001), batch_size=2, **KINDS[kind])
    for number, _ in enumerate(loader):
        if number == 2:
            break
    assert loader.stats()["batches"] == 3
    list(loader)
    epoch = iter(loader)
    next(epoch)
    epoch.close()
    stats = loader.stats()
    check(stats)
    assert (stats["epochs"], stats["batches"], stats["samples"]) == (3, 10, 20)


def test_batches_that_are_gathered_are_counted_one_by_one() -> None:
    loader = fl.DataLoader(fl.CachedDataset(torch.randn(1000, 100)), batch_size=64, num_workers=0)
    for number, _ in enumerate(loader):
        assert loader.stats()["batches"] == number + 1
        assert loader.stats()["samples"] == min(1000, (number + 1) * 64)
        if number == 2:
            break
    for _ in loader:
        time.sleep(0.001)
    stats = loader.stats()
    check(stats)
    assert (stats["batches"], stats["samples"]) == (3 + 16, 3 * 64 + 1000)
    assert stats["loader"]["native"]
    assert stats["batch_seconds"]["median"] >= 0.001
    assert stats["stages"]["batch"]["bytes"] >= 1000 * 400
    limited = fl.DataLoader(fl.CachedDataset(torch.randn(1000, 100)), batch_size=64, num_workers=0, memory="64MiB")
    assert len(list(limited)) == limited.stats()["batches"] == 16
    assert limited.stats()["samples"] == 1000


def test_who_takes_one_batch_of_each_epoch_has_no_more_gathered() -> None:
    loader = fl.DataLoader(fl.CachedDataset(torch.randn(1000, 4)), batch_size=2, num_workers=0)
    for _ in range(20):
        next(iter(loader))
    assert loader.stats()["stages"]["batch"]["count"] == loader.stats()["batches"] == 20


def test_batches_that_are_gathered_take_the_time_of_the_loop() -> None:
    for _ in range(30):
        loader = fl.DataLoader(fl.CachedDataset(torch.randn(1000, 4)), batch_size=2, num_workers=0)
        list(loader)
        for _ in range(2):
            before, began = loader.stats()["seconds"], time.perf_counter()
            for number, _ in enumerate(loader):
                last = time.perf_counter()
                time.sleep(0.01)
                if number == 60:
                    break
        took = time.perf_counter() - began
        stats = loader.stats()
        check(stats)
        own = stats["seconds"] - before
        assert own <= took
        assert stats["batch_seconds"]["p99"] >= 0.01
        # What else runs between the readings of the two clocks is in one of them alone, so one of several times
        # has to be near.
        if own > last - began - 0.02:
            break
    else:
        pytest.fail(f"{own} is not near {last - began}")


def test_counts_of_gathered_batches_never_fall() -> None:
    loader = fl.DataLoader(fl.CachedDataset(torch.randn(100_000, 4)), batch_size=8, num_workers=0)
    over, seen = threading.Event(), [(0, 0)]

    def ask() -> None:
        while not over.is_set():
            sums = loader.recorder.sums()
            seen.append((sums["batches"], sums["samples"]))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    asking = threading.Thread(target=ask)
    asking.start()
    for number in range(4):
        for batch, _ in enumerate(loader):
            if number % 2 and batch == 1001:
                break
    over.set()
    asking.join()
    sys.setswitchinterval(interval)
    assert seen == sorted(seen)
    assert loader.stats()["batches"] == 2 * 12_500 + 2 * 1002


@pytest.mark.slow
def test_an_epoch_that_goes_on_in_a_fork_is_counted_there_from_its_beginning() -> None:
    loader = fl.DataLoader(fl.CachedDataset(torch.randn(200, 4)), batch_size=2, num_workers=0)
    list(loader)
    epoch = iter(loader)
    for _ in range(20):
        next(epoch)
    child = os.fork()
    if child == 0:
        failed = True
        with suppress(BaseException):
            check(loader.stats())
            assert loader.stats()["batches"] == loader.stats()["samples"] == 0
            for _ in epoch:
                assert 0 <= loader.stats()["batches"] <= 80
                str(loader.report())
            check(loader.stats())
            failed = False
        os._exit(failed)
    assert os.waitpid(child, 0)[1] == 0
    assert loader.stats()["batches"] == 120


class Triples:
    """A batch sampler of a user's own."""

    batch_size = np.int64(3)

    def __init__(self, make: Any) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return (self.make(range(first, first + 3)) for first in range(0, 12, 3))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [iter, set, tuple, np.array, torch.tensor, lambda those: list(np.array(those))])
def test_batches_may_be_asked_for_with_anything(make: Any, kind: str) -> None:
    for dataset in (Slow(seconds=0), torch.utils.data.TensorDataset(torch.arange(12.0))):
        loader = fl.DataLoader(dataset, batch_sampler=Triples(make), **KINDS[kind])
        assert len(list(loader)) == 4
        stats = loader.stats()
        check(stats)
        assert stats["samples"] == stats["stages"]["batch"]["samples"] == 12
        assert stats["loader"]["batch_size"] == 3


def test_what_was_lost_with_a_worker_goes_through_json() -> None:
    loader = fl.DataLoader(Slow())
    for indices in ([[np.int64(3), torch.tensor(4)], (5, "six")], [None, {7}]):
        loader.restarts.append(Restart(0, 1, -9, indices))
    check(loader.stats())
    assert [lost["indices"] for lost in loader.stats()["restarts"]] == [[[3, 4], [5, "six"]], [None, "{7}"]]


@pytest.mark.parametrize("kind", KINDS)
def test_samples_that_are_skipped_are_not_given(kind: str) -> None:
    class Bad(Slow):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index in (1, 6, 7):
                raise ValueError(index)
            return super().__getitem__(index)

    loader = fl.DataLoader(Bad(seconds=0), batch_size=2, on_error="skip", **KINDS[kind])
    given = [len(batch) for batch in loader]
    stats = loader.stats()
    check(stats)
    assert (stats["batches"], stats["samples"], stats["errors"]) == (len(given), sum(given), 3) == (5, 9, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_ends_no_account(kind: str) -> None:
    class Broken(Slow):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 5:
                raise ValueError("five")
            return super().__getitem__(index)

    loader = fl.DataLoader(Broken(seconds=0.001), batch_size=2, **KINDS[kind])
    epoch, given, failed = iter(loader), 0, 0
    while True:
        try:
            next(epoch)
            given += 1
        except ValueError:
            failed += 1
        except StopIteration:
            break
    assert (given, failed) == (5, 1)
    check(loader.stats())
    assert loader.stats()["batches"] == 5


def test_stats_may_be_asked_for_by_another_thread_while_batches_come() -> None:
    loader = fl.DataLoader(Slow(200, 0.0002), batch_size=2, num_workers=2, workers="processes")
    over, seen = threading.Event(), [0]

    def ask() -> None:
        while not over.is_set():
            stats = loader.stats()
            assert seen[-1] <= stats["batches"] <= 100
            seen.append(stats["batches"])

    asking = threading.Thread(target=ask)
    asking.start()
    assert sum(len(batch) for batch in loader) == 200
    over.set()
    asking.join()
    assert loader.stats()["batches"] == 100
