"""Processes that were chosen are compared with the calling thread if they load slower than it was measured to."""

from __future__ import annotations

import os
import random
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import foreload as fl
from foreload.tune import choose
from foreload.tune.candidates import Measurement

PROCESS = os.getpid()
SIZE = 60


class Sent:
    """A batch that takes its time on the way from a worker, as if that had no core."""

    def __init__(self, values: list[int], seconds: float) -> None:
        self.values, self.seconds = values, seconds

    def __reduce__(self) -> Any:
        if os.getpid() != PROCESS:
            time.sleep(self.seconds)
        return Sent, (self.values, self.seconds)


class Slow(Dataset[int]):
    """Takes its time in this process, or in every one."""

    def __init__(self, here: float = 0.0, everywhere: float = 0.0) -> None:
        self.here, self.everywhere = here, everywhere

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        time.sleep(self.everywhere + (self.here if os.getpid() == PROCESS else 0.0))
        return index * index


def loader_of(dataset: Any, monkeypatch: pytest.MonkeyPatch, alone: float, sending: float, **how: Any) -> Any:
    """A loader whose measurement says that two processes are twice as fast as the calling thread."""
    rates: dict[Any, float] = {("threads", 0): alone, ("processes", 2): 2 * alone}
    monkeypatch.setattr(choose, "measure_workers", lambda *_: Measurement(rates, [], 0.0, ""))
    return fl.DataLoader(dataset, batch_size=2, collate_fn=partial(Sent, seconds=sending), **how)


def squares(loader: Any) -> list[int]:
    return [value for batch in loader for value in batch.values]


EXPECTED = [index * index for index in range(SIZE)]


@pytest.mark.parametrize("how", [{}, {"persistent_workers": True}, {"cache": "1MiB"}], ids=str)
def test_the_calling_thread_loads_if_it_is_faster(monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]) -> None:
    loader = loader_of(Slow(), monkeypatch, alone=1e6, sending=0.1, **how)
    with loader:
        for _ in range(3):
            assert squares(loader) == EXPECTED
        found = loader.stats()["workers"]
        assert (found["kind"], found["count"]) == ("threads", 0)
        assert "processes" in found["why"]
        assert any("to be compared" in change for change in found["tuning"])


class Draws(Slow):
    """Draws random numbers, which are the same whoever loads."""

    def __getitem__(self, index: int) -> Any:
        return index, float(torch.rand(())), random.random(), float(np.random.rand())


def test_no_number_tells_that_they_were_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for sending, alone in ((0.1, 1e6), (0.0, 1.0)):
        torch.manual_seed(7)
        with loader_of(Draws(), monkeypatch, alone=alone, sending=sending, shuffle=True) as loader:
            drawn = [[value for batch in loader for value in batch.values] for _ in range(2)]
            found.append((drawn, torch.rand(3).tolist()))
            compared = any("to be compared" in change for change in loader.stats()["workers"]["tuning"])
            assert compared == (alone > 1)
    assert found[0] == found[1]


@pytest.mark.slow
def test_processes_go_on_in_the_next_epoch_if_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(Slow(here=0.08), monkeypatch, alone=1e6, sending=0.05)
    with loader:
        for number in range(3):
            assert squares(loader) == EXPECTED
            workers = loader.stats()["workers"]
            if number:
                assert workers["kind"] == "processes"
                assert workers["count"] > 0
        # They are compared once.
        assert len([change for change in workers["tuning"] if "to be compared" in change]) == 1


def test_processes_as_fast_as_was_measured_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(Slow(), monkeypatch, alone=1.0, sending=0.05)
    with loader:
        assert squares(loader) == EXPECTED
        workers = loader.stats()["workers"]
        assert (workers["kind"], workers["count"], workers["tuning"]) == ("processes", 2, [])


def test_samples_that_take_longer_than_was_measured_are_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would in the calling thread, too, and the rest of an epoch may be long."""
    # (So long that nothing else takes as long, on a busy machine either.)
    loader = loader_of(Slow(everywhere=0.1), monkeypatch, alone=1e6, sending=0.0)
    with loader:
        assert squares(loader) == EXPECTED
        found = loader.stats()["workers"]
        assert found["kind"] == "processes"
        assert not [change for change in found["tuning"] if "to be compared" in change]


def test_a_number_that_the_user_gave_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(Slow(), monkeypatch, alone=1e6, sending=0.05, num_workers=2)
    with loader:
        assert squares(loader) == EXPECTED
        assert (loader.stats()["workers"]["kind"], loader.num_workers) == ("processes", 2)
