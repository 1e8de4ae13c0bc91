"""Loaders leave nothing behind after breaks, errors, signals, exits and forks."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import textwrap
import threading
import time
import traceback
import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload import _native
from foreload.workers import threads
from tests import leftovers
from tests.programs import Program

warnings.filterwarnings("ignore", message="This DataLoader will create")


class Slow(Dataset[int]):
    def __init__(self, size: int, seconds: float = 0.001, broken: int = -1) -> None:
        self.size = size
        self.seconds = seconds
        self.broken = broken

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if index == self.broken:
            raise LookupError(f"no {index}")  # the line that a traceback must reach
        time.sleep(self.seconds)
        return index


every_worker = pytest.mark.parametrize("workers", ["threads", "processes"])


def workers_alive() -> int:
    gc.collect()
    return sum(thread.name.startswith("foreload") for thread in threading.enumerate())


def test_threads_end_with_the_epoch() -> None:
    loader = fl.DataLoader(Slow(20), batch_size=4, num_workers=3, workers="threads")
    for _ in loader:
        assert workers_alive() == 3
    assert workers_alive() == 0


def test_threads_end_when_the_loop_is_left() -> None:
    loader = fl.DataLoader(Slow(50), batch_size=4, num_workers=2, workers="threads")
    for _ in loader:
        assert workers_alive() == 2
        break
    assert workers_alive() == 0
    iterator = iter(loader)
    next(iterator)
    assert workers_alive() == 2
    del iterator
    assert workers_alive() == 0
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    assert workers_alive() == 0
    assert list(iterator) == []


def test_persistent_workers_stay_until_the_loader_is_closed_or_gone() -> None:
    loader = fl.DataLoader(Slow(20), batch_size=4, num_workers=2, workers="threads", persistent_workers=True)
    for _ in range(3):
        assert torch.cat(list(loader)).tolist() == list(range(20))
        assert workers_alive() == 2
    for _ in loader:
        break
    assert torch.cat(list(loader)).tolist() == list(range(20))
    loader.close()
    assert workers_alive() == 0
    assert torch.cat(list(loader)).tolist() == list(range(20))
    del loader
    assert workers_alive() == 0


@every_worker
def test_errors_in_collate_and_sampler_arrive_too(workers: Any) -> None:
    def collate(samples: list[int]) -> Any:
        raise ArithmeticError("not these")

    with pytest.raises(ArithmeticError, match="not these") as caught:
        list(fl.DataLoader(Slow(4), batch_size=2, num_workers=2, collate_fn=collate, workers=workers))
    assert "[0, 1]" in caught.value.__notes__[0]

    def sampler() -> Any:
        yield from (0, 1, 2, 3)
        raise RuntimeError("the sampler broke")

    def batches_before(kind: Any, **options: Any) -> list[Any]:
        batches: list[Any] = []
        with pytest.raises(RuntimeError, match="the sampler broke"):
            loader = kind(Slow(9), batch_size=2, num_workers=2, sampler=sampler(), **options)
            batches.extend(batch.tolist() for batch in loader)
        return batches

    # Workers are asked ahead as torch's are, so the loop does not even begin.
    assert batches_before(fl.DataLoader, workers=workers) == batches_before(TorchDataLoader) == []


def test_nothing_grows_over_many_epochs() -> None:
    loader = fl.DataLoader(Slow(8, 0), batch_size=2, num_workers=2, workers="threads")
    list(loader)
    descriptors, threads = len(os.listdir("/proc/self/fd")), set(os.listdir("/proc/self/task"))
    for i in range(100):
        for batch in loader:
            if i % 3 == 0 and batch[0] > 2:
                break
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    # (Up to Python 3.12, a thread that was joined may have a last step to do.)
    assert not leftovers.wait_until_none(lambda: set(os.listdir("/proc/self/task")) - threads)


def run(script: str) -> Program:
    code = textwrap.dedent(script)
    return Program("-c", code, finalize=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


SLOW_LOADER = """
    import time, torch, foreload as fl
    class Slow(torch.utils.data.Dataset):
        def __len__(self): return 100
        def __getitem__(self, i):
            time.sleep({seconds})
            return i
    loader = fl.DataLoader(Slow(), batch_size=2, num_workers=2, workers={workers!r})
    iterator = iter(loader)
"""


@pytest.mark.sampled(1)
@every_worker
def test_ctrl_c_interrupts_the_wait_for_a_batch(workers: str) -> None:
    process = run(
        SLOW_LOADER.format(seconds=0.5, workers=workers)
        + "    print('go', flush=True)\n    for _ in iterator: pass\n"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode in (-signal.SIGINT, 1, 130)
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.slow
@every_worker
def test_the_interpreter_exits_with_an_epoch_open(workers: str) -> None:
    process = run(SLOW_LOADER.format(seconds=0.05, workers=workers) + "    next(iterator)\n    print('bye')\n")
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, output, errors) == (0, "bye\n", "")


def test_our_datasets_work_in_forked_and_pickled_workers_beside_an_open_epoch() -> None:
    data = fl.CachedDataset((torch.arange(40).view(20, 2), torch.arange(20)))
    open_epoch = iter(fl.DataLoader(Slow(20), num_workers=2, workers="threads"))
    next(open_epoch)
    for context in ("fork", "forkserver"):
        loader = TorchDataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=context)
        rows = list(loader)
        assert torch.equal(torch.cat([x for x, _ in rows]), torch.arange(40).view(20, 2))
        assert torch.cat([y for _, y in rows]).tolist() == list(range(20))
    assert len(list(open_epoch)) == 19


@pytest.mark.sampled(1)
@every_worker
def test_after_ctrl_c_the_epoch_can_go_on(workers: Any) -> None:
    loader = fl.DataLoader(Slow(8, 0.3), batch_size=2, num_workers=1, workers=workers)
    iterator = iter(loader)
    timer = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        next(iterator)
    timer.join()
    assert torch.cat(list(iterator)).tolist() == list(range(8))


STUCK = """
    import threading, torch, foreload as fl
    class Stuck(torch.utils.data.Dataset):
        def __len__(self): return 10
        def __getitem__(self, i): return threading.Event().wait() if i == 1 else i
    class StuckStream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield 1
            threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "workers"),
    [
        ("Stuck", "threads"),
        pytest.param("StuckStream", "threads", marks=pytest.mark.slow),
        # A process gets five seconds to end by itself, as in torch; then it is killed.
        pytest.param("Stuck", "processes", marks=pytest.mark.slow),
        pytest.param("StuckStream", "processes", marks=pytest.mark.slow),
    ],
)
def test_a_sample_that_never_comes_holds_up_neither_leaving_nor_exit(dataset: str, workers: str) -> None:
    loop = f"for batch in fl.DataLoader({dataset}(), num_workers=1, workers={workers!r}): break"
    process = run(STUCK + f"    {loop}\n    print('left')\n")
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, output, errors) == (0, "left\n", "")


def test_a_worker_thread_that_ends_by_an_error_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(_native.Pool):
        def work(self, *_: Any) -> None:
            raise MemoryError("no memory")

    monkeypatch.setattr(threads._native, "Pool", Short)
    loader = fl.DataLoader(Slow(10), batch_size=2, num_workers=2, workers="threads")
    with pytest.raises(MemoryError, match="no memory") as caught:
        next(iter(loader))
    assert "while it loaded samples, in foreload-worker-" in caught.value.__notes__[0]


def child(action: Any) -> int:
    """The exit status of a fork that does ``action``; one that hangs is killed."""
    process = os.fork()
    if process == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(300)
        try:
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(process, 0)[1]


@pytest.mark.sampled(1)
@every_worker
@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_fork_may_close_drop_and_iterate_its_parents_loader(stream: bool, workers: Any) -> None:
    dataset: Any = Endless() if stream else Slow(10_000, 0)
    loader = fl.DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=True, workers=workers)
    epochs = [iter(loader)]

    def close() -> None:
        epochs.clear()
        gc.collect()
        loader.close()

    def iterate() -> None:
        assert next(iter(loader)).tolist() == [0, 1]

    def carry_on() -> None:
        with pytest.raises(RuntimeError, match="fork"):
            for _ in range(100):  # some batches may be there already
                next(epochs[0])

    for action in (close, iterate, carry_on) * 4:
        next(epochs[0])
        assert child(action) == 0
    assert len(next(epochs[0])) == 2
    epochs[0].close()
    loader.close()


class Endless(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return itertools.count()
