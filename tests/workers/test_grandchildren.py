"""Workers that end while processes of their own live, which hold the other ends of all their pipes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import foreload as fl
from tests.leftovers import has_ended

# Longer than any of these tests may take: whoever waits for a grandchild hangs.
_LIFE = 600


def _live(*, stubborn: bool = False) -> None:
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(_LIFE)
    os._exit(0)


def _forked(stubborn: bool = False) -> int:
    child = os.fork()
    if child == 0:
        _live(stubborn=stubborn)
    return child


def _forked_in_c() -> int:
    child: int = ctypes.CDLL(None).fork()  # no hook of Python's runs
    if child == 0:
        _live()
    return child


def _of_multiprocessing(method: str) -> int:
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    process: Any = multiprocessing.get_context(method)
    process = process.Process(target=_live)
    process.start()
    return int(process.pid)


STARTS: dict[str, Any] = {
    "fork": _forked,
    "stubborn": lambda: _forked(stubborn=True),
    "fork in C": _forked_in_c,
    "program": lambda: subprocess.Popen(["sleep", str(_LIFE)]).pid,
    "program with our files": lambda: subprocess.Popen(["sleep", str(_LIFE)], close_fds=False).pid,
    "multiprocessing": lambda: _of_multiprocessing("fork"),
    "grandchild of its own": lambda: _nested(),
}


def _nested() -> int:
    """A child that ends at once, after it has forked another one."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(_forked()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    pid = int(os.read(read, 20))
    os.close(read)
    os.close(write)
    return pid


def die(how: Any) -> None:
    """End this process, and nothing that it has started."""
    if isinstance(how, signal.Signals):
        os.kill(os.getpid(), how)
        time.sleep(60)
    os._exit(how)


class Parents(Dataset[Any]):
    """Workers have children once; then they end, or not."""

    def __init__(self, start: str, *, size: int = 16, end: Any = signal.SIGKILL, ballast: int = 0) -> None:
        self.start, self.size, self.end, self.ballast = start, size, end, ballast
        self.child = torch.tensor([0]).share_memory_()

    def have_child(self) -> None:
        if self.child == 0:
            self.child[0] = STARTS[self.start]()
            if self.end is not None:
                die(self.end)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            self.have_child()
        return [np.full(3000, i % 256, np.uint8) for i in range(self.ballast)] if self.ballast else index


class ParentsAtStart(Parents):
    def __call__(self, worker: int) -> None:
        if worker == 0:
            self.have_child()

    def __getitem__(self, index: int) -> int:
        return index


class Streams(IterableDataset[Any]):
    def __init__(self, parents: Parents) -> None:
        self.parents = parents

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        return (self.parents[index] for index in range(info.id, len(self.parents), info.num_workers))


@pytest.fixture
def made() -> Iterator[list[Parents]]:
    parents: list[Parents] = []
    yield parents
    for each in parents:
        child = int(each.child)
        assert child != 0
        assert not has_ended(child)  # so that nobody waited for its end
        os.kill(child, signal.SIGKILL)


def load(dataset: Any, **arguments: Any) -> Any:
    options: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "workers": "processes", "timeout": 300}
    return fl.DataLoader(dataset, **{**options, **arguments})


def identity(samples: Any) -> Any:
    return samples


quietly = pytest.mark.filterwarnings("ignore:DataLoader worker", "ignore:This process")


@pytest.mark.sampled(2)
@quietly
@pytest.mark.parametrize("start", STARTS)
def test_a_worker_that_is_killed_is_replaced_at_once(start: str, made: list[Parents]) -> None:
    made.append(Parents(start))
    loader = load(made[0])
    assert [batch.tolist() for batch in loader] == [[i, i + 1] for i in range(0, 16, 2)]
    assert [restart.exitcode for restart in loader.restarts] == [-signal.SIGKILL]


@pytest.mark.sampled(2)
@quietly
@pytest.mark.parametrize("end", [signal.SIGSEGV, signal.SIGTERM, 3, 0])
def test_it_may_end_in_other_ways(end: Any, made: list[Parents]) -> None:
    made.append(Parents("fork in C", end=end))
    loader = load(made[0])
    assert sorted(i for batch in loader for i in batch.tolist()) == list(range(16))
    assert len(loader.restarts) == 1


@pytest.mark.slow
@quietly
@pytest.mark.parametrize("start", ["fork", "program", "multiprocessing"])
@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.slow), "forkserver"])
def test_however_workers_are_started(method: str, start: str, made: list[Parents]) -> None:
    if method == "forkserver" and start != "fork":
        pytest.skip("the same as with spawn")
    made.append(Parents(start))
    loader = load(made[0], multiprocessing_context=method)
    assert sorted(i for batch in loader for i in batch.tolist()) == list(range(16))
    assert len(loader.restarts) == 1


@pytest.mark.sampled(1)
@quietly
@pytest.mark.parametrize(
    "arguments", [{"persistent_workers": True}, {"in_order": False}, {"cache": "1MiB"}], ids=str
)
def test_whatever_the_loader_does(arguments: Any, made: list[Parents]) -> None:
    made.append(Parents("fork in C"))
    loader = load(made[0], **arguments)
    for _ in range(2):
        assert sorted(i for batch in loader for i in batch.tolist()) == list(range(16))
    assert len(loader.restarts) == 1
    loader.close()


@quietly
@pytest.mark.parametrize("start", ["fork", "fork in C"])
def test_in_worker_init_fn(start: str, made: list[Parents]) -> None:
    made.append(ParentsAtStart(start))
    loader = load(made[0], worker_init_fn=made[0])
    assert sorted(i for batch in loader for i in batch.tolist()) == list(range(16))
    assert len(loader.restarts) >= 1


@quietly
def test_in_a_stream(made: list[Parents]) -> None:
    made.append(Parents("fork in C"))
    loader = load(Streams(made[0]))
    assert sorted(i for batch in loader for i in batch.tolist()) == list(range(16))


def test_without_restarts_it_is_an_error_at_once(made: list[Parents]) -> None:
    made.append(Parents("fork in C"))
    with pytest.raises(RuntimeError, match="killed by signal: Killed"):
        list(load(made[0], max_restarts=0))


@pytest.mark.sampled(1)
@quietly
@pytest.mark.parametrize("start", ["fork", "fork in C", "program with our files"])
def test_in_the_middle_of_an_answer(start: str, made: list[Parents]) -> None:
    made.append(Parents(start, end=None, ballast=1000))
    loader = load(made[0], batch_size=None, sampler=[3], num_workers=1)
    iterator = iter(loader)
    (process,) = iterator._workers
    while made[0].child == 0:
        process.join(0.01)
    process.join(0.5)  # it cannot send more than a pipe holds until the loop reads
    os.kill(process.pid, signal.SIGKILL)
    assert [len(batch) for batch in iterator] == [1000]
    assert len(loader.restarts) == 1


@pytest.mark.slow
@quietly
@pytest.mark.parametrize("start", ["fork", "fork in C"])
def test_while_the_loop_sends_more_jobs_than_a_pipe_holds(start: str, made: list[Parents]) -> None:
    made.append(Parents(start, size=600_000))
    loader = load(
        made[0], batch_size=150_000, sampler=list(range(600_000)), prefetch_factor=4, collate_fn=identity
    )
    assert sum(len(batch) for batch in loader) == 600_000
    assert len(loader.restarts) == 1


@quietly
def test_while_the_loop_computes(made: list[Parents]) -> None:
    made.append(Parents("fork in C", end=None))
    loader = load(made[0])
    iterator = iter(loader)
    taken = [next(iterator) for _ in range(2)]
    while made[0].child == 0:
        time.sleep(0.01)
    for process in iterator._workers:
        process.kill()
        process.join()
    assert torch.cat([*taken, *iterator]).tolist() == list(range(16))


@pytest.mark.parametrize("persistent", [False, True])
def test_closing_waits_for_no_grandchild(persistent: bool, made: list[Parents]) -> None:
    made.append(Parents("stubborn", end=None))
    loader = load(made[0], persistent_workers=persistent)
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(3)]
    assert len(batches) == 3
    processes = iterator._workers
    iterator.close()
    loader.close()
    assert not any(process.is_alive() for process in processes)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_a_loader_in_a_thread_starts_workers_beside_those_of_another(workers: Any) -> None:
    """Workers of one loader inherit the pipes of those that another thread is about to start."""
    results: list[Any] = []

    def go() -> None:
        results.extend(torch.cat(list(load(range(40), workers=workers))).tolist() for _ in range(4))

    threads = [threading.Thread(target=go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert results == [list(range(40))] * 12


class Silent(Dataset[Any]):
    """A worker closes all its files once, as programs do that go on in the background, and lives on."""

    def __init__(self) -> None:
        self.left = torch.tensor([1]).share_memory_()

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        if index == 3 and self.left > 0:
            self.left[0] = 0
            os.closerange(3, 1 << 10)
            time.sleep(_LIFE)
        return index


@pytest.mark.slow
@quietly
def test_a_worker_that_closes_its_pipes_is_replaced_though_it_lives() -> None:
    loader = load(Silent())
    assert torch.cat(list(loader)).tolist() == list(range(16))
    assert len(loader.restarts) == 1


class Talkative(Dataset[Any]):
    """More comes back from a worker than a pipe holds, while as much goes to it."""

    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, index: int) -> str:
        return "x" * 20


def test_long_jobs_and_long_answers_do_not_wait_for_each_other() -> None:
    loader = load(
        Talkative(),
        batch_size=200_000,
        sampler=list(range(400_000)) * 2,
        num_workers=1,
        prefetch_factor=4,
        collate_fn=identity,
    )
    assert [len(batch) for batch in loader] == [200_000] * 4
