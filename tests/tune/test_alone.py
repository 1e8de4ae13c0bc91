"""Loaders whose calling thread makes batches in the place of threads that pass the interpreter's lock around."""

from __future__ import annotations

import os
import pickle
import random
import threading
from typing import Any

import pytest
import torch

import foreload as fl
from foreload.epochs.threads import TunedEpoch
from foreload.tune import within_epoch
from foreload.tune.within_epoch import Setting, Tuner
from tests.tune.test_tune import alive

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 600


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> fl.ParquetDataset:
    path = tmp_path_factory.mktemp("alone") / "rows.parquet"
    table = pa.table({"number": list(range(ROWS)), "text": [str(number) for number in range(ROWS)]})
    pq.write_table(table, path, row_group_size=50)
    return fl.ParquetDataset(path)


@pytest.fixture(autouse=True)
def nothing_is_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no window end: on a busy machine, tuning would decide otherwise than a test has just done."""
    monkeypatch.setattr(within_epoch, "_WINDOW_SECONDS", 1e9)


def loader_of(dataset: fl.ParquetDataset, **options: Any) -> fl.DataLoader[Any]:
    return fl.DataLoader(dataset, **{"batch_size": 4, "shuffle": True, "seed": 3, **options})


def alone(epoch: Any) -> Any:
    """Let the calling thread make the rest of an epoch, as the tuner does."""
    epoch._tuner.trials.setting = Setting(0, 1)
    epoch.resize(0, 1)
    return epoch


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["number"].tolist()]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_batches_stay_the_same_whoever_makes_them(dataset: fl.ParquetDataset, seed: int) -> None:
    draw = random.Random(seed)
    loader, plain = loader_of(dataset), loader_of(dataset, num_workers=0)
    for _ in range(2):
        epoch, wanted = iter(loader), numbers(plain)
        assert isinstance(epoch, TunedEpoch)
        given: list[int] = []
        for batch in epoch:
            given += numbers([batch])
            if draw.random() < 0.2:
                threads = draw.choice([0, 0, 1, 3])
                epoch._tuner.trials.setting = Setting(threads, max(1, 2 * threads))
                epoch.resize(*epoch._tuner.setting)
                assert loader.num_workers == loader.crew.count == threads
            if draw.random() < 0.05:  # elsewhere, from here on
                again = loader_of(dataset)
                again.load_state_dict(loader.state_dict())
                assert given + numbers(again) == wanted
        assert given == wanted
        assert list(epoch) == []
    assert alive() == 0


def test_the_next_epoch_begins_with_the_calling_thread(dataset: fl.ParquetDataset) -> None:
    loader = loader_of(dataset, persistent_workers=True)
    epoch = iter(loader)
    next(epoch)
    assert numbers(alone(epoch)) == numbers(loader_of(dataset, num_workers=0))[4:]
    before = set(threading.enumerate())
    epoch = iter(loader)
    next(epoch)
    assert loader.recorder.last.depth == 0
    assert set(threading.enumerate()) == before
    assert loader.stats()["workers"]["count"] == 0
    epoch._tuner.trials.setting = Setting(2, 4)
    epoch.resize(2, 4)
    assert len(numbers(epoch)) == ROWS - 4
    assert loader.stats()["workers"]["count"] == 2
    loader.close()
    assert alive() == 0


def test_the_calling_thread_is_tried_and_judged(
    dataset: fl.ParquetDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(within_epoch, "_WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(within_epoch, "_why_alone", lambda stats: "so it is")
    loader = loader_of(dataset)
    assert numbers(loader) == numbers(loader_of(dataset, num_workers=0))
    changes = loader.stats()["workers"]["tuning"]
    assert changes[0].startswith("the calling thread instead of ")
    assert ": so it is; " in changes[0]
    assert "predicted" not in changes[0]


def test_users_code_stays_with_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(within_epoch, "_WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(within_epoch, "_why_alone", lambda stats: "so it is")

    class Asking(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 400

        def __getitem__(self, index: int) -> int:
            assert torch.utils.data.get_worker_info() is not None
            return index

    loader = fl.DataLoader(Asking(), batch_size=4, workers="threads")
    assert torch.cat(list(loader)).tolist() == list(range(400))


@pytest.mark.parametrize("count", [0, 3])
def test_a_number_that_the_user_sets_later_holds(dataset: fl.ParquetDataset, count: int) -> None:
    loader = loader_of(dataset)
    wanted = numbers(alone(iter(loader)))
    loader.num_workers = count
    epoch = iter(loader)
    assert len(numbers(epoch)) == ROWS
    assert loader.crew.count == count
    state = loader_of(dataset, num_workers=count).state_dict()
    loader.load_state_dict(state)
    assert numbers(loader) == wanted


@pytest.mark.parametrize(
    ("looks", "held", "waited", "batches", "is_tried"),
    [
        (7, 0.9, 0.9, 100, True),  # threads pass the lock around
        (3, 0.9, 0.9, 100, False),
        (7, 0.2, 0.9, 100, False),
        (7, 0.9, 0.2, 100, False),  # the loop does not wait
        (7, 0.2, 0.9, 9000, True),  # batches take a tenth of a millisecond
        (7, 0.2, 0.2, 9000, False),
    ],
)
def test_it_is_tried_only_where_the_loop_waits_for_short_batches_or_the_lock(
    looks: int, held: float, waited: float, batches: int, is_tried: bool
) -> None:
    lock = {"looks": looks, "held_share": held}
    stats = {"seconds": 1.0, "wait_seconds": waited, "batches": batches, "lock": lock}
    assert (within_epoch._why_alone(stats) is not None) == is_tried


def test_more_threads_may_follow_the_calling_thread() -> None:
    stages = {name: {"seconds": 0.0} for name in ("read", "decode", "cache", "sample", "transform", "batch")}
    stats = {
        "seconds": 1.0,
        "wait_seconds": 1.0,
        "lock": {"looks": 0, "held_share": 0.0},
        "cpu": {"share": 0.5, "cores": 2},
        "stages": {**stages, "decode": {"seconds": 1.0}},
    }
    tuner = Tuner(Setting(0, 1), 2, [], deeper=True)
    assert {other.threads for other in tuner._others(tuner.setting, 100, stats)} >= {1, 2, 4}


def test_epochs_of_one_loader_are_tuned_each_for_itself(dataset: fl.ParquetDataset) -> None:
    loader, wanted = loader_of(dataset, shuffle=False, seed=None), list(range(ROWS))
    begun = alone(iter(loader))
    with_none = iter(loader)  # which begins without threads
    given = [next(with_none)["number"].tolist()]
    begun._tuner.trials.setting = Setting(2, 4)
    begun.resize(2, 4)
    with_some = iter(loader)
    given.append(next(with_some)["number"].tolist())
    alone(begun)
    assert given == [[0, 1, 2, 3]] * 2
    assert numbers(with_none) == numbers(with_some) == wanted[4:]
    assert numbers(begun) == wanted


def test_a_batch_that_was_interrupted_comes_when_it_is_requested_again(
    dataset: fl.ParquetDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, given = loader_of(dataset), []
    epoch = alone(iter(loader))
    start, left = epoch._assembly.start, [3, 1, 1, 7]

    def interrupted(indices: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            left.pop(0)
            raise KeyboardInterrupt
        return start(indices)

    epoch._assembly.start = interrupted
    while len(left) > 1:
        with pytest.raises(KeyboardInterrupt):
            while True:
                given += next(epoch)["number"].tolist()
        again = loader_of(dataset)
        again.load_state_dict(loader.state_dict())
        assert given + numbers(again) == numbers(loader_of(dataset, num_workers=0))
        if len(left) == 2:
            alone(epoch) if len(given) % 8 else epoch.resize(2, 4)
    epoch._assembly.start = start
    assert given + numbers(epoch) == numbers(loader_of(dataset, num_workers=0))


def test_where_batches_may_be_late_workers_make_them(
    dataset: fl.ParquetDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(within_epoch, "_WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(within_epoch, "_why_alone", lambda stats: "so it is")
    loader = loader_of(dataset, timeout=300)
    assert len(numbers(loader)) == ROWS
    assert not any("the calling thread" in change for change in loader.stats()["workers"]["tuning"])


def test_a_copy_of_a_loader_begins_with_workers_again(dataset: fl.ParquetDataset) -> None:
    loader = loader_of(dataset)
    wanted = numbers(alone(iter(loader)))
    assert "the calling thread makes batches faster than" in loader.stats()["workers"]["why"]
    assert "num_workers=" not in str(loader.report()).partition("What to change")[2]
    for copied in (pickle.loads(pickle.dumps(loader)), loader_of(dataset, num_workers=loader.num_workers)):
        copied.set_epoch(0)
        assert isinstance(iter(copied), TunedEpoch)
        assert copied.num_workers > 0
        copied.set_epoch(0)
        assert numbers(copied) == wanted


def test_an_epoch_ends_with_its_process(dataset: fl.ParquetDataset) -> None:
    loader = loader_of(dataset)
    epoch = alone(iter(loader))
    next(epoch)
    epoch._pool._process = -1  # as in a fork
    with pytest.raises(RuntimeError, match="belong to the parent of a fork; begin another epoch"):
        next(epoch)
    epoch._pool._process = os.getpid()
