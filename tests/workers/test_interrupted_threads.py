"""Interrupts (Ctrl-C) at each step by which a loop gets batches of worker threads, before it goes on."""

from __future__ import annotations

import itertools
import linecache
import os
import signal
import sys
import threading
import time
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import foreload as fl

# Steps after which the batch counts as delivered: that the loop does not have it yet, nobody can tell.
_LAST = ("return batch", "failures.check()", "self._is_torn = False", "if self._limit")
_FUNCTIONS = (
    "__next__",
    "_deliver",
    "_next",
    "_fill",
    "_submit_next",
    "_draw",
    "_await",
    "_cut",
    "_next_here",
    "_make",
)


class Numbers(Dataset[int]):
    thread_safe = True

    def __init__(self, failing: tuple[int, ...] = ()) -> None:
        self.failing = failing

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        if index in self.failing:
            raise ValueError("damaged")
        return index


class _Interrupt:
    """Raises KeyboardInterrupt before a line of the loader, the n-th that is run: as Ctrl-C does."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        is_ours = "/foreload/" in frame.f_code.co_filename and frame.f_code.co_name in _FUNCTIONS
        return self._trace if is_ours else None

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        # (Python comes to the line of a "with" once more at its end, where no signal comes.)
        if event == "line" and not line.startswith(("with ", *_LAST)):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._trace


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": 2},
        {"num_workers": 1, "persistent_workers": True},
        {"num_workers": "auto"},
        {"shuffle": True},
        {"in_order": False},
        {"on_error": "skip"},
    ],
    ids=str,
)
def test_no_batch_is_lost_in_silence(arguments: dict[str, Any]) -> None:
    def loader() -> Any:
        given = {"num_workers": 2, **arguments}
        generator = torch.Generator().manual_seed(3) if "shuffle" in arguments else None
        dataset = Numbers((8, 9, 10, 11) if "on_error" in arguments else ())  # a batch that is left out
        return fl.DataLoader(dataset, 4, workers="threads", timeout=30, generator=generator, **given)

    with loader() as whole:
        expected = [batch.tolist() for batch in whole]
    noticed = unnoticed = 0
    for line in itertools.count(1):
        with loader() as interrupted, loader() as resumed:
            epoch = iter(interrupted)
            got = [next(epoch).tolist()]
            before = sys.gettrace()
            sys.settrace(_Interrupt(line))
            try:
                got.extend(next(epoch).tolist() for _ in range(2))
            except KeyboardInterrupt:
                pass
            else:
                break
            finally:
                sys.settrace(before)
            try:
                got.extend(batch.tolist() for batch in epoch)
                unnoticed += 1
            except RuntimeError as error:
                if "iterate over the loader again" not in str(error):
                    raise
                noticed += 1
                resumed.load_state_dict(interrupted.state_dict())
                got.extend(batch.tolist() for batch in resumed)
            assert sorted(got) == sorted(expected) if "in_order" in arguments else got == expected, line
    assert noticed > 10
    assert unnoticed > 10


class Waiting(Numbers):
    """A dataset whose sample 8 comes when the loop allows it to."""

    def __init__(self) -> None:
        super().__init__((4, 5, 6, 7))
        self.may_go_on = threading.Event()

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        if index == 8:
            assert self.may_go_on.wait(60)
        return super().__getitem__(index)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _signal_to_process() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def _signal_to_thread() -> None:
    """Send it to a thread that does not wait for a batch, as the system may do with any."""
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)


@pytest.mark.parametrize("interrupt", [_signal_to_process, _signal_to_thread, None])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_epoch_whose_wait_was_cut_short_goes_on_and_keeps_nothing(workers: int, interrupt: Any) -> None:
    timeout = 0.5 if interrupt is None else 0
    dataset = Waiting()  # the batch before is left out
    given: Any = {"num_workers": workers, "workers": "threads", "timeout": timeout, "on_error": "skip"}
    before = signal.signal(signal.SIGUSR1, _interrupt)
    try:
        with fl.DataLoader(dataset, 4, **given) as loader:
            epoch = iter(loader)
            got = [int(next(epoch)[0])]
            if interrupt is not None:
                threading.Timer(0.5, interrupt).start()
            with pytest.raises(RuntimeError if timeout else KeyboardInterrupt):
                next(epoch)
            dataset.may_go_on.set()
            for batch in epoch:
                got.append(int(batch[0]))
                time.sleep(0.002)  # slower than the workers, so that what they have finished waits for the loop
                assert len(epoch._finished) <= 2 * workers
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert got == [0, *range(8, 400, 4)], loader.errors


def test_errors_that_end_programs_are_those_of_their_batch_only() -> None:
    class Exiting(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 5:
                raise SystemExit(3)
            return index

    got: list[Any] = []
    with fl.DataLoader(Exiting(), 4, num_workers=1, workers="threads", timeout=30) as loader:
        epoch = iter(loader)
        while True:
            try:
                got.append(next(epoch).tolist()[0])
            except StopIteration:
                break
            except SystemExit as error:
                got.append(error.code)
    assert got == [0, 3, 8, 12, 16, 20]
