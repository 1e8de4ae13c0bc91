"""The view of code that runs in a worker, and what it may do there."""

from __future__ import annotations

import os
import resource
import threading
import time
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, default_collate, get_worker_info

import foreload as fl
from tests.late import next_however_late

warnings.filterwarnings("ignore", message="This DataLoader will create")


every_worker = pytest.mark.parametrize("workers", ["threads", "processes"])


class Rows(Dataset[torch.Tensor]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), index)


class Slow(Rows):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= 4:
            time.sleep(600)
        return super().__getitem__(index)


@every_worker
def test_default_collate_within_a_worker_takes_no_file_descriptors(workers: Any) -> None:
    def collate(samples: Any) -> Any:
        return default_collate(list(samples))

    def load() -> list[torch.Tensor]:
        return list(fl.DataLoader(Rows(100), batch_size=2, num_workers=2, collate_fn=collate, workers=workers))

    load()
    before = len(os.listdir("/proc/self/fd"))
    batches = load()
    # Batches of processes lie in memory of one file per worker.
    assert len(os.listdir("/proc/self/fd")) <= before + (2 if workers == "processes" else 0)
    assert not any(batch.is_shared() for batch in batches)
    assert torch.cat(batches)[:, 0].tolist() == list(range(100))


@every_worker
def test_a_worker_that_fails_to_start_is_heard_of_even_when_nobody_needed_it(workers: Any) -> None:
    def init(worker: int) -> None:
        if worker == 1:
            time.sleep(0.2)
            raise ValueError("worker 1 will not")

    with pytest.raises(ValueError, match="worker 1 will not"):
        list(fl.DataLoader(Rows(4), batch_size=2, num_workers=2, worker_init_fn=init, workers=workers))


def test_threads_other_than_workers_are_no_workers() -> None:
    seen: list[Any] = []

    class Asking(Rows):
        def __getitem__(self, index: int) -> torch.Tensor:
            thread = threading.Thread(target=lambda: seen.append(get_worker_info()))
            thread.start()
            thread.join()
            return super().__getitem__(index)

    list(fl.DataLoader(Asking(3), num_workers=2, workers="threads"))
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

    loader = fl.DataLoader(Opening(20), num_workers=2, workers="threads", persistent_workers=True)
    for _ in range(5):
        list(loader)
    loader.close()
    assert 1 <= len(opened) <= 2


class Nested(Rows):
    """Sums what a loader within the worker loads."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__(4)
        self.kind = kind
        self.options = options

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.cat(list(self.kind(Rows(index + 1), **self.options))).sum()


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        ("threads", {"num_workers": 1}),
        ("threads", {"num_workers": 1, "workers": "threads"}),
        ("threads", {}),
        ("processes", {"num_workers": 1, "workers": "threads"}),
        ("processes", {"num_workers": 0}),
        ("processes", {}),
    ],
)
def test_a_loader_within_a_worker_is_a_loader(workers: Any, options: dict[str, Any]) -> None:
    totals = torch.cat(list(fl.DataLoader(Nested(fl.DataLoader, **options), num_workers=2, workers=workers)))
    assert totals.tolist() == [0, 3, 9, 18]


@pytest.mark.slow
def test_processes_within_a_worker_process_are_refused_as_in_torch() -> None:
    words = []
    for kind in (TorchDataLoader, fl.DataLoader):
        with pytest.raises(AssertionError) as caught:
            list(kind(Nested(kind, num_workers=1), num_workers=1))
        words.append("daemonic processes are not allowed to have children" in str(caught.value))
    assert words == [True, True]


@every_worker
@pytest.mark.parametrize("persistent", [False, True])
def test_dataset_and_loader_are_let_go_of(persistent: bool, workers: Any) -> None:
    dataset = Rows(6)
    loader = fl.DataLoader(dataset, batch_size=2, num_workers=2, workers=workers, persistent_workers=persistent)
    next(iter(loader))
    list(loader)
    gone = weakref.ref(dataset)
    del dataset, loader
    assert gone() is None


@every_worker
def test_closing_and_starting_again_keeps_nothing_of_the_workers_before(workers: Any) -> None:
    loader = fl.DataLoader(Rows(6), batch_size=2, num_workers=1, workers=workers, persistent_workers=True)
    pools = []
    for _ in range(3):
        list(loader)
        pools.append(weakref.ref(loader.crew.pool))
        loader.close()
    assert [pool() for pool in pools] == [None] * 3


@every_worker
def test_an_open_epoch_whose_workers_were_closed_says_so(workers: Any) -> None:
    loader = fl.DataLoader(Rows(1000), batch_size=2, num_workers=1, workers=workers, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(RuntimeError, match="begin another epoch"):
        list(iterator)


@every_worker
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
    loader = fl.DataLoader(
        Rows(10), batch_size=3, shuffle=True, seed=5, num_workers=2, prefetch_factor=3, workers="threads"
    )
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


def test_more_files_may_be_open_than_select_knows() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard[1] < 3000:
        pytest.skip("not as many may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard[1], hard[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert sum(map(len, fl.DataLoader(Rows(200), 4, num_workers=2, workers="processes"))) == 200
            loader = fl.DataLoader(Slow(20), 4, num_workers=1, workers="processes", timeout=1)
            iterator = iter(loader)
            assert len(next_however_late(iterator)) == 4
            with pytest.raises(RuntimeError, match=r"(?s)timed out.*in __getitem__"):
                next(iterator)
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, hard)
