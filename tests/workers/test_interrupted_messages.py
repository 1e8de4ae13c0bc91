"""Interrupts (Ctrl-C) in the middle of a message to or from a worker, and systems without free descriptors."""

from __future__ import annotations

import gc
import linecache
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import foreload as fl
from foreload.workers.processes import pipes
from tests import leftovers


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        assert worker is not None
        yield from range(worker.id, 40, worker.num_workers)


class _Interrupted:
    """The module ``os`` as pipes see it, where a signal comes right after the system call that a test wants."""

    def __init__(self, wanted: str, calls: int) -> None:
        self._wanted, self.left = wanted, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _is_due(self, name: str) -> bool:
        self.left -= name == self._wanted
        return name == self._wanted and self.left == 0

    def read(self, file: int, size: int) -> bytes:
        part = os.read(file, size)
        if self._is_due("read"):
            raise KeyboardInterrupt
        return part

    def write(self, file: int, data: Any) -> int:
        if self._is_due("write"):
            os.write(file, data[: len(data) // 2])
            raise KeyboardInterrupt
        return os.write(file, data)


def _loader() -> Any:
    return fl.DataLoader(
        Numbers(), batch_size=4, num_workers=2, workers="processes", persistent_workers=True, timeout=60
    )


@pytest.mark.parametrize("call", ["read", "write"])
@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.filterwarnings("ignore:DataLoader worker .* an interrupt has cut off a message")
def test_batches_are_right_afterwards(
    call: str, calls: int, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = leftovers.processes()
    with _loader() as loader:
        expected = [batch.tolist() for batch in loader]
        epoch = iter(loader)
        got = [next(epoch).tolist()]
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(pipes, "os", _Interrupted(call, calls))
            got.extend(batch.tolist() for batch in epoch)
        if goes_on:
            if call == "write":  # to ask for a later batch: the one that the loop was to get is lost, as in torch
                got.append(expected[len(got)])
            assert got + [batch.tolist() for batch in epoch] == expected
        assert [batch.tolist() for batch in loader] == expected
    assert not leftovers.running(before)


class _Tracer:
    """Acts on a line of what receives answers, the n-th that is run: as a signal's handler there does."""

    def __init__(self, line: int, act: Callable[[], None], functions: tuple[str, ...]) -> None:
        self.left = line
        self._act = act
        self._functions = functions

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        is_ours = "foreload" in frame.f_code.co_filename and frame.f_code.co_name in self._functions
        return self._trace if is_ours else None

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        # (Python comes to the line of a "with" once more at its end, where no signal comes.)
        if event == "line" and not line.lstrip().startswith("with "):
            self.left -= 1
            if self.left == 0:
                self._act()
        return self._trace


def _interrupt() -> None:
    raise KeyboardInterrupt


def _got_until(tracer: _Tracer, epoch: Any) -> tuple[list[Any], bool]:
    """Return the batches until the tracer interrupts the loop, and whether it did not."""
    got: list[Any] = []
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        got.extend(batch.tolist() for batch in epoch)
    except KeyboardInterrupt:
        return got, False
    finally:
        sys.settrace(before)
    return got, True


@pytest.mark.filterwarnings("ignore:DataLoader worker .* an interrupt has cut off a message")
@pytest.mark.parametrize(
    ("dataset", "functions", "least", "max_restarts"),
    [
        (Numbers(), ("_receive", "_take_in", "wait", "_look", "receive", "_answer"), 40, 2),
        (Stream(), ("receive",), 15, 3),
    ],
    ids=["map", "stream"],
)
def test_an_interrupt_while_answers_are_taken_in_loses_none(
    dataset: Any, functions: tuple[str, ...], least: int, max_restarts: int
) -> None:
    # (One worker may have been cut off at the end of the epoch before; of a stream, also one that had ended.)
    how: Any = {"workers": "processes", "persistent_workers": True, "timeout": 60}
    with fl.DataLoader(dataset, batch_size=5, num_workers=2, max_restarts=max_restarts, **how) as loader:
        expected = [batch.tolist() for batch in loader]
        line, is_over = 0, False
        while not is_over:
            line += 1
            epoch = iter(loader)
            got, is_over = _got_until(_Tracer(line, _interrupt, functions), epoch)
            assert got + [batch.tolist() for batch in epoch] == expected
    assert line > least


class Counting(Numbers):
    """Has a state that samples show: how many have been loaded."""

    def __init__(self) -> None:
        self.count = 0

    def __getitem__(self, index: int) -> int:
        self.count += 1
        return 1000 * self.count + index

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


@pytest.mark.slow
@pytest.mark.parametrize("dataset", [Stream(), Counting()], ids=["stream", "stateful"])
@pytest.mark.filterwarnings("ignore:DataLoader worker .* is killed by signal")
def test_workers_lost_after_an_interrupt_go_on_where_they_were(dataset: Any) -> None:
    how: Any = {"workers": "processes", "timeout": 60, "snapshot_every_n_steps": 4}
    expected = [batch.tolist() for batch in fl.DataLoader(dataset, batch_size=5, num_workers=2, **how)]
    line, is_over = 0, False
    while not is_over:
        line += 1
        epoch = iter(fl.DataLoader(dataset, batch_size=5, num_workers=2, **how))
        got, is_over = _got_until(_Tracer(line, _interrupt, ("_take_in", "advance")), epoch)
        epoch._workers[line % 2].kill()
        assert got + [batch.tolist() for batch in epoch] == expected
    assert line > 40


class Stateful(Numbers):
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def test_a_signals_handler_that_would_wait_for_itself_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []

    class Handling(_Interrupted):
        def read(self, file: int, size: int) -> bytes:
            if self._is_due("read"):
                with pytest.raises(RuntimeError, match="let it set a flag"):
                    loader.state_dict()
                told.append(True)
            return os.read(file, size)

    loader = fl.DataLoader(Stateful(), batch_size=10, num_workers=2, workers="processes")
    epoch = iter(loader)
    monkeypatch.setattr(pipes, "os", Handling("read", 1))
    got = [batch.tolist() for batch in epoch]
    assert told
    assert got == [[*range(begin, begin + 10)] for begin in range(0, 40, 10)]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_signals_handler_that_closes_the_loader_leaves_no_worker(
    persistent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closing(_Interrupted):
        def write(self, file: int, data: Any) -> int:
            if self._is_due("write"):
                loader.close()
            return os.write(file, data)

    before = leftovers.processes()
    how: Any = {"workers": "processes", "persistent_workers": persistent}
    loader = fl.DataLoader(Numbers(), batch_size=2, num_workers=2, **how)
    epoch = iter(loader)
    next(epoch)
    monkeypatch.setattr(pipes, "os", Closing("write", 1))
    with suppress(RuntimeError, OSError):
        [*epoch]
    loader.close()
    assert not leftovers.running(before)


class Slow(Numbers):
    def __getitem__(self, index: int) -> int:
        time.sleep(0.2)
        return index


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_a_signals_handler_that_closes_the_loader_ends_the_wait(kind: Any) -> None:
    loader = fl.DataLoader(Slow(), batch_size=5, num_workers=2, workers=kind, persistent_workers=True)
    epoch = iter(loader)
    next(epoch)
    before = signal.signal(signal.SIGALRM, lambda *_: loader.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(RuntimeError, match="begin another epoch"):
            [*epoch]
    finally:
        signal.signal(signal.SIGALRM, before)
    loader.close()


def test_a_warning_of_a_replaced_worker_may_be_an_error() -> None:
    with fl.DataLoader(Numbers(), batch_size=4, num_workers=2, workers="processes", timeout=60) as loader:
        epoch = iter(loader)
        got = [next(epoch).tolist()]
        epoch._workers[1].kill()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="is replaced"):
                got.extend(batch.tolist() for batch in epoch)
        got.extend(batch.tolist() for batch in epoch)
    assert got == [[*range(begin, begin + 4)] for begin in range(0, 40, 4)]


def _descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")


def _free() -> int:
    """Return how many descriptors the system still gives."""
    got: list[int] = []
    with suppress(OSError):
        while True:
            got.append(os.open(os.devnull, os.O_RDONLY))
    for file in got:
        os.close(file)
    return len(got)


def test_workers_that_cannot_be_started_leave_no_descriptors() -> None:
    loader = fl.DataLoader(Numbers(), batch_size=4, num_workers=2, workers="processes")
    assert len([*loader]) == 10
    gc.collect()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    refused = 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, _descriptors())) + 32, limits[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        # One more is free each time. (With 13, Python itself loses a pipe, if a process is refused the next one.)
        for _ in range(12):
            os.close(taken.pop())
            before = _free()
            with warnings.catch_warnings(), suppress(OSError):
                warnings.simplefilter("ignore", ResourceWarning)
                refused += 1
                iter(loader)
                refused -= 1
            gc.collect()
            assert _free() == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for file in taken:
            os.close(file)
    assert refused == 12
