"""Worker threads compute with one core each, and tell how often they asked for the interpreter's lock."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch.utils.data import Dataset

import foreload as fl
from foreload import _native
from foreload.workers.threads import no_job
from tests.workers.test_threads import every_worker

warnings.filterwarnings("ignore", message="This DataLoader will create")


class Teams(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return torch.get_num_threads()


class Products(Dataset[Any]):
    """Samples that tell the number of threads that multiply matrices: torch's, and NumPy's."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int]:
        np.ones((200, 200)) @ np.ones((200, 200))
        library = next(iter(Path(torch.__file__).parent.glob("lib/libtorch_cpu.so")))
        threads = getattr(ctypes.CDLL(str(library)), "MKL_Get_Max_Threads", None)
        of_numpy = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
        return 1 if threads is None else threads(), max(of_numpy, default=1)


@every_worker
def test_a_worker_multiplies_matrices_with_one_core(workers: Any) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with threadpool_limits(2, "blas"):
            ((mkl, of_numpy),) = set(map(tuple, fl.DataLoader(Products(), batch_size=None, num_workers=0)))
            loader = fl.DataLoader(Products(), batch_size=None, num_workers=2, workers=workers)
            # In threads, NumPy's own threads are those of the whole process, which is not only the workers'.
            assert set(map(tuple, loader)) == {(1, 1 if workers == "processes" else of_numpy)}
        assert mkl in (1, 3)  # 1: built without
        assert of_numpy in (1, 2)
    finally:
        torch.set_num_threads(before)


@every_worker
def test_a_worker_computes_with_one_core(workers: Any) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        loader = fl.DataLoader(Teams(), batch_size=4, num_workers=2, workers=workers)
        assert torch.cat(list(loader)).tolist() == [1] * 8
        assert torch.get_num_threads() == 3
        assert torch.cat(list(fl.DataLoader(Teams(), batch_size=4, num_workers=0))).tolist() == [3] * 8
        later: list[int] = []  # threads to come are not ours
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert later == [3]
    finally:
        torch.set_num_threads(before)


def looks_of_a_loop(pauses: list[float]) -> tuple[int, float]:
    """Return how often a loop that waits so long for each job has looked at the lock, and in how many seconds."""
    completions, watch, over = _native.Completions(), _native.LockWatch(), threading.Event()

    def push() -> None:
        for pause in itertools.cycle(pauses):
            time.sleep(pause)
            completions.push(no_job())
            if over.is_set():
                return

    pusher = threading.Thread(target=push)
    pusher.start()
    began = time.monotonic()
    while time.monotonic() < began + 1.5:
        assert completions.wait(0, watch) is not None
    seconds = time.monotonic() - began
    over.set()
    pusher.join()
    return watch.looks, seconds


@pytest.mark.parametrize(
    "pauses", [[0.1, 0.0005], *(pytest.param(p, marks=pytest.mark.slow) for p in ([0.1], [0.1, 0.0], [0.0002]))]
)
def test_a_loop_that_waits_looks_at_the_lock_however_its_waits_differ(pauses: list[float]) -> None:
    for _ in range(10):  # other programs may have the cores for most of a round
        looks, seconds = looks_of_a_loop(pauses)
        assert looks <= 160 * seconds / 1.5
        if looks >= 20:
            break
    assert looks >= 20


class Integers(Dataset[int]):
    thread_safe = True

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        return sum(range(2000)) + index


def test_threads_tell_how_often_they_asked_for_the_lock_while_the_loop_worked() -> None:
    loader = fl.DataLoader(Integers(), batch_size=10, num_workers=2, workers="threads")
    for _ in loader:
        sum(range(200_000))
    lock = loader.stats()["lock"]
    assert lock is not None
    assert lock["asked"] > 0
    assert lock["delay_seconds"] > 0
