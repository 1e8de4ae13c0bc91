"""Figures of loaders, held against clocks and counts that the test keeps itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

import h5py
import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Dataset

import foreload as fl
from foreload import machine
from foreload.record import usage as gpu
from foreload.record import usage as tree
from foreload.record.restart import Restart
from foreload.record.spans import Stage
from foreload.record.stats import Stats, _percentiles
from tests.fake_device import FakeDevice

KINDS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
}


class Slow(Dataset[Any]):
    def __init__(self, size: int = 12, seconds: float = 0.003) -> None:
        self.size, self.seconds = size, seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((10,), float(index))


def check(stats: Stats) -> None:
    """What holds of all stats."""
    assert stats == json.loads(json.dumps(stats))
    assert list(stats["stages"]) == [stage.name for stage in Stage]
    assert stats.keys() == get_type_hints(Stats).keys()
    assert stats["seconds"] == pytest.approx(stats["wait_seconds"] + stats["loop_seconds"])
    assert stats["stages"]["wait"]["seconds"] == pytest.approx(stats["wait_seconds"])
    assert stats["stages"]["wait"]["count"] >= stats["batches"]
    assert 0 <= stats["wait_share"] <= 1
    assert 0 <= stats["cpu"]["share"] <= 1
    assert 0 <= stats["loop_cpu_seconds"] <= stats["loop_seconds"]
    for stage in stats["stages"].values():
        assert 0 <= stage["cpu_seconds"] <= stage["seconds"] * 1.001 + 1e-6
    if stats["batches"]:
        assert stats["samples_per_second"] == pytest.approx(stats["samples"] / stats["seconds"])
        assert stats["batches_per_second"] == pytest.approx(stats["batches"] / stats["seconds"])
        assert 0 < stats["first_batch_seconds"] <= stats["seconds"]
    batch = stats["batch_seconds"]
    assert 0 <= batch["median"] <= batch["p95"] <= batch["p99"]


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
    loader = fl.DataLoader(fl.CachedDataset(torch.randn(1000, 4)), batch_size=2, num_workers=0)
    list(loader)
    for _ in range(2):
        before, began = loader.stats()["seconds"], time.perf_counter()
        for number, _ in enumerate(loader):
            time.sleep(0.01)
            if number == 60:
                break
    took = time.perf_counter() - began
    stats = loader.stats()
    check(stats)
    assert took - 0.03 < stats["seconds"] - before <= took
    assert stats["batch_seconds"]["p99"] >= 0.01


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


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_read_are_those_of_the_files(kind: str, tmp_path: Path) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(40):
        (tmp_path / f"{number:02}.bin").write_bytes(random.bytes(1000 + 10 * number))
        pixels = random.integers(0, 255, (20 + number, 30, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number:02}.jpg")
        Image.fromarray(pixels).save(tmp_path / f"{number:02}.png")
    for ending, stages in (
        ("bin", {"read"}),
        ("jpg", {"read", "decode", "transform"}),
        ("png", {"read", "decode"}),
    ):
        paths = sorted(tmp_path.glob(f"*.{ending}"))
        own: dict[str, Any] = {"batch_size": 8, **KINDS[kind]}
        dataset: Any = fl.FileDataset(paths)
        if ending == "bin":
            own["collate_fn"] = list  # of different lengths
        else:
            dataset = fl.ImageDataset(paths, transform=fl.transforms.val(24), labels=[0] * 40, cache_size=0)
        loader = fl.DataLoader(dataset, **own)
        for _ in range(2):
            list(loader)
        stats = loader.stats()
        check(stats)
        assert stats["bytes_read"] == 2 * sum(path.stat().st_size for path in paths)
        for stage in stages:
            assert stats["stages"][stage]["samples"] == 80, (ending, stage)
        assert stats["loader"]["native"] == (ending != "bin")


def test_what_is_cached_is_not_read_again(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}").write_bytes(bytes(500))
    loader = fl.DataLoader(
        fl.FileDataset(tmp_path), batch_size=5, num_workers=0, cache="1MiB", transform=lambda x: x.float()
    )
    for _ in range(3):
        list(loader)
    stats = loader.stats()
    check(stats)
    assert stats["bytes_read"] == 20 * 500
    assert stats["cache"] is not None
    assert stats["cache"]["hits"] == 40
    assert stats["stages"]["cache"]["count"] > 0
    assert stats["stages"]["transform"]["count"] > 0


@pytest.mark.parametrize("many", [False, True])
def test_cache_and_transform_have_their_own_times(many: bool) -> None:
    class Whole(Slow):
        def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
            return [self[index] for index in indices]

    def slowly(sample: torch.Tensor) -> torch.Tensor:
        time.sleep(0.004)
        return sample + 1

    loader = fl.DataLoader(
        (Whole if many else Slow)(), batch_size=4, num_workers=0, cache="1MiB", transform=slowly
    )
    for _ in range(2):
        list(loader)
    stages = loader.stats()["stages"]
    check(loader.stats())
    assert stages["transform"]["seconds"] >= 24 * 0.004
    assert stages["sample"]["seconds"] >= 12 * 0.003  # once: the second time they came from the cache
    assert stages["transform"]["samples"] == stages["cache"]["samples"] == stages["sample"]["samples"] == 24
    # Nothing is counted twice. A stage of short spans is measured now and then, and its time extrapolated; so what
    # is compared are the spans themselves, and the sums of the stages whose spans are all long.
    own = own_seconds(loader.spans.recent())
    assert sum(own.values()) <= loader.stats()["wait_seconds"] * 1.001
    assert stages["transform"]["seconds"] == pytest.approx(own["transform"], rel=1e-6)
    assert stages["cache"]["seconds"] == pytest.approx(own["cache"], rel=1e-6)


def own_seconds(spans: Any) -> dict[str, float]:
    """The seconds of one thread's stages but the loop's waits, without those of spans within spans."""
    own = dict.fromkeys((stage.name for stage in Stage), 0.0)
    around: list[Any] = []
    for span in sorted(spans[spans["stage"] != Stage.wait], key=lambda span: (span["begin"], -int(span["end"]))):
        seconds = (span["end"] - span["begin"]) * 1e-9
        own[Stage(span["stage"]).name] += seconds
        while around and around[-1]["end"] < span["end"]:
            around.pop()
        if around:
            own[Stage(around[-1]["stage"]).name] -= seconds
        around.append(span)
    return own


def test_other_sources_say_what_they_read(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((64, 40), np.float32)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file.create_dataset("data", data=rows, chunks=(8, 40), compression="gzip")
    stats = self_check(fl.HDF5Dataset(tmp_path / "rows.h5", "data"))
    assert 0 < stats["bytes_read"] <= rows.nbytes
    assert stats["stages"]["decode"]["samples"] == 64
    text = tmp_path / "lines.txt"
    text.write_text("".join(f"line {number}\n" for number in range(64)))
    stats = self_check(fl.TextDataset(text, max_length=16))
    assert stats["stages"]["read"]["samples"] == stats["stages"]["decode"]["samples"] == 64
    for number in range(10):
        (tmp_path / f"{number}.bin").write_bytes(bytes(3000))
    subprocess.run(["tar", "cf", "s.tar", *(f"{n}.bin" for n in range(10))], cwd=tmp_path, check=True)
    stream = fl.DataLoader(fl.TarStream(tmp_path / "s.tar"), batch_size=5, num_workers=0, collate_fn=list)
    assert sum(map(len, stream)) == 10
    check(stream.stats())
    assert 30_000 < stream.stats()["bytes_read"] <= (tmp_path / "s.tar").stat().st_size


def self_check(dataset: Any) -> Stats:
    loader = fl.DataLoader(dataset, batch_size=8, num_workers=0)
    assert len(list(loader)) == 8
    check(loader.stats())
    return loader.stats()


def test_copies_to_a_device_are_timed_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = FakeDevice()
    monkeypatch.setattr("foreload.loader.side_stream", lambda where: stream)
    monkeypatch.setattr("foreload.device.prefetch.side_stream", lambda where, *, non_blocking=True: stream)
    loader = fl.DataLoader(Slow(), batch_size=3, num_workers=2, workers="threads", device="cpu")
    wrapped = fl.DataLoader(Slow(), batch_size=3, num_workers=0)
    for own, batches in ((loader, loader), (wrapped, fl.PrefetchLoader(wrapped, "cpu"))):
        started = time.perf_counter()
        given = 0
        slept: list[float] = []
        for batch in batches:
            given += len(batch)
            last = time.perf_counter()
            time.sleep(0.002)
            slept.append(time.perf_counter())
        stats = own.stats()
        check(stats)
        assert (stats["batches"], stats["samples"], given) == (4, 12, 12)
        assert slept[2] - slept[0] <= stats["seconds"] <= last - started
        assert stats["loop_seconds"] >= 3 * 0.002
        copied = stats["stages"]["device"]
        assert (copied["count"], copied["samples"], copied["bytes"]) == (4, 12, 12 * 40)
        assert copied["seconds"] == pytest.approx(4 * 0.25)  # by the simulated device


def test_percentiles_are_those_of_numpy() -> None:
    random = np.random.default_rng(0)
    for size in (1, 2, 10, 999):
        values, weights = random.random(size), random.integers(1, 5, size)
        shares = (0.5, 0.95, 0.99)
        expected = np.quantile(np.repeat(values, weights), shares, method="inverted_cdf")
        assert _percentiles(values, weights.astype(float), shares) == pytest.approx(expected.tolist())
    assert _percentiles(np.zeros(0), np.zeros(0), (0.5,)) == [0.0]


def test_batch_times_are_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = fl.DataLoader(list(range(40)), batch_size=1, num_workers=0)
    times = []
    for epoch in range(2):
        for number, _ in enumerate(loader):
            times.append((epoch, time.perf_counter()))
            time.sleep(0.02 if number == 7 else 0.001)
    steps = [b - a for (one, a), (other, b) in pairwise(times) if one == other]
    expected = np.quantile(steps, (0.5, 0.95, 0.99), method="inverted_cdf")
    assert list(loader.stats()["batch_seconds"].values()) == pytest.approx(expected.tolist(), abs=0.004)


def test_memory_is_that_of_the_whole_tree() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "x = b'x' * (80 << 20); print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    before = tree.tree_bytes()
    assert child.stdout is not None
    child.stdout.readline()
    grown = tree.tree_bytes()
    assert grown - before > 40 << 20 or grown > 80 << 20
    child.communicate(b"\n")
    assert tree.tree_bytes() < grown - (60 << 20)
    memory = fl.DataLoader([1]).stats()["memory"]
    assert memory["granted_bytes"] == machine.granted_memory()
    assert memory["container_bytes"] == machine.container_memory()
    assert memory["limit"] is None


def test_a_process_that_is_gone_meanwhile_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    ghost = psutil.Process(gone.pid)
    gone.wait()
    monkeypatch.setattr(psutil.Process, "children", lambda self, recursive: [])
    expected = tree.tree_bytes()
    monkeypatch.setattr(psutil.Process, "children", lambda self, recursive: [ghost])
    assert tree.tree_bytes() == pytest.approx(expected, rel=0.1)
    assert tree.children_seconds(0, 0) >= 0
    monkeypatch.setattr(
        psutil.Process, "memory_full_info", lambda self: (_ for _ in ()).throw(psutil.AccessDenied())
    )
    assert tree.tree_bytes() > 0


class Spinning(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        return index


@pytest.mark.parametrize("kind", KINDS)
def test_cores_that_are_used_are_counted(kind: str) -> None:
    loader = fl.DataLoader(Spinning(), batch_size=2, persistent_workers=kind != "none", **KINDS[kind])
    list(loader)
    stats = loader.stats()
    check(stats)
    used = stats["cpu"]["share"] * stats["cpu"]["cores"] * stats["seconds"]
    assert used == pytest.approx(min(used, 0.16), abs=0.05) or used > 0.1  # beginning takes some too
    assert stats["stages"]["sample"]["cpu_seconds"] >= 0.15
    loader.close()


def test_time_for_the_interpreters_lock_is_not_computing() -> None:
    over = threading.Event()

    def hold() -> None:
        while not over.is_set():
            sum(range(1000))

    holders = [threading.Thread(target=hold) for _ in range(2)]
    for holder in holders:
        holder.start()
    try:
        loader = fl.DataLoader(Spinning(), batch_size=2, num_workers=1, workers="threads")
        list(loader)
    finally:
        over.set()
        for holder in holders:
            holder.join()
    sample = loader.stats()["stages"]["sample"]
    assert 0.15 <= sample["cpu_seconds"] < 0.9 * sample["seconds"]


def test_a_gpu_that_nobody_uses_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fl.DataLoader([1]).stats()["gpu"] is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 25)
    assert gpu.idle_share(None) == 0.75

    def unknown(device: Any) -> int:
        raise ModuleNotFoundError("pynvml")

    monkeypatch.setattr(torch.cuda, "utilization", unknown)
    assert gpu.idle_share(torch.device("cuda", 0)) is None


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


def test_starting_processes_is_measured_once_for_each() -> None:
    options: dict[str, Any] = {
        "batch_size": 2,
        "num_workers": 2,
        "workers": "processes",
        "persistent_workers": True,
    }
    with fl.DataLoader(list(range(8)), **options) as loader:  # type: ignore[arg-type]
        assert loader.stats()["workers"]["start_cpu_seconds"] == 0
        assert len(list(loader)) == 4
        once = loader.stats()["workers"]["start_cpu_seconds"]
        assert len(list(loader)) == 4
        assert loader.stats()["workers"]["start_cpu_seconds"] == once > 1e-3
