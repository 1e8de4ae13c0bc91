"""Worker processes: the same as stock torch gives, and what happens when one of them breaks."""

from __future__ import annotations

import collections
import gc
import json
import logging
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

import foreload as fl
from foreload.workers.process import Worker


class Point(NamedTuple):
    x: torch.Tensor
    name: str


class Rich(Dataset[Any]):
    """All that default_collate knows."""

    def __init__(self, size: int = 50) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return {
            "image": torch.full((3, 20, 20), float(index)),
            "array": np.arange(index, index + 4, dtype=np.int16),
            "nested": [(index, float(index)), {"text": f"sample {index}", "bytes": bytes([index % 256])}],
            "point": Point(torch.tensor(index), str(index)),
            "worker": -1 if get_worker_info() is None else get_worker_info().id,
        }


class Random(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return torch.rand(2), random.random(), np.random.rand()


class Stream(IterableDataset[Any]):
    def __init__(self, size: int = 47) -> None:
        self.size = size

    def __iter__(self) -> Any:
        info = get_worker_info()
        return iter(range(info.id, self.size, info.num_workers))


class Uneven(IterableDataset[Any]):
    """The workers have more and less to give, one has nothing."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        return iter([torch.tensor([info.id, i]) for i in range([7, 0, 23][info.id])])


def same(ours: Any, stock: Any) -> bool:
    if type(ours) is not type(stock):
        return False
    if isinstance(ours, torch.Tensor):
        return ours.dtype == stock.dtype and torch.equal(ours, stock)
    if isinstance(ours, np.ndarray):
        return bool(np.array_equal(ours, stock))
    if isinstance(ours, dict):
        return list(ours) == list(stock) and all(same(ours[key], stock[key]) for key in ours)
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(stock) and all(map(same, ours, stock))
    return bool(ours == stock)


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


class Failing(Rich):
    def __getitem__(self, index: int) -> Any:
        if index in (6, 13):
            raise FileNotFoundError(2, "there is no such picture", f"/data/{index}.jpg")
        return index


class Odd(Exception):
    """Cannot be made again from what it shows."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


class FailingOddly(Rich):
    def __getitem__(self, index: int) -> Any:
        raise Odd(index, 2)


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


def test_an_exception_that_cannot_be_made_again_keeps_its_class() -> None:
    with pytest.raises(Odd, match=r"^0 and 2") as caught:
        next(iter(fl.DataLoader(FailingOddly(), num_workers=2, workers="processes")))
    assert "Caught Odd in DataLoader worker process 0" in "".join(caught.value.__notes__)


def fail_init(worker: int) -> None:
    raise OSError("no licence left")


def test_a_failing_worker_init_fn_is_said() -> None:
    with pytest.raises(OSError, match="no licence left"):
        list(fl.DataLoader(Rich(), num_workers=2, worker_init_fn=fail_init, workers="processes"))


class Lambdas(Rich):
    def __getitem__(self, index: int) -> Any:
        return lambda: index


def test_a_batch_that_cannot_be_sent_is_said() -> None:
    with pytest.raises((AttributeError, TypeError), match="lambda"):
        next(iter(fl.DataLoader(Lambdas(), batch_size=None, num_workers=1, workers="processes")))


class Deadly(Rich):
    """Kills the workers that load the wrong sample, ``times`` in all."""

    def __init__(self, size: int, times: int, end: Any = signal.SIGKILL) -> None:
        super().__init__(size)
        self.left = torch.tensor([times]).share_memory_()
        self.end = end

    def __getitem__(self, index: int) -> Any:
        if index == 13 and self.left > 0:
            self.left -= 1
            if isinstance(self.end, signal.Signals):
                os.kill(os.getpid(), self.end)
                time.sleep(10)
            os._exit(self.end)
        return index


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
    with pytest.raises(RuntimeError, match=r"killed by signal: Killed.*3 workers died.*\[12, 13, 14, 15\]"):
        list(loader)


@pytest.mark.parametrize(("end", "words"), [(signal.SIGKILL, "Killed"), (signal.SIGSEGV, "Segmentation fault")])
def test_without_restarts_the_error_is_torchs(end: Any, words: str) -> None:
    loader = fl.DataLoader(Deadly(50, 9, end), batch_size=4, num_workers=2, workers="processes", max_restarts=0)
    with pytest.raises(RuntimeError, match=rf"^DataLoader worker \(pid \d+\) is killed by signal: {words}"):
        list(loader)


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
            time.sleep(60)
        return index


def test_a_stuck_sample_is_named_with_the_stack_that_holds_it() -> None:
    loader = fl.DataLoader(Stuck(20), batch_size=4, num_workers=2, workers="processes", timeout=1)
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="timed out after 1 seconds") as caught:
        list(loader)
    assert time.monotonic() - started < 10
    assert "sample 9 (position 1 of its batch)" in str(caught.value)
    assert "in __getitem__" in str(caught.value)


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
        loader = fl.DataLoader(Slow(), batch_size=4, num_workers=3, workers="processes")
        iterator = iter(loader)
        next(iterator)
        print(*[process.pid for process in iterator._workers], flush=True)
        time.sleep(100)
    """
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3
        time.sleep(0.5)
        parent.kill()
    deadline = time.monotonic() + 2
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


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
        process.join(5)
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
    loader = fl.DataLoader(forking, batch_size=2, num_workers=2, workers="processes", timeout=60)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [restart["worker"] for restart in loader.stats()["restarts"]] == [1]
    assert alive(int(forking.child))


@pytest.mark.filterwarnings("ignore:DataLoader worker")
@pytest.mark.parametrize("forking", [False], indirect=True)
def test_a_worker_killed_amid_an_answer_is_noticed_while_a_child_of_its_own_lives(forking: Forking) -> None:
    loader: Any = fl.DataLoader(
        forking, batch_size=None, sampler=[3], num_workers=1, workers="processes", timeout=60
    )
    iterator = iter(loader)
    (worker,) = iterator._pool.workers
    assert select.select([worker], [], [], 60)[0]  # it cannot end its answer until the loop reads it
    os.kill(worker.process.pid, signal.SIGKILL)
    assert [len(batch) for batch in iterator] == [1000]
    assert len(loader.restarts) == 1
    assert alive(int(forking.child))


def test_workers_end_while_the_loop_is_at_the_last_batches() -> None:
    iterator = iter(fl.DataLoader(Rich(12), batch_size=2, num_workers=2, workers="processes"))
    for _ in range(5):
        next(iterator)
    for process in iterator._workers:
        process.join(60)  # without the loop's doing anything
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
    end, calls = Worker.end, iter(range(100))

    def interrupted(worker: Worker, seconds: float = 5) -> Any:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return end(worker, seconds)

    monkeypatch.setattr(Worker, "end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        iterator.close()
    assert not any(process.is_alive() for process in processes)


def of_blas(_: int) -> Any:
    from threadpoolctl import threadpool_info

    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


class Multiplying(Rich):
    def __getitem__(self, index: int) -> Any:
        matrix = np.full((200, 200), float(index))
        before = len(os.listdir("/proc/self/task"))
        return float((matrix @ matrix)[0, 0]), of_blas(0), before, len(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_blas_in_a_worker_starts_no_threads_and_the_loop_keeps_its_own(method: str) -> None:
    before = of_blas(0)
    loader: Any = fl.DataLoader(
        Multiplying(6), batch_size=None, num_workers=2, workers="processes", multiprocessing_context=method
    )
    for index, (product, threads, tasks, tasks_then) in enumerate(loader):
        assert product == 200 * index**2
        assert set(threads) == {1}
        assert tasks == tasks_then
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
        loader = fl.DataLoader(Rich(12), batch_size=2, num_workers=2, workers="processes", timeout=60)
        for _ in range(10):
            assert [batch["nested"][0][0].tolist() for batch in loader] == [[i, i + 1] for i in range(0, 12, 2)]
    finally:
        over.set()
        for thread in threads:
            thread.join()


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


@pytest.mark.parametrize("size", [0, 1, 5, 11])
def test_a_stream_that_ends_early_leaves_the_others_their_share(size: int) -> None:
    loader = fl.DataLoader(
        Stream(size),
        batch_size=2,
        num_workers=3,
        workers="processes",
        prefetch_factor=1,
        in_order=False,
        timeout=60,
    )
    assert sorted(index for batch in loader for index in batch.tolist()) == list(range(size))


class Uneven(Dataset[int]):
    """Sample 0 takes long: until the others that a worker has in its first batches are far behind."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        time.sleep(0.3 if index == 0 else 0.001)
        return index


def numbers(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch.tolist()]


def test_workers_go_further_ahead_while_one_batch_holds_up_the_loop() -> None:
    loader = fl.DataLoader(Uneven(), 2, workers="processes")
    assert numbers(loader) == list(range(64))
    stats = loader.stats()["workers"]
    assert stats["depth"] > 2 * stats["count"] > 0


def test_workers_go_no_further_ahead_than_the_user_allows() -> None:
    loader = fl.DataLoader(Uneven(), 2, workers="processes", prefetch_factor=2)
    assert numbers(loader) == list(range(64))
    assert loader.stats()["workers"]["depth"] == 2 * loader.stats()["workers"]["count"]
    loader = fl.DataLoader(Uneven(), 2, num_workers=2)  # as torch does it
    assert numbers(loader) == list(range(64))
    assert loader.stats()["workers"]["depth"] == 4
