"""Worker processes give what stock torch's give."""

from __future__ import annotations

import collections
import logging
import os
import pathlib
import random
import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

import foreload as fl
from foreload._torch import seed_worker
from tests.workers.rich import Rich, Stream, same


class Random(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return torch.rand(2), random.random(), np.random.rand()


class Uneven(IterableDataset[Any]):
    """The workers have more and less to give, one has nothing."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        return iter([torch.tensor([info.id, i]) for i in range([7, 0, 23][info.id])])


def both(dataset: Any, epochs: int = 2, seed: int = 0, **arguments: Any) -> tuple[list[Any], list[Any]]:
    """All batches of some epochs, ours and stock's."""
    results = []
    # How its workers start is nothing to compare; it only takes time.
    stock = {"multiprocessing_context": None}
    for kind, extra in ((fl.DataLoader, {"workers": "processes"}), (TorchDataLoader, stock)):
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            loader: Any = kind(dataset, **{**arguments, **extra})
        results.append([batch for _ in range(epochs) for batch in loader])
        del loader
    return results[0], results[1]


def identity(samples: Any) -> Any:
    return samples


def tell_init(worker: int) -> None:
    torch.manual_seed(1000 + worker)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 8, "num_workers": 2},
        {"batch_size": 8, "num_workers": 3, "shuffle": True},
        {"batch_size": 7, "num_workers": 2, "drop_last": True, "persistent_workers": True},
        {"batch_size": None, "num_workers": 2},
        {"num_workers": 2, "batch_sampler": [[1, 2, 3], [4], [5, 6, 7, 8]]},
        {"batch_size": 4, "num_workers": 1, "sampler": [5, 3, 1, 3, 9], "prefetch_factor": 5},
        {"batch_size": 5, "num_workers": 2, "collate_fn": identity},
        {"batch_size": 8, "num_workers": 1, "multiprocessing_context": "spawn"},
        {"batch_size": 8, "num_workers": 2, "multiprocessing_context": "forkserver", "persistent_workers": True},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_batches_are_stocks(arguments: dict[str, Any]) -> None:
    ours, stock = both(Rich(), **arguments)
    assert same(ours, stock)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("init", [None, tell_init])
def test_random_numbers_are_stocks(persistent: bool, init: Any) -> None:
    ours, stock = both(
        Random(), batch_size=8, num_workers=2, persistent_workers=persistent, worker_init_fn=init, epochs=3
    )
    assert same(ours, stock)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dataset", [Stream(), Uneven()], ids=["even", "uneven"])
@pytest.mark.parametrize(
    "arguments", [{"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}]
)
@pytest.mark.parametrize("persistent", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_streams_are_stocks(dataset: Any, arguments: dict[str, Any], persistent: bool) -> None:
    ours, stock = both(dataset, num_workers=3, persistent_workers=persistent, **arguments)
    assert same(ours, stock)


@pytest.mark.slow
def test_tensors_and_pictures_are_those_of_threads(photos: pathlib.Path) -> None:
    images = fl.ImageDataset(photos, transform=fl.transforms.train(32))
    rows = TensorDataset(torch.arange(60.0).view(20, 3), torch.arange(20))
    for dataset in (images, rows, fl.CachedDataset(torch.arange(60.0).view(20, 3))):
        epochs = []
        for workers in ("threads", "processes"):
            loader: Any = fl.DataLoader(
                dataset, batch_size=6, shuffle=True, seed=3, num_workers=2, workers=workers
            )
            epochs.append([batch for _ in range(2) for batch in loader])
        assert same(*epochs)


def test_a_held_batch_stays_what_it_is() -> None:
    loader = fl.DataLoader(Rich(200), batch_size=4, num_workers=2, workers="processes", persistent_workers=True)
    held: collections.deque[Any] = collections.deque()
    for _ in range(3):
        for number, batch in enumerate(loader):
            held.append((number, batch["image"] if number % 2 else batch["image"][1:3]))
            if len(held) > number % 9:
                held.popleft()
            for old, images in held:
                first = 4 * old + (0 if old % 2 else 1)
                assert images[:, 0, 0, 0].tolist() == list(range(first, first + len(images)))
    loader.close()


def test_memory_is_used_again_and_one_descriptor_is_enough() -> None:
    loader = fl.DataLoader(Rich(400), batch_size=4, num_workers=2, workers="processes", persistent_workers=True)
    mapped = set()
    files = set()
    for _ in range(2):
        for batch in loader:
            mapped.add(batch["image"].data_ptr())
            files.add(len(os.listdir("/proc/self/fd")))
    assert len(mapped) <= 14
    assert len(files) <= 2
    kept = [batch["image"] for batch in loader]
    files.add(len(os.listdir("/proc/self/fd")))
    assert len(files) <= 2
    assert [int(images[0, 0, 0, 0]) for images in kept] == list(range(0, 400, 4))
    loader.close()


class Odd(Exception):
    """Cannot be made again from what it shows."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


class FailingOddly(Rich):
    def __getitem__(self, index: int) -> Any:
        raise Odd(index, 2)


def test_an_exception_that_cannot_be_made_again_keeps_its_class() -> None:
    with pytest.raises(Odd, match=r"^0 and 2") as caught:
        next(iter(fl.DataLoader(FailingOddly(), num_workers=2, workers="processes")))
    assert "Caught Odd in DataLoader worker process 0" in "".join(caught.value.__notes__)


def test_workers_can_be_looked_at_as_torchs_can() -> None:
    loader = fl.DataLoader(Rich(50), batch_size=4, num_workers=2, workers="processes", persistent_workers=True)
    iterator = iter(loader)
    pids = [process.pid for process in iterator._workers]
    assert loader._iterator is iterator
    assert all(process.is_alive() for process in iterator._workers)
    list(iterator)
    assert [process.pid for process in iter(loader)._workers] == pids
    workers = iterator._workers
    loader.close()
    for process in workers:
        process.join(300)
        assert not process.is_alive()
        assert process.exitcode == 0


def test_a_huge_list_of_indices_and_of_results_holds_nothing_up() -> None:
    class Long(Rich):
        def __getitem__(self, index: int) -> Any:
            return "x" * 100

    loader: Any = fl.DataLoader(
        Long(200_000),
        batch_size=20_000,
        num_workers=2,
        workers="processes",
        prefetch_factor=4,
        collate_fn=identity,
    )
    assert sum(len(batch) for batch in loader) == 200_000


def of_blas(_: int) -> Any:
    from threadpoolctl import threadpool_info

    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


class Multiplying(Rich):
    def __getitem__(self, index: int) -> Any:
        matrix = np.full((200, 200), float(index))
        before = len(os.listdir("/proc/self/task"))
        return float((matrix @ matrix)[0, 0]), of_blas(0), before, len(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_blas_in_a_worker_starts_no_threads_and_the_loop_keeps_its_own(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from threadpoolctl import threadpool_limits

    if not of_blas(0):
        pytest.skip("NumPy's BLAS has no threads, or none that threadpoolctl knows")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)  # spawned workers read it
    with threadpool_limits(2, "blas"):
        before = of_blas(0)
        loader: Any = fl.DataLoader(
            Multiplying(6), batch_size=None, num_workers=2, workers="processes", multiprocessing_context=method
        )
        for index, (product, threads, tasks, tasks_then) in enumerate(loader):
            assert product == 200 * index**2
            assert set(threads) == {1}
            assert tasks == tasks_then
        assert max(of_blas(0)) == 2
        assert of_blas(0) == before


@pytest.mark.slow
def test_epochs_begin_while_other_threads_are_busy() -> None:
    over = threading.Event()

    def busy() -> None:
        while not over.is_set():
            np.random.rand(100_000)
            logging.getLogger("busy").debug("%s", random.random())

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        loader = fl.DataLoader(Rich(12), batch_size=2, num_workers=2, workers="processes", timeout=300)
        for _ in range(10):
            assert [batch["nested"][0][0].tolist() for batch in loader] == [[i, i + 1] for i in range(0, 12, 2)]
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [0, 1, 5, 11])
def test_a_stream_that_ends_early_leaves_the_others_their_share(size: int) -> None:
    loader = fl.DataLoader(
        Stream(size),
        batch_size=2,
        num_workers=3,
        workers="processes",
        prefetch_factor=1,
        in_order=False,
        timeout=300,
    )
    assert sorted(index for batch in loader for index in batch.tolist()) == list(range(size))


class Uneven(Dataset[int]):
    """Sample 0 takes long: until the others that a worker has in its first batches are far behind."""

    def __init__(self, seconds: float = 0.3) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds if index == 0 else 0.001)
        return index


def numbers(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch.tolist()]


@pytest.mark.usefixtures("two_cores")
def test_workers_go_further_ahead_while_one_batch_holds_up_the_loop() -> None:
    for seconds in (0.3, 3, 30):  # within which the other worker has to start, on a busy machine too
        loader = fl.DataLoader(Uneven(seconds), 2, workers="processes")
        assert numbers(loader) == list(range(64))
        stats = loader.stats()["workers"]
        if stats["depth"] > 2 * stats["count"] > 0:
            break
    assert stats["depth"] > 2 * stats["count"] > 0


def test_workers_go_no_further_ahead_than_the_user_allows() -> None:
    loader = fl.DataLoader(Uneven(), 2, workers="processes", prefetch_factor=2)
    assert numbers(loader) == list(range(64))
    assert loader.stats()["workers"]["depth"] == 2 * loader.stats()["workers"]["count"]
    loader = fl.DataLoader(Uneven(), 2, num_workers=2)  # as torch does it
    assert numbers(loader) == list(range(64))
    assert loader.stats()["workers"]["depth"] == 4


def test_a_worker_is_seeded_by_torch_2_6_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """If later versions find no accelerator, it raises."""

    def current_accelerator() -> torch.device:
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", current_accelerator)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        seed_worker(5, 1)
        drawn = torch.rand(3)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(6)))
