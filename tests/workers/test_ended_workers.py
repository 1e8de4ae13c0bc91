"""Worker processes end with their loader and their parent, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import pathlib
import select
import signal
import subprocess
import textwrap
import time
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import pytest
import torch

import foreload as fl
from foreload.workers.processes.worker import ProcessWorker
from tests.programs import Program
from tests.workers.rich import Deadly, Failing, Rich


def left() -> tuple[int, int, set[str], list[str]]:
    """Descriptors, mapped slots, named memory of ours, and children."""
    # The collector does not see through what is native, so a ring behind a ring takes it two turns.
    gc.collect()
    gc.collect()
    maps = pathlib.Path("/proc/self/maps").read_text().count("memfd:foreload")
    named = {name for name in os.listdir("/dev/shm") if "foreload" in name}
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return len(os.listdir("/proc/self/fd")), maps, named, children


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:DataLoader worker")
def test_nothing_is_left_behind() -> None:
    def use(how: str) -> None:
        loader = fl.DataLoader(
            Deadly(50, 1) if how == "killed" else Failing(20) if how == "failing" else Rich(50),
            batch_size=4,
            num_workers=2,
            workers="processes",
            persistent_workers=how == "persistent",
        )
        try:
            for number, _ in enumerate(loader):
                if how == "left" and number == 2:
                    break
        except OSError:
            assert how == "failing"

    use("whole")
    before = left()
    for how in ("whole", "left", "killed", "failing", "persistent"):
        use(how)
        assert left() == before, how


def test_workers_end_with_their_parent_even_in_the_middle_of_a_sample(tmp_path: pathlib.Path) -> None:
    program = """
        import sys, time, os, torch, foreload as fl
        from torch.utils.data import Dataset
        class Slow(Dataset):
            def __len__(self): return 100
            def __getitem__(self, index):
                if index > 20: time.sleep(100)
                return index
        loader = fl.DataLoader(Slow(), 4, num_workers=3, workers="processes", multiprocessing_context="fork")
        iterator = iter(loader)
        next(iterator)
        print(*[process.pid for process in iterator._workers], flush=True)
        time.sleep(100)
    """
    with Program("-c", textwrap.dedent(program), stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3
        time.sleep(0.5)
        parent.kill()
    deadline = time.monotonic() + 300
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Forking(Rich):
    """A worker forks a child that goes on for long, before it answers with more than a pipe holds."""

    def __init__(self, size: int, *, dies: bool) -> None:
        super().__init__(size)
        self.child = torch.tensor([0]).share_memory_()
        self.dies = dies

    def __getitem__(self, index: int) -> Any:
        if index == 3 and self.child == 0:
            pid = os.fork()
            if pid == 0:
                time.sleep(600)
                os._exit(0)
            self.child[0] = pid
            if self.dies:
                os.kill(os.getpid(), signal.SIGKILL)
        return index if self.dies else [np.full(3000, number % 256, np.uint8) for number in range(1000)]


@pytest.fixture
def forking(request: pytest.FixtureRequest) -> Any:
    dataset = Forking(8, dies=request.param)
    yield dataset
    os.kill(int(dataset.child), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:DataLoader worker")
@pytest.mark.parametrize("forking", [True], indirect=True)
def test_a_killed_worker_is_noticed_while_a_child_of_its_own_lives(forking: Forking) -> None:
    loader = fl.DataLoader(forking, batch_size=2, num_workers=2, workers="processes", timeout=300)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [restart["worker"] for restart in loader.stats()["restarts"]] == [1]
    assert alive(int(forking.child))


@pytest.mark.filterwarnings("ignore:DataLoader worker")
@pytest.mark.parametrize("forking", [False], indirect=True)
def test_a_worker_killed_amid_an_answer_is_noticed_while_a_child_of_its_own_lives(forking: Forking) -> None:
    loader: Any = fl.DataLoader(
        forking, batch_size=None, sampler=[3], num_workers=1, workers="processes", timeout=300
    )
    iterator = iter(loader)
    (worker,) = iterator._pool.workers
    assert select.select([worker], [], [], 300)[0]  # it cannot end its answer until the loop reads it
    os.kill(worker.process.pid, signal.SIGKILL)
    assert [len(batch) for batch in iterator] == [1000]
    assert len(loader.restarts) == 1
    assert alive(int(forking.child))


def test_workers_end_while_the_loop_is_at_the_last_batches() -> None:
    iterator = iter(fl.DataLoader(Rich(12), batch_size=2, num_workers=2, workers="processes"))
    for _ in range(5):
        next(iterator)
    for process in iterator._workers:
        process.join(300)  # without the loop's doing anything
        assert process.exitcode == 0
    assert len(list(iterator)) == 1


@pytest.mark.slow
def test_a_process_that_cannot_be_started_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = fl.DataLoader(Rich(12), batch_size=2, num_workers=3, workers="processes")
    list(loader)
    before, lanes = left(), len(loader.spans.lanes)
    start, count = BaseProcess.start, iter(range(100))

    def fail(process: BaseProcess) -> None:
        if next(count) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        start(process)

    monkeypatch.setattr(BaseProcess, "start", fail)
    with pytest.raises(BlockingIOError):
        iter(loader)
    monkeypatch.undo()
    assert left() == before
    assert len(list(loader)) == 6
    assert len(loader.spans.lanes) == lanes


def test_an_interrupt_while_the_workers_end_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = iter(fl.DataLoader(Rich(12), batch_size=2, num_workers=3, workers="processes"))
    processes = iterator._workers
    end, calls = ProcessWorker.end, iter(range(100))

    def interrupted(worker: ProcessWorker, seconds: float = 5) -> Any:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return end(worker, seconds)

    monkeypatch.setattr(ProcessWorker, "end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        iterator.close()
    assert not any(process.is_alive() for process in processes)
