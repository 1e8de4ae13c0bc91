"""Worker processes that raise, are killed or hang: nothing is lost, and errors say what happened."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import threading
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import foreload as fl
from tests.late import next_however_late
from tests.workers.rich import Deadly, Failing, Rich, Stream, same


def test_an_exception_comes_as_it_is_with_the_workers_traceback_and_the_rest_goes_on() -> None:
    iterator = iter(fl.DataLoader(Failing(20), batch_size=5, num_workers=2, workers="processes"))
    got = []
    failures = []
    while True:
        try:
            got.append(next(iterator).tolist())
        except StopIteration:
            break
        except FileNotFoundError as error:
            failures.append(error)
    assert got == [[0, 1, 2, 3, 4], [15, 16, 17, 18, 19]]
    assert [error.filename for error in failures] == ["/data/6.jpg", "/data/13.jpg"]
    notes = "\n".join(failures[0].__notes__)
    assert "sample 6 (position 1 of its batch)" in notes
    assert "Caught FileNotFoundError in DataLoader worker process 1" in notes
    assert "in __getitem__" in notes


def fail_init(worker: int) -> None:
    raise OSError("no licence left")


def test_a_failing_worker_init_fn_is_said() -> None:
    with pytest.raises(OSError, match="no licence left"):
        list(fl.DataLoader(Rich(), num_workers=2, worker_init_fn=fail_init, workers="processes"))


class Lambdas(Rich):
    def __getitem__(self, index: int) -> Any:
        return lambda: index


def test_a_batch_that_cannot_be_sent_is_said() -> None:
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError), match="lambda"):
        next(iter(fl.DataLoader(Lambdas(), batch_size=None, num_workers=1, workers="processes")))


class DeadlyStream(IterableDataset[Any]):
    def __init__(self) -> None:
        self.left = torch.tensor([2]).share_memory_()

    def __iter__(self) -> Any:
        info = get_worker_info()
        for index in range(info.id, 60, info.num_workers):
            if index == 40 and self.left > 0:
                self.left -= 1
                os.kill(os.getpid(), signal.SIGKILL)
            yield index


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("method", "end"),
    [
        ("fork", signal.SIGKILL),
        ("fork", signal.SIGSEGV),
        ("fork", 3),
        ("forkserver", signal.SIGKILL),
        pytest.param("spawn", signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_killed_worker_is_replaced_and_nothing_is_lost(end: Any, method: str) -> None:
    loader = fl.DataLoader(
        Deadly(50, 2, end), batch_size=4, num_workers=2, workers="processes", multiprocessing_context=method
    )
    with pytest.warns(UserWarning, match="It is replaced") as said:
        batches = list(loader)
    assert {warning.filename for warning in said if "It is replaced" in str(warning.message)} == {__file__}
    assert [i for batch in batches for i in batch.tolist()] == list(range(50))
    restarts = loader.stats()["restarts"]
    assert [restart["worker"] for restart in restarts] == [1, 1]
    assert restarts[0]["exitcode"] == (-end if isinstance(end, signal.Signals) else end)
    assert any(13 in indices for indices in restarts[0]["indices"])
    assert json.loads(json.dumps(restarts)) == restarts


@pytest.mark.filterwarnings("ignore:DataLoader worker")
def test_a_stream_goes_on_where_its_worker_was_killed() -> None:
    loader = fl.DataLoader(DeadlyStream(), batch_size=3, num_workers=2, workers="processes")
    expected = list(TorchDataLoader(Stream(60), batch_size=3, num_workers=2))
    assert same(list(loader), expected)


@pytest.mark.filterwarnings("ignore:DataLoader worker")
def test_too_many_ends_are_an_error_that_says_what_killed_it_and_where() -> None:
    loader = fl.DataLoader(Deadly(50, 9), batch_size=4, num_workers=2, workers="processes", max_restarts=2)
    with pytest.raises(RuntimeError, match=r"killed by signal: Killed\. 3 workers died.*\[12, 13, 14, 15\]"):
        list(loader)


class Unreadable(Deadly):
    """Cannot be unpickled."""

    def __setstate__(self, state: Any) -> None:
        raise ValueError("not in this process")


@pytest.mark.slow
def test_a_worker_that_cannot_be_started_is_not_started_again(capfd: pytest.CaptureFixture[str]) -> None:
    loader = fl.DataLoader(Unreadable(50, 9), batch_size=4, num_workers=1, multiprocessing_context="forkserver")
    with pytest.raises(RuntimeError, match=r"exit code 1 before its first job; an error .* `if __name__"):
        list(loader)
    assert capfd.readouterr().err.count("ValueError: not in this process") == 1
    assert loader.restarts == []


def leave(worker: int) -> None:
    os._exit(1)


@pytest.mark.filterwarnings("ignore:DataLoader worker")
def test_a_worker_that_a_users_function_ends_is_replaced_as_any_other() -> None:
    loader = fl.DataLoader(Rich(), num_workers=1, workers="processes", worker_init_fn=leave, max_restarts=2)
    with pytest.raises(RuntimeError, match=r"exited unexpectedly with exit code 1\. Details .* 3 workers died"):
        list(loader)


@pytest.mark.parametrize(("end", "words"), [(signal.SIGKILL, "Killed"), (signal.SIGSEGV, "Segmentation fault")])
def test_without_restarts_the_error_is_torchs(end: Any, words: str) -> None:
    loader = fl.DataLoader(Deadly(50, 9, end), batch_size=4, num_workers=2, workers="processes", max_restarts=0)
    with pytest.raises(RuntimeError, match=rf"^DataLoader worker \(pid \d+\) is killed by signal: {words}"):
        list(loader)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:DataLoader worker")
@pytest.mark.parametrize(
    ("persistent", "in_order"),
    [
        (True, True),
        *(pytest.param(*kind, marks=pytest.mark.slow) for kind in ((True, False), (False, True), (False, False))),
    ],
)
def test_workers_may_be_killed_at_any_time(in_order: bool, persistent: bool) -> None:
    loader = fl.DataLoader(
        Rich(60),
        batch_size=3,
        num_workers=2,
        workers="processes",
        persistent_workers=persistent,
        in_order=in_order,
        max_restarts=100,
    )
    chance = random.Random(0)
    for _ in range(6):
        seen = []
        iterator = iter(loader)
        for batch in iterator:
            seen += batch["nested"][0][0].tolist()
            assert batch["image"][:, 0, 0, 0].tolist() == batch["nested"][0][0].tolist()
            if chance.random() < 0.2:
                process = chance.choice(iterator._workers)
                if process.pid is not None and process.is_alive():
                    os.kill(process.pid, signal.SIGKILL)
        assert (seen if in_order else sorted(seen)) == list(range(60))
    assert len(loader.restarts) > 5
    loader.close()


class Stuck(Rich):
    def __getitem__(self, index: int) -> Any:
        if index == 9:
            time.sleep(600)
        return index


def test_a_stuck_sample_is_named_with_the_stack_that_holds_it() -> None:
    loader = fl.DataLoader(Stuck(20), batch_size=4, num_workers=2, workers="processes", timeout=1)
    iterator, started = iter(loader), time.monotonic()
    assert [next_however_late(iterator).tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for _ in range(20):
        with pytest.raises(RuntimeError, match="timed out after 1 seconds") as caught:
            next(iterator)
        if "sample 9" in str(caught.value):  # to which a busy machine need not have come at once
            break
    iterator.close()
    assert time.monotonic() - started < 300
    assert "sample 9 (position 1 of its batch)" in str(caught.value)
    assert "in __getitem__" in str(caught.value)


class NeverThere(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: str) -> int:
        threading.Event().wait()
        return len(index)


def test_jobs_that_no_pipe_holds_wait_no_longer_for_a_stuck_worker() -> None:
    batches = [["short"], *([str(number) * (4 << 20)] for number in range(3))]
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.5 seconds"):
        list(fl.DataLoader(NeverThere(), batch_sampler=batches, num_workers=1, timeout=0.5))
