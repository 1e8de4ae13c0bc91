"""Spans: who did what when, held against what the dataset itself notes down."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import foreload as fl
from foreload import _native
from foreload.record.spans import SPAN, Spans, Stage

PAUSE = 0.002


class Noting(Dataset[Any]):
    """Sleeps, and writes to a file when each sample began and ended."""

    def __init__(self, folder: Path, size: int = 24) -> None:
        self.folder, self.size = folder, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        began = time.monotonic_ns()
        time.sleep(PAUSE)
        with open(self.folder / f"{os.getpid()}-{threading.get_ident()}", "a") as file:
            file.write(f"{index} {began} {time.monotonic_ns()}\n")
        return torch.tensor([index])

    def notes(self) -> list[list[int]]:
        lines = [line for file in self.folder.iterdir() for line in file.read_text().splitlines()]
        return [[int(word) for word in line.split()] for line in lines]


class Counting(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        for number in range(20):
            if info is None or number % info.num_workers == info.id:
                time.sleep(PAUSE)
                yield number


def of(spans: Any, stage: Stage) -> Any:
    return spans[spans["stage"] == stage]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "workers", ["none", "threads", "processes", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_every_sample_lies_in_a_span_of_its_batch(workers: str, tmp_path: Path) -> None:
    own: dict[str, Any] = {
        "none": {"num_workers": 0},
        "threads": {"num_workers": 2, "workers": "threads"},
        "processes": {"num_workers": 2, "workers": "processes"},
    }.get(workers, {"num_workers": 2, "workers": "processes", "multiprocessing_context": workers})
    dataset = Noting(tmp_path)
    loader = fl.DataLoader(dataset, batch_size=4, **own)
    assert [batch.flatten().tolist() for batch in loader] == torch.arange(24).view(6, 4).tolist()
    recent = loader.spans.recent()
    assert recent.dtype == SPAN
    assert (np.diff(recent["begin"].astype(np.int64)) >= 0).all()
    sample = of(recent, Stage.sample)
    assert sample["samples"].sum() == 24
    for index, began, ended in dataset.notes():
        around = sample[(sample["begin"] <= began) & (sample["end"] >= ended)]
        assert index // 4 in around["batch"]
    assert set(of(recent, Stage.batch)["batch"].tolist()) <= set(range(6))  # not all that are short
    assert of(recent, Stage.wait)["samples"].tolist() == [0] + [4] * 6  # to begin is to wait too
    totals = loader.spans.totals()
    assert totals["count"][:, Stage.batch].sum() == 6
    slept = sum(ended - began for _, began, ended in dataset.notes())
    assert totals["wall_ns"][:, Stage.sample].sum() >= slept
    assert totals["cpu_ns"][:, Stage.sample].sum() < totals["wall_ns"][:, Stage.sample].sum()
    kinds = [lane.kind for lane in loader.spans.lanes]
    assert kinds == ["consumer"] + 2 * ["thread" if workers == "threads" else "process"] * (workers != "none")
    assert (totals["samples"][1:, Stage.wait] == 0).all()


@pytest.mark.parametrize(
    "own", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "workers": "processes"}]
)
def test_streams_are_recorded_too(own: dict[str, Any]) -> None:
    loader = fl.DataLoader(Counting(), batch_size=5, **own)
    assert sum(len(batch) for batch in loader) == 20
    totals = loader.spans.totals()["samples"].sum(axis=0)
    assert (totals[Stage.sample], totals[Stage.batch], totals[Stage.wait]) == (20, 20, 20)
    assert loader.stats()["batches"] == 4
    assert loader.stats()["samples"] == 20


def test_lanes_are_used_again_and_never_by_two_at_once() -> None:
    loader = fl.DataLoader(list(range(40)), batch_size=4, num_workers=2, workers="threads")
    for _ in range(3):
        list(loader)
    assert [lane.name for lane in loader.spans.lanes] == ["consumer 0", "thread 0", "thread 1"]
    pairs = sum(1 for _ in loader for _ in loader)
    assert pairs == 100
    assert sorted(lane.name for lane in loader.spans.lanes) == [
        "consumer 0",
        "consumer 1",
        "thread 0",
        "thread 1",
        "thread 2",
        "thread 3",
    ]
    assert loader.stats()["batches"] == 30 + 10 + 100
    assert loader.stats()["epochs"] == 3 + 1 + 10


class Deadly(Dataset[Any]):
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        if index == 9 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(PAUSE)
        return index


@pytest.mark.filterwarnings("ignore:DataLoader worker")
def test_a_killed_workers_lane_stays_and_its_replacement_goes_on_in_it(tmp_path: Path) -> None:
    loader = fl.DataLoader(Deadly(tmp_path / "mark"), batch_size=2, num_workers=1, workers="processes")
    seen = []
    for batch in loader:
        seen += batch.tolist()
    assert seen == list(range(16))
    assert len(loader.stats()["restarts"]) == 1
    assert [lane.name for lane in loader.spans.lanes] == ["consumer 0", "process 0"]
    sample = of(loader.spans.recent(), Stage.sample)
    assert (sample["lane"] == 1).all()
    # Those of the first process are still there, and those of the second come behind them.
    assert set(sample["batch"].tolist()) == set(range(8))
    assert loader.spans.totals()["samples"][1, Stage.sample] >= 16


def test_a_fork_goes_on_in_lanes_of_its_own() -> None:
    loader = fl.DataLoader(list(range(12)), batch_size=2, num_workers=0)
    epoch = iter(loader)
    next(epoch)
    child = os.fork()
    if child == 0:
        try:
            own = [next(epoch).tolist(), next(epoch).tolist()]
            stats = loader.stats()
            good = own == [[2, 3], [4, 5]] and stats["batches"] == 2 and stats["samples"] == 4
            good = good and sum(len(batch) for batch in loader) == 12 and loader.stats()["batches"] == 8
            os._exit(0 if good else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loader.stats()["batches"] == 1
    assert len(list(epoch)) == 5
    assert loader.stats()["batches"] == 6


def test_readers_of_another_thread_see_whole_spans() -> None:
    spans = Spans()
    (lane,) = spans.take("thread")
    over = threading.Event()
    wrong: list[Any] = []

    def read() -> None:
        while not over.is_set():
            found = spans.recent()
            if (found["end"] != 2 * found["begin"]).any() or (found["bytes"] != found["begin"]).any():
                wrong.append(found)

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(1, 30_000):
        lane.native.add(Stage.read, number, 2 * number, bytes=number)
    over.set()
    thread.join()
    assert not wrong
    assert len(spans.recent()) == _native.Lane.spans
    assert spans.totals()[0, Stage.read]["count"] == 29_999


def test_what_is_within_a_span_is_no_part_of_its_time() -> None:
    spans = Spans()
    (lane,) = spans.take("consumer")
    with _native.Work(lane.native, 5):
        with _native.Measure(Stage.sample, 3) as outer, _native.Measure(Stage.read) as inner:
            inner.bytes = 10
            time.sleep(0.01)
        outer.samples = 9  # too late
        with pytest.raises(KeyError), _native.Measure(Stage.decode):
            raise KeyError
    totals = spans.totals()[0]
    took = {Stage(span["stage"]): span["end"] - span["begin"] for span in spans.recent()}
    assert took[Stage.sample] >= took[Stage.read] >= 10_000_000
    assert totals["wall_ns"][Stage.read] == took[Stage.read]
    assert totals["wall_ns"][Stage.sample] == took[Stage.sample] - took[Stage.read]
    assert totals["count"].tolist() == [0, 1, 1, 0, 1, 0, 0, 0, 0]
    assert totals["samples"][Stage.sample] == 3
    assert set(spans.recent()["batch"].tolist()) == {5}
    with _native.Measure(Stage.read):
        pass  # nobody's
    assert spans.totals()[0]["count"][Stage.read] == 1
    with pytest.raises(ValueError, match="there is no stage 9"):
        lane.native.add(9, 0, 1)


def test_nothing_is_left_of_a_loader_that_is_gone() -> None:
    gc.collect()  # what other tests have left
    before = len(os.listdir("/proc/self/fd"))
    loader = fl.DataLoader(list(range(8)), batch_size=2, num_workers=1, workers="processes")
    list(loader)
    assert loader.spans.file >= 0
    del loader
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


class Hashing(Dataset[Any]):
    """Needs a core, and not the interpreter's lock."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return hashlib.sha256(bytes(4 << 20)).digest()[0]


def test_threads_that_wait_for_a_core_are_seen() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        loader = fl.DataLoader(Hashing(), batch_size=1, num_workers=2, workers="threads")
        epoch = iter(loader)
        for _ in range(32):
            next(epoch)
        meanwhile = loader.spans.queued_seconds()
        for _ in epoch:
            pass
    finally:
        os.sched_setaffinity(0, allowed)
    # Two share a core: each of them waits while the other one runs.
    seconds = loader.stats()["seconds"]
    assert 0.2 * seconds < loader.spans.queued_seconds()
    assert 0.1 * seconds < meanwhile < loader.spans.queued_seconds()
