"""Interrupts (Ctrl-C) in the middle of a message to or from a worker, and systems without free descriptors."""

from __future__ import annotations

import gc
import os
import resource
import warnings
from contextlib import suppress
from typing import Any

import pytest
from torch.utils.data import Dataset

import foreload as fl
from foreload.workers.processes import pipes
from tests import leftovers


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


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
