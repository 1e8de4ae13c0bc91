"""Bytes, memory, cores and times of stages in the figures of loaders."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

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
from foreload.record.spans import Stage
from foreload.record.stats import Stats, _percentiles
from tests.fake_device import FakeDevice
from tests.record.checked import KINDS, Slow, check


@pytest.mark.slow
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
    for _ in range(30):
        loader = fl.DataLoader(list(range(40)), batch_size=1, num_workers=0)
        times = []
        for epoch in range(2):
            for number, _ in enumerate(loader):
                times.append((epoch, time.perf_counter()))
                time.sleep(0.02 if number == 7 else 0.001)
        steps = [b - a for (one, a), (other, b) in pairwise(times) if one == other]
        expected = np.quantile(steps, (0.5, 0.95, 0.99), method="inverted_cdf").tolist()
        found = list(loader.stats()["batch_seconds"].values())
        # What else runs between the readings of the two clocks moves one of them, so one of several times has to
        # be near.
        if found == pytest.approx(expected, abs=0.004):
            break
    else:
        pytest.fail(f"{found} are not near {expected}")


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
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert tree.children_seconds(0, 0) == pytest.approx(ended.ru_utime + ended.ru_stime, abs=0.05)
    monkeypatch.setattr(
        psutil.Process, "memory_full_info", lambda self: (_ for _ in ()).throw(psutil.AccessDenied())
    )
    assert tree.tree_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)


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
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)  # whatever other tests did
    assert fl.DataLoader([1]).stats()["gpu"] is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 25)
    assert gpu.idle_share(None) == 0.75
    # A thread that has not chosen a device would be told of the first one, whichever the loop uses.
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for used, expected in (({2}, 2), ({1, 2}, None), (set[int](), None)):
        monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", used.__contains__, raising=False)
        for device in (None, torch.device("cuda"), torch.device("cpu")):
            asked: list[Any] = []
            monkeypatch.setattr(torch.cuda, "utilization", lambda device, asked=asked: asked.append(device) or 25)
            assert gpu.idle_share(device) == 0.75
            assert asked == [expected]
    assert gpu.idle_share(torch.device("cuda", 3)) == 0.75
    assert asked[-1] == torch.device("cuda", 3)

    class NVMLError(Exception):
        """Of pynvml, as a GPU that is split into instances raises it."""

    for error in (ModuleNotFoundError("pynvml"), RuntimeError("no driver"), NVMLError("Not Supported")):

        def unknown(device: Any, error: Exception = error) -> int:
            raise error

        monkeypatch.setattr(torch.cuda, "utilization", unknown)
        assert gpu.idle_share(torch.device("cuda", 0)) is None


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
