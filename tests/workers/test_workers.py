"""What code that runs in a worker sees, and what it may do there."""

from __future__ import annotations

import os
import pathlib
import random
import resource
import threading
import time
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

import foreload as fl
from foreload.tune import choose, measure

warnings.filterwarnings("ignore", message="This DataLoader will create")


class Rows(Dataset[torch.Tensor]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), index)


class Slow(Rows):
    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(30)
        return super().__getitem__(index)


def test_default_collate_within_a_worker_takes_no_file_descriptors() -> None:
    def collate(samples: Any) -> Any:
        return default_collate(list(samples))

    before = len(os.listdir("/proc/self/fd"))
    batches = list(fl.DataLoader(Rows(100), batch_size=2, num_workers=2, collate_fn=collate))
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not any(batch.is_shared() for batch in batches)
    assert torch.cat(batches)[:, 0].tolist() == list(range(100))


def test_a_worker_that_fails_to_start_is_heard_of_even_when_nobody_needed_it() -> None:
    def init(worker: int) -> None:
        if worker == 1:
            time.sleep(0.2)
            raise ValueError("worker 1 will not")

    with pytest.raises(ValueError, match="worker 1 will not"):
        list(fl.DataLoader(Rows(4), batch_size=2, num_workers=2, worker_init_fn=init))


def test_threads_other_than_workers_are_no_workers() -> None:
    seen: list[Any] = []

    class Asking(Rows):
        def __getitem__(self, index: int) -> torch.Tensor:
            thread = threading.Thread(target=lambda: seen.append(get_worker_info()))
            thread.start()
            thread.join()
            return super().__getitem__(index)

    list(fl.DataLoader(Asking(3), num_workers=2))
    assert seen == [None] * 3


def test_thread_local_state_lasts_as_long_as_the_workers() -> None:
    local = threading.local()
    opened: list[int] = []

    class Opening(Rows):
        def __getitem__(self, index: int) -> torch.Tensor:
            if not hasattr(local, "file"):
                local.file = object()
                opened.append(index)
            return super().__getitem__(index)

    loader = fl.DataLoader(Opening(20), num_workers=2, persistent_workers=True)
    for _ in range(5):
        list(loader)
    loader.close()
    assert 1 <= len(opened) <= 2


def test_a_loader_within_a_worker_is_a_loader() -> None:
    class Nested(Rows):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.cat(list(fl.DataLoader(Rows(index + 1), num_workers=1))).sum()

    totals = torch.cat(list(fl.DataLoader(Nested(4), num_workers=2)))
    assert totals.tolist() == [0, 3, 9, 18]


@pytest.mark.parametrize("persistent", [False, True])
def test_dataset_and_loader_are_let_go_of(persistent: bool) -> None:
    dataset = Rows(6)
    loader = fl.DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=persistent)
    next(iter(loader))
    list(loader)
    gone = weakref.ref(dataset)
    del dataset, loader
    assert gone() is None


def test_closing_and_starting_again_keeps_nothing_of_the_workers_before() -> None:
    loader = fl.DataLoader(Rows(6), batch_size=2, num_workers=1, persistent_workers=True)
    pools = []
    for _ in range(3):
        list(loader)
        pools.append(weakref.ref(loader.crew.pool))
        loader.close()
    assert [pool() for pool in pools] == [None] * 3


def test_an_open_epoch_whose_workers_were_closed_says_so() -> None:
    loader = fl.DataLoader(Rows(1000), batch_size=2, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(RuntimeError, match="begin another epoch"):
        list(iterator)


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_persistent_workers_outlive_the_loader_with_an_epoch(workers: str) -> None:
    loader = fl.DataLoader(Rows(6), batch_size=2, num_workers=2, workers=workers, persistent_workers=True)
    epoch = iter(loader)
    pool = loader.crew.pool
    del loader
    assert torch.cat(list(epoch))[:, 0].tolist() == list(range(6))
    del epoch
    assert pool.closed


def test_attributes_are_enough_to_make_the_loader_again() -> None:
    # As Lightning does, to put in another sampler.
    loader = fl.DataLoader(Rows(10), batch_size=3, shuffle=True, seed=5, num_workers=2, prefetch_factor=3)
    # (The sampler is within the batch sampler then.)
    kept = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    parameters = fl.DataLoader.__init__.__annotations__
    arguments = {name: kept[name] for name in parameters if name in kept}
    for name in ("batch_size", "drop_last"):
        arguments.pop(name)
    again = fl.DataLoader(**{**arguments, "sampler": None})
    assert (again.seed, again.prefetch_factor, again.num_workers) == (5, 3, 2)
    epochs = [[batch.tolist() for batch in again] for _ in range(2)]
    assert epochs == [[batch.tolist() for batch in loader] for _ in range(2)]
    assert epochs[0] != epochs[1]


class Waits(Rows):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return index


class Logged(Rows):
    """What it is asked for can be seen from outside."""

    opened: int | None = None

    def __getitem__(self, index: int) -> Any:
        Logged.opened = os.getpid()
        torch.rand(1), random.random(), np.random.rand()
        return index


class Breaks(Rows):
    def __getitem__(self, index: int) -> Any:
        raise ValueError("nothing can be loaded here")


class Hangs(Rows):
    def __getitem__(self, index: int) -> Any:
        if os.getpid() != Hangs.home:
            time.sleep(100)
        return index

    home = 0


@pytest.mark.parametrize(
    ("rates", "asked", "chosen"),
    [
        ({("threads", 2): 110, ("processes", 2): 190}, None, ("processes", 2)),
        ({("threads", 2): 185, ("processes", 2): 190}, None, ("threads", 2)),
        ({("threads", 8): 800, ("threads", 32): 3000}, None, ("threads", 32)),
        ({("threads", 8): 800, ("threads", 32): 800}, None, ("threads", 8)),
        ({("threads", 2): 60, ("processes", 2): 70}, None, ("threads", 0)),
        ({("threads", 4): 60, ("processes", 4): 70}, 4, ("processes", 4)),
        ({}, None, ("threads", 3)),
        ({}, 5, ("threads", 5)),
    ],
)
def test_what_is_faster_is_chosen(rates: Any, asked: int | None, chosen: tuple[str, int]) -> None:
    best = choose._best({("threads", 0): 100, **rates}, asked, 3, 1000, [], "")
    assert (best.kind, best.count) == chosen


def test_workers_that_were_not_measured_may_be_the_best() -> None:
    rates: Any = {("threads", 0): 100, ("threads", 3): 60}
    best = choose._best(rates, None, 3, 1000, [("processes", 3)], "they took too long")
    assert (best.kind, best.count) == ("threads", 3)
    assert "3 processes could not be measured (they took too long)" in best.why


def test_candidates_that_find_no_room_together_are_measured_one_by_one() -> None:
    class Large(Rows):
        def __getitem__(self, index: int) -> Any:
            sum(range(100_000))
            return torch.empty(1 << 20, dtype=torch.uint8)

    for room, found in (
        ("1GiB", ("1 threads", "1 processes")),
        ("20MiB", ("1 threads", "1 processes")),
        ("8MiB", ()),
    ):
        loader = fl.DataLoader(Large(10_000), batch_size=2, num_workers=1, memory=room)
        loader.choose_workers()
        chosen = loader.stats()["workers"]
        assert set(chosen["samples_per_second"]) == {"none", *found}, chosen
        assert ("no room to try" in chosen["why"]) == (not found)


def test_each_candidate_has_turns_and_its_best_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[Any] = []

    class Trial:
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

    now = [0.0]
    monkeypatch.setattr(measure, "_Trial", Trial)
    monkeypatch.setattr(measure, "_cost", lambda dataset, size: (0.01, 0.01))
    monkeypatch.setattr(measure.time, "monotonic", lambda: now[0])
    work = measure.Workload(Rows(100_000), 2, None, None, lambda *trial: iter(()))
    for slow, rounds in ((False, 3), (True, 1)):
        turns.clear()
        answers = list(measure._measure(work, 2, 2))
        who = [("threads", 2), ("processes", 2), ("threads", 0)]
        assert [turn for turn in turns if turn != "rest"] == [who[2], *who * rounds]
        assert turns.count("rest") == 3 * rounds
        rates = {name: rate for name, rate in answers if isinstance(name, tuple)}
        assert rates["threads", 0] == 100
        assert dict(answers)["candidates"] == who[:2]


def test_waiting_threads_are_many_and_few_samples_are_not_measured() -> None:
    for size, least in ((1000, 8), (100, 1)):
        loader = fl.DataLoader(Waits(size), batch_size=8)
        next(iter(loader))
        chosen = loader.stats()["workers"]
        assert chosen["kind"] == "threads"
        assert chosen["count"] >= least, chosen
        assert loader.num_workers == chosen["count"]
        assert (chosen["samples_per_second"] != {}) == (size >= 256)


def test_measuring_leaves_no_trace() -> None:
    before = children()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    loader = fl.DataLoader(Logged(2000), batch_size=8, num_workers=2)
    loader.choose_workers()
    assert loader.stats()["workers"]["samples_per_second"]
    assert Logged.opened is None
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]
    assert children() == before


def children() -> list[str]:
    return pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_more_files_may_be_open_than_select_knows() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard[1] < 3000:
        pytest.skip("not as many may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard[1], hard[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert sum(map(len, fl.DataLoader(Rows(200), 4, num_workers=2))) == 200
            loader = fl.DataLoader(Slow(20), 4, num_workers=1, workers="processes", timeout=1)
            with pytest.raises(RuntimeError, match=r"(?s)timed out.*in __getitem__"):
                list(loader)
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, hard)


def test_what_cannot_be_measured_is_loaded_by_threads() -> None:
    loader = fl.DataLoader(Breaks(1000), batch_size=8)
    with pytest.raises(ValueError, match="nothing can be loaded here"):
        next(iter(loader))
    assert "ValueError: nothing can be loaded here" in loader.stats()["workers"]["why"]
    Hangs.home = os.getpid()
    loader = fl.DataLoader(Hangs(300), batch_size=100)
    assert torch.cat(list(loader)).tolist() == list(range(300))
    assert "took too long" in loader.stats()["workers"]["why"]


def test_what_choosing_took_is_said_where_it_is_most_of_the_time() -> None:
    loader = fl.DataLoader(Waits(300), batch_size=20)
    list(loader)
    stats = loader.stats()
    assert 0 < stats["workers"]["choosing_seconds"] <= stats["first_batch_seconds"]
    assert stats["workers"]["count"] > 2
    report = loader.report()
    assert report.verdict.kind == "startup-bound"
    assert any(line.startswith("choosing the workers took") for line in report.verdict.evidence)
    count = stats["workers"]["count"]
    assert f'num_workers={count}, workers="threads": no time is spent on choosing' in " ".join(str(report).split())
    named = fl.DataLoader(Waits(300), batch_size=20, num_workers=count, workers="threads")
    list(named)
    assert named.stats()["workers"]["choosing_seconds"] == 0


def test_nothing_is_measured_if_workers_were_named() -> None:
    for arguments in ({"workers": "threads", "num_workers": 1}, {"num_workers": 0}):
        loader = fl.DataLoader(Breaks(1000), **arguments)
        loader.choose_workers()
        assert loader.stats()["workers"]["why"] == "as requested"


def test_workers_are_as_many_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Large(Rows):
        def __getitem__(self, index: int) -> Any:
            time.sleep(0.01)
            return torch.empty(100_000)

    for memory, most in ((1 << 40, 32), (8 * 2 * 8 * 400_000, 2), (1 << 20, 1)):
        for module in (choose, measure):
            monkeypatch.setattr(module, "granted_memory", lambda memory=memory: memory)
        loader = fl.DataLoader(Large(1000), batch_size=8)
        loader.choose_workers()
        chosen = loader.stats()["workers"]
        assert 1 <= chosen["count"] <= most, chosen
        assert ("too much for more than" in chosen["why"]) == (most < 32)


def test_measuring_computes_also_after_torch_has_used_all_cores() -> None:
    class Sums(Rows):
        def __getitem__(self, index: int) -> Any:
            return (torch.ones(400_000) * index).sum()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(4_000_000).mul(2).sum()  # starts torch's threads
        loader = fl.DataLoader(Sums(2000), batch_size=8)
        loader.choose_workers()
        assert loader.stats()["workers"]["samples_per_second"]
    finally:
        torch.set_num_threads(before)


def test_measuring_does_not_touch_the_cache() -> None:
    loader = fl.DataLoader(Waits(400), batch_size=50, num_workers=2, cache="1MiB")
    list(loader)
    assert loader.stats()["workers"]["samples_per_second"]
    counts = loader.stats()["cache"]
    assert (counts["hits"], counts["misses"]) == (0, 400)
