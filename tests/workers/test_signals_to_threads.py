"""A signal that the system delivers to a thread that waits for nothing interrupts the loop all the same."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset

import foreload as fl


def _number(index: int, allowed: Path) -> int:
    deadline = time.monotonic() + 60
    while index == 8 and not allowed.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return index


class Numbers(Dataset[int]):
    """A dataset whose sample 8 comes when a file is there."""

    def __init__(self, allowed: Path) -> None:
        self.allowed = allowed

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        return _number(index, self.allowed)


class Stream(IterableDataset[int]):
    def __init__(self, allowed: Path) -> None:
        self.allowed = allowed

    def __iter__(self) -> Iterator[int]:
        return (_number(index, self.allowed) for index in range(24))


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("workers", ["threads", "processes"])
@pytest.mark.parametrize("kind", [Numbers, Stream])
def test_it_interrupts_a_wait_for_a_batch(kind: Any, workers: Any, tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    before = signal.signal(signal.SIGUSR1, _interrupt)
    try:
        with fl.DataLoader(kind(allowed), 4, num_workers=1, workers=workers) as loader:
            batches = iter(loader)
            next(batches)
            threading.Timer(0.3, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)).start()
            with pytest.raises(KeyboardInterrupt):
                list(batches)
            assert not allowed.exists()
            allowed.touch()
    finally:
        allowed.touch()
        signal.signal(signal.SIGUSR1, before)
