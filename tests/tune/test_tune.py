"""Loaders that are tuned while they run: batches stay what they are, and the user's choices hold."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import foreload as fl
from foreload.cache.budget import MemoryBudget
from foreload.machine import granted_cores
from foreload.tune.within_epoch import Setting, Tuner


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


# Numbers of samples, and for how long each waits: what else runs on the machine may hide what more threads gain,
# but hardly where samples wait for so long.
WAITING = [(3000, 0.004), (3000, 0.004), (1000, 0.02), (1000, 0.1), (1000, 0.3)]


@pytest.mark.slow
def test_threads_grow_where_samples_wait_and_batches_stay_the_same() -> None:
    for size, seconds in WAITING:
        wanted = list(fl.DataLoader(Sleeping(size, 0.0), batch_size=4, shuffle=True, seed=3, num_workers=0))
        loader = tuned(dataset=Sleeping(size, seconds))
        begun = loader.num_workers
        for (row, index), (other_row, other_index) in zip(loader, wanted, strict=True):
            assert torch.equal(row, other_row)
            assert torch.equal(index, other_index)
        if loader.num_workers > begun and loader.stats()["workers"]["tuning"]:
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


@pytest.mark.parametrize(("computed", "threads"), [(0.0, {8, 16, 32}), (0.08, set())])
def test_what_the_loops_thread_computes_is_no_waiting(computed: float, threads: set[int]) -> None:
    stages = {name: {"seconds": 0.0} for name in ("read", "decode", "cache", "sample", "transform", "batch")}
    stats = {
        "seconds": 1.0,
        "wait_seconds": 0.1,
        "lock": None,
        "cpu": {"share": 0.5, "cores": 2},
        "stages": {**stages, "sample": {"seconds": 4.0}, "wait": {"cpu_seconds": computed}},
    }
    tuner = Tuner(Setting(4, 8), 2, [], deeper=True)
    assert {other.threads for other in tuner._others(tuner.setting, 100, stats)} - {granted_cores()} == threads


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_explicit_prefetch_factor_holds_for_whatever_number_of_threads() -> None:
    for size, seconds in WAITING:
        loader = tuned(dataset=Sleeping(size, seconds), prefetch_factor=3)
        for _ in loader:
            pass
        if loader.crew.tuner.trials.done:
            break
    assert {trial.tried.depth / trial.tried.threads for trial in loader.crew.tuner.trials.done} == {3.0}


@pytest.mark.slow
def test_the_memory_budget_holds_whatever_is_tuned() -> None:
    side = 1 << 16  # 256 KiB a row, 1 MiB a batch
    for size, seconds in WAITING:
        loader = tuned(dataset=Sleeping(size, seconds, side=side), memory="20MiB")
        depths = [loader.recorder.last.depth for _ in loader]
        # Samples and batch are there at a time, two batches are with the loop, and each new thread may keep one.
        assert max(depths[5:]) * 2 + 2 + (loader.num_workers - 2) <= 20
        if loader.num_workers > 2:
            break
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


@pytest.mark.slow
def test_worker_processes_become_more_between_epochs_where_samples_wait() -> None:
    # (Samples wait so long that they do so on a machine with much else to do, too.)
    loader = fl.DataLoader(Sleeping(100, 0.08), batch_size=4, workers="processes")
    begun = loader.num_workers
    for _ in range(12):
        seen = torch.cat([index for _, index in loader])
        assert seen.tolist() == list(range(100))
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
