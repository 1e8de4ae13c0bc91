"""Processes that were chosen, and what a program has around its dataset: threads with locks, signals, modules."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
import foreload.workers.worker as worker_module
from tests.workers.followed import Squares


class Locked(Squares):
    """One of its samples takes a lock, which other threads of the program take too."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __getitem__(self, index: int) -> int:
        if index != 29:
            return index
        with self.lock:
            return -index


LOCKS: dict[str, Callable[[], Any]] = {
    "lock": threading.Lock,
    "reentrant lock": threading.RLock,
    "condition": threading.Condition,
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", LOCKS)
def test_samples_wait_for_locks_that_other_threads_hold(name: str, choose: Callable[[int], None]) -> None:
    """In a process that is forked meanwhile, nobody would let go of them, or finish what they guard."""
    choose(2)
    dataset = Locked(LOCKS[name]())
    begun = threading.Event()

    def hold() -> None:
        with dataset.lock:
            begun.set()
            time.sleep(1)

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    loader: Any = fl.DataLoader(dataset, batch_size=4)
    found = torch.cat(list(loader)).tolist()
    assert found == [index if index != 29 else -index for index in range(len(dataset))]
    assert "held a lock" in loader.stats()["workers"]["why"]
    thread.join()


class Asks(Squares):
    """Says whether a lock is free."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __getitem__(self, index: int) -> bool:
        is_free = self.lock.acquire(blocking=False)
        if is_free:
            self.lock.release()
        return bool(is_free)


@pytest.mark.parametrize("name", LOCKS)
def test_the_loop_may_hold_a_lock_that_samples_ask_for(name: str, choose: Callable[[int], None]) -> None:
    choose(2)
    dataset = Asks(LOCKS[name]())
    with dataset.lock:
        stock, ours = ([batch.tolist() for batch in kind(dataset, 4)] for kind in (TorchDataLoader, fl.DataLoader))
    assert ours == stock


@pytest.mark.timeout(120)
def test_the_programs_own_signal_handlers_are_called_once(
    choose: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    choose(2)
    saved = tmp_path / "saved"

    def save(number: int, frame: Any) -> None:
        with saved.open("a") as file:
            file.write(f"{os.getpid()}\n")

    numbers = (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
    before = {number: signal.signal(number, save) for number in numbers}
    try:
        loader: Any = fl.DataLoader(Squares(), batch_size=4)
        batches: Any = iter(loader)
        found = [next(batches)]
        workers = [worker.process.pid for worker in batches._pool.workers]
        assert len(workers) == 2
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)  # so that they get all signals at once
        for number in before:
            for process in (*workers, os.getpid()):  # as a job scheduler does
                os.kill(process, number)
        found += batches
        assert torch.cat(found).tolist() == [Squares()[index] for index in range(len(Squares()))]
        assert saved.read_text().split() == [str(os.getpid())] * len(numbers)
        assert loader.restarts == []
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_worker_that_is_not_set_up_yet_leaves_signals_to_the_program(
    choose: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    choose(2)
    saved, set_up = tmp_path / "saved", worker_module.set_up_process

    def save(number: int, frame: Any) -> None:
        with saved.open("a") as file:
            file.write(f"{os.getpid()}\n")

    def signalled(worker: int, task: Any) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        set_up(worker, task)

    monkeypatch.setattr(worker_module, "set_up_process", signalled)
    before = signal.signal(signal.SIGUSR1, save)
    try:
        batches = [*fl.DataLoader(Squares(), batch_size=4)]
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert torch.cat(batches).tolist() == [Squares()[index] for index in range(len(Squares()))]
    assert saved.read_text().split() == [str(os.getpid())]


def test_what_only_the_handler_of_interrupts_refers_to_ends_in_no_worker(tmp_path: Path) -> None:
    ended = tmp_path / "ended"

    class Handler:
        def __call__(self, number: int, frame: Any) -> None:
            raise KeyboardInterrupt

        def __del__(self) -> None:
            with ended.open("a") as file:
                file.write(f"{os.getpid()}\n")

    before = signal.signal(signal.SIGINT, Handler())
    try:
        batches = [*fl.DataLoader(Squares(), batch_size=4, num_workers=2)]
        assert not ended.exists()
    finally:
        signal.signal(signal.SIGINT, before)
    assert torch.cat(batches).tolist() == [Squares()[index] for index in range(len(Squares()))]
    assert ended.read_text().split() == [str(os.getpid())]


MODULE = """
STRENGTH, TABLE = 1, {"a": 1}
def scale(value): return value * STRENGTH + TABLE["a"]
class Flip:
    def __call__(self, value): return value
"""


def use(module: ModuleType, index: int) -> int:
    return int(module.inner.scale(module.inner.Flip()(index)))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A package of the user's with a module in it."""
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("from . import inner\n")
    (tmp_path / "own_package" / "inner.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    imported = __import__("own_package")
    monkeypatch.setitem(globals(), "PACKAGE", imported)
    yield imported
    for name in ("own_package", "own_package.inner"):
        del sys.modules[name]


PACKAGE: Any = None


class Held(Squares):
    def __init__(self, package: Any) -> None:
        self.package = package

    def __getitem__(self, index: int) -> int:
        return use(self.package, index)


class Passed(Squares):
    def __init__(self, package: Any) -> None:
        pass

    def __getitem__(self, index: int) -> int:
        return use(PACKAGE, index)


def enclosing(package: Any) -> Any:
    class Enclosing(Squares):
        def __init__(self) -> None:
            pass

        def __getitem__(self, index: int) -> int:
            return int(package.inner.scale(package.inner.Flip()(index)))

    return Enclosing()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a number": lambda inner: setattr(inner, "STRENGTH", 5),
    "a table": lambda inner: inner.TABLE.update(a=7),
    "a function": lambda inner: setattr(inner, "scale", lambda value: value * 100),
    "a class": lambda inner: setattr(inner, "Flip", lambda: lambda value: -value),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("how", [Held, Passed, enclosing])
@pytest.mark.parametrize("change", CHANGES)
def test_what_the_loop_changes_in_modules_is_in_the_next_batch(
    change: str, how: Any, package: Any, choose: Callable[[int], None]
) -> None:
    choose(2)
    found = []
    for kind in (TorchDataLoader, fl.DataLoader):
        before = dict(vars(package.inner))
        batches = iter(kind(how(package), batch_size=4))
        found.append([next(batches).tolist() for _ in range(3)])
        CHANGES[change](package.inner)
        found[-1] += [batch.tolist() for batch in batches]
        vars(package.inner).update(before, TABLE={"a": 1})
    assert found[0] == found[1]


class Starts(Squares):
    """Starts a program, or forks, and ends that by a signal."""

    def __init__(self, *, forks: bool) -> None:
        self.forks = forks

    def __getitem__(self, index: int) -> Any:
        if self.forks:
            process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,))
            process.start()
            time.sleep(0.1)
            process.terminate()
            process.join()
            return process.exitcode
        with subprocess.Popen(["sleep", "100"]) as program:
            time.sleep(0.05)
            program.terminate()
            return program.wait()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("forks", "status"), [(False, -signal.SIGTERM), (True, 7)])
def test_what_a_sample_starts_ends_by_a_signal(forks: bool, status: int, choose: Callable[[int], None]) -> None:
    choose(1)
    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    try:
        assert next(iter(fl.DataLoader(Starts(forks=forks), batch_size=2))).tolist() == [status] * 2
    finally:
        signal.signal(signal.SIGTERM, before)
