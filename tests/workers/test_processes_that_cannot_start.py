"""A killed worker in whose place no process can be started: an error that says so, and a loader that can go on."""

from __future__ import annotations

import errno
import os
import signal
from typing import Any, NoReturn

import pytest
from torch.utils.data import Dataset

import foreload as fl


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


def _refuse() -> NoReturn:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.mark.parametrize("persistent", [False, True])
def test_the_loop_gets_a_clear_error_and_the_next_epoch_its_samples(
    monkeypatch: pytest.MonkeyPatch, persistent: bool
) -> None:
    loader = fl.DataLoader(
        Numbers(),
        batch_size=4,
        num_workers=2,
        workers="processes",
        persistent_workers=persistent,
        multiprocessing_context="fork",
    )
    epoch: Any = iter(loader)
    assert next(epoch).tolist() == [0, 1, 2, 3]
    workers = epoch._workers
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", _refuse)
        os.kill(workers[0].pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(
                RuntimeError, match=r"killed by signal.*No other process can be started in its place"
            ):
                list(epoch)
    assert not any(worker.is_alive() for worker in workers)
    assert [value for batch in loader for value in batch.tolist()] == list(range(40))
    loader.close()
