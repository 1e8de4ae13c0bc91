"""A batch that is late is an error, and comes when it is requested again; a failed epoch goes on failing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset

import foreload as fl
from tests.late import next_however_late

# Of all kinds, by what makes them; torch's promise is the same.
KINDS: dict[str, Any] = {
    "stock": TorchDataLoader,
    "processes": lambda *args, **options: fl.DataLoader(*args, workers="processes", **options),
    "threads": lambda *args, **options: fl.DataLoader(*args, workers="threads", **options),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


class Held(Dataset[int]):
    """A sample is loaded only once a file is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 3:
            wait_for(self.path)
        return index


class HeldStream(IterableDataset[int]):
    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[int]:
        for index in range(8):
            if index == 3:
                wait_for(self.path)
            yield index


def wait_for(path: Path) -> None:
    pause = threading.Event()
    while not path.exists():
        pause.wait(0.05)


def batches_with_retries(loader: Any, path: Path) -> tuple[list[list[int]], int]:
    found, late = [], 0
    iterator = iter(loader)
    while True:
        try:
            found.append(next(iterator).tolist())
        except StopIteration:
            return found, late
        except RuntimeError as error:
            late += "timed out after" in str(error)
            path.touch()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dataset", [Held, HeldStream])
@every_kind
def test_a_late_batch_comes_when_it_is_requested_again(kind: str, dataset: Any, tmp_path: Path) -> None:
    path = tmp_path / "there"
    loader = KINDS[kind](dataset(path), batch_size=2, num_workers=1, timeout=1)
    found, late = batches_with_retries(loader, path)
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert late >= 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_a_late_batch_is_not_lost_from_a_state(kind: str, persistent: bool, tmp_path: Path) -> None:
    path = tmp_path / "there"
    options: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "timeout": 1, "persistent_workers": persistent}
    loader = KINDS[kind](Held(path), **options)
    iterator = iter(loader)
    first = next_however_late(iterator).tolist()
    with pytest.raises(RuntimeError, match="timed out"):
        next(iterator)
    state = loader.state_dict()
    del iterator
    path.touch()
    again = KINDS[kind](Held(path), **{**options, "timeout": 300})
    again.load_state_dict(state)
    assert first + torch.cat(list(again)).tolist() == list(range(8))
    loader.timeout = 300
    assert torch.cat(list(loader)).tolist() == list(range(8))  # by workers that are not stuck
    loader.close()
    again.close()


class Dies(Held):
    def __getitem__(self, index: int) -> int:
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


@pytest.mark.filterwarnings("ignore:.*worker")
def test_an_epoch_whose_workers_died_is_never_taken_for_finished(tmp_path: Path) -> None:
    loader = fl.DataLoader(Dies(tmp_path), batch_size=2, num_workers=1, workers="processes", max_restarts=0)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"killed|exited"):
            next(iterator)
    state = loader.state_dict()
    again = fl.DataLoader(range(8), batch_size=2, num_workers=0)
    assert state["epoch"] == 0
    again.load_state_dict(state)
    assert torch.cat(list(again)).tolist() == list(range(2, 8))


class Stuck(IterableDataset[int]):
    thread_safe = True

    def __init__(self, release: threading.Event) -> None:
        self.release = release

    def __deepcopy__(self, memo: Any) -> Stuck:
        return self

    def __iter__(self) -> Iterator[int]:
        self.release.wait(60)
        yield 0


def test_no_thread_that_is_stuck_is_waited_for() -> None:
    release = threading.Event()
    loader = fl.DataLoader(Stuck(release), batch_size=2, num_workers=2, workers="threads", timeout=0.5)
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match="timed out"):
        next(iterator)
    before = {thread.name for thread in threading.enumerate() if thread.name.startswith("foreload-stream")}
    del iterator
    after = {thread.name for thread in threading.enumerate() if thread.name.startswith("foreload-stream")}
    release.set()
    assert before == after  # nobody has waited until one of them gave up
    for thread in threading.enumerate():
        if thread.name.startswith("foreload-stream"):
            thread.join(300)


class FourOfAStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


@pytest.mark.parametrize("kind", [fl.DataLoader, TorchDataLoader])
@pytest.mark.parametrize(
    "dataset", [range(4), torch.zeros(4), FourOfAStream()], ids=["values", "tensor", "stream"]
)
def test_a_timeout_without_workers_is_an_error_when_an_epoch_begins(kind: Any, dataset: Any) -> None:
    loader = kind(dataset, num_workers=0, timeout=5)
    with pytest.raises(AssertionError, match="timeout"):
        iter(loader)
    loader.timeout = 0
    assert len(list(loader)) == 4


def test_a_timeout_suits_the_default_number_of_workers() -> None:
    assert len(list(fl.DataLoader(range(4), timeout=60))) == 4  # type: ignore[arg-type]


@every_kind
def test_signals_that_are_handled_do_not_make_the_wait_longer(kind: str, tmp_path: Path) -> None:
    """As those of a timer, with which some profilers look where a program is."""
    handled = 0

    def handle(*_: Any) -> None:
        nonlocal handled
        handled += 1
        assert handled < 2000, "no timeout in 100 seconds"

    batches = iter(KINDS[kind](Held(tmp_path / "there"), batch_size=2, num_workers=1, timeout=1))
    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        next(batches)
        with pytest.raises(RuntimeError, match="timed out after"):
            next(batches)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        (tmp_path / "there").touch()
