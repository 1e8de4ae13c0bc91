"""Memory as the kernel tells it, also of containers; throughput of any loop."""

from __future__ import annotations

import dataclasses
import warnings
from collections import UserDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import foreload as fl
from foreload import machine
from foreload.nested import count_samples
from foreload.recipes import monitors

GIB = 1 << 30


def test_it_agrees_with_psutil_where_nothing_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    for _ in range(30):
        now, theirs = fl.MemoryMonitor().update(), psutil.virtual_memory()
        assert now["total_gb"] == pytest.approx(theirs.total / GIB)
        assert now["used_gb"] == pytest.approx(now["total_gb"] - now["available_gb"])
        assert now["percent"] == pytest.approx(100 * now["used_gb"] / now["total_gb"])
        # Others on this machine may take or free memory between the two readings, but not each time.
        if now["available_gb"] == pytest.approx(theirs.available / GIB, abs=0.5):
            break
    else:
        pytest.fail(f"{now['available_gb']} is not near {theirs.available / GIB}")


@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_limit_counts(version: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path if version == 2 else tmp_path / "memory"
    folder.mkdir(exist_ok=True)
    names = ("memory.max", "memory.current", "") if version == 2 else (
        "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
    )  # fmt: skip
    (folder / names[0]).write_text(f"{GIB}\n")
    (folder / names[1]).write_text(f"{GIB // 2}\n")
    prefix = names[2]
    (folder / "memory.stat").write_text(
        f"{prefix}anon 1\n{prefix}inactive_file {GIB // 8}\n{prefix}active_file {GIB // 8}\n"
    )
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monitor = fl.MemoryMonitor()
    now = monitor.update()
    assert now == {"used_gb": 0.25, "available_gb": 0.75, "total_gb": 1.0, "percent": 25.0}
    assert monitor.check_memory_constraint(3 * GIB // 4)
    assert not monitor.check_memory_constraint(3 * GIB // 4 + 1)
    assert not fl.MemoryMonitor(0.5).check_memory_constraint(GIB // 2)
    assert fl.MemoryMonitor(0.5).check_memory_constraint(GIB // 4)
    (folder / names[1]).write_text(f"{3 * GIB // 4}\n")
    stats = monitor.get_memory_stats()
    assert (stats["used_gb"], stats["peak_gb"], stats["average_gb"], stats["readings"]) == (0.5, 0.5, 0.375, 2)
    assert (stats["peak_percent"], stats["average_percent"]) == (50, 37.5)
    monitor.start_monitoring()
    (folder / names[1]).write_text(f"{GIB // 2}\n")
    assert monitor.get_memory_stats()["peak_gb"] == 0.25
    strict = fl.MemoryMonitor(0.2)
    with pytest.warns(UserWarning, match=r"0\.2 of the 1\.0 GiB of memory that this process may use"):
        strict.update()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strict.update()  # said once
    (folder / names[0]).write_text("max" if version == 2 else str((1 << 63) - 4096))
    assert monitor.update()["total_gb"] == pytest.approx(psutil.virtual_memory().total / GIB)


@pytest.mark.slow
def test_real_memory_that_is_taken_is_seen() -> None:
    monitor = fl.MemoryMonitor()

    def rise() -> float:
        before = monitor.update()["used_gb"]
        held = np.ones(GIB // 2, np.uint8)
        after = monitor.update()["used_gb"]
        assert monitor.get_memory_stats()["peak_gb"] >= after
        del held
        return after - before

    # Others on this machine may free as much at the same moment, but not each time.
    assert any(0.25 < rise() < 0.75 for _ in range(20))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fl.MemoryMonitor(0), ValueError, "max_memory_usage is a share, above 0 and at most 1, got 0"),
        (lambda: fl.MemoryMonitor("half"), TypeError, "max_memory_usage must be a number"),
        (lambda: fl.MemoryMonitor().check_memory_constraint(-1), ValueError, "required_bytes must be 0 or more"),
        (lambda: fl.MemoryMonitor().check_memory_constraint(1.5), TypeError, "required_bytes must be an int"),
        (lambda: fl.DataLoaderPerformanceMonitor().update_batch([1]), RuntimeError, "call start_iteration"),
    ],
)
def test_wrong_use_is_named(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(monitors.time, "perf_counter", lambda: self.now)


def test_what_counts_is_the_time_to_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monitor = fl.DataLoaderPerformanceMonitor()
    assert set(monitor.get_stats().values()) == {0}
    monitor.start_iteration()
    for seconds, rows in ((1, 4), (3, 2)):
        clock.now += seconds
        monitor.update_batch((torch.zeros(rows, 3), torch.zeros(rows)))
    clock.now += 50  # between epochs
    monitor.start_iteration()
    clock.now += 2
    monitor.update_batch()
    stats = monitor.get_stats()
    assert {name: stats[name] for name in stats if "usage" not in name} == {
        "total_batches": 3,
        "total_samples": 6,
        "total_time": 6,
        "avg_batch_time": 2,
        "min_batch_time": 1,
        "max_batch_time": 3,
        "batches_per_second": 0.5,
        "samples_per_second": 1,
    }
    assert 0 < stats["avg_memory_usage"] <= stats["peak_memory_usage"] <= 100


def burn(seconds: float) -> None:
    from time import process_time

    end = process_time() + seconds
    while process_time() < end:
        pass


class Burning(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        burn(0.05)
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_the_work_of_this_process_and_of_its_workers_is_seen(workers: int) -> None:
    monitor = fl.DataLoaderPerformanceMonitor()
    monitor.start_iteration()
    for batch in torch.utils.data.DataLoader(Burning(), batch_size=2, num_workers=workers):
        monitor.update_batch(batch)
    stats = monitor.get_stats()
    assert stats["total_samples"] == 8
    spent = stats["avg_cpu_usage"] / 100 * stats["total_time"] * machine.granted_cores()
    assert spent > 0.3  # of 0.4 s
    quiet = fl.DataLoaderPerformanceMonitor(watch=False)
    quiet.start_iteration()
    quiet.update_batch()
    assert quiet.get_stats()["avg_cpu_usage"] == quiet.get_stats()["avg_memory_usage"] == 0


@dataclasses.dataclass
class Fields:
    name: str
    x: torch.Tensor


Pair = namedtuple("Pair", "x y")
x = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (x, 4),
        (x.numpy(), 4),
        ([x, torch.zeros(4)], 4),
        ([x], 4),
        ([[x, x], torch.zeros(4)], 4),
        (Pair(x, ["a"] * 4), 4),
        ({"lr": 0.1, "ids": x}, 4),
        (UserDict(ids=x), 4),
        (Fields("train", x), 4),
        (pack_sequence([torch.ones(3), torch.ones(2)]), 2),
        ((x, torch.zeros(9)), 4),  # rows, and boxes of all of them
        ([torch.zeros(3), torch.zeros(2), torch.zeros(5)], 3),  # of different lengths, not collated
        ([(x, 1), (x, 2), (x, 3)], 3),
        ([{"image": x}, {"image": x}], 2),
        (((x, x, x), ({"boxes": x}, {"boxes": x}, {"boxes": x})), 3),  # tuple(zip(*batch)), as for detection
        ([1, 2, 3, 4, 5], 5),
        (["a", "b"], 2),
        (torch.tensor(1.0), 1),
        (3, 1),
        (None, 1),
        ("text", 1),
        ([], 0),
    ],
)
def test_samples_are_counted_in_batches_of_any_form(batch: Any, samples: int) -> None:
    assert count_samples(batch) == samples
