"""A persistent worker that is killed between two epochs: its dataset's state goes on in the one in its place."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import foreload as fl


class Counting(Dataset[Any]):
    """Counts the samples that its copy has loaded."""

    def __init__(self) -> None:
        self.loaded = 0

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.loaded += 1
        return index, self.loaded

    def state_dict(self) -> dict[str, int]:
        return {"loaded": self.loaded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded = state["loaded"]


class Passes(IterableDataset[Any]):
    """Yields the number of the pass over its copy with each of a worker's numbers."""

    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        self.number += 1
        yield from ((self.number, value) for value in range(info.id, 40, info.num_workers))

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def _epochs(dataset: Any, batches: int, every: int, *, kills: bool) -> list[Any]:
    """Return some batches of each of three epochs, between which the workers are killed."""
    loader = fl.DataLoader(
        dataset,
        batch_size=4,
        num_workers=2,
        workers="processes",
        persistent_workers=True,
        max_restarts=100,
        snapshot_every_n_steps=every,
    )
    got = []
    for _ in range(3):
        epoch: Any = iter(loader)
        got.append([[values.tolist() for values in next(epoch)] for _ in range(batches)])
        if batches == 10:
            assert next(epoch, None) is None
        for worker in epoch._workers if kills else ():
            os.kill(worker.pid, signal.SIGKILL)
        epoch.close()
        del epoch
    assert len(loader.restarts) == (4 if kills else 0)
    loader.close()
    return got


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(("dataset", "batches"), [(Counting, 10), (Counting, 3), (Passes, 10)])
def test_the_state_of_its_dataset_goes_on(dataset: Any, batches: int, every: int) -> None:
    expected = _epochs(dataset(), batches, every, kills=False)
    assert _epochs(dataset(), batches, every, kills=True) == expected


def _after_left_epochs(dataset: Any, *, resumed: bool, kills: bool) -> list[Any]:
    """Return the batches of an epoch before which others were begun and left at once, with the workers killed."""

    def make() -> Any:
        return fl.DataLoader(
            dataset(),
            batch_size=4,
            num_workers=2,
            workers="processes",
            persistent_workers=True,
            prefetch_factor=1,
            max_restarts=100,
        )

    loader = make()
    got = [[values.tolist() for values in batch] for batch in loader]
    if resumed:
        state = loader.state_dict()
        loader.close()
        loader = make()
        loader.load_state_dict(state)
    for _ in range(2):
        epoch: Any = iter(loader)
    for worker in epoch._workers if kills else ():
        os.kill(worker.pid, signal.SIGKILL)
    got += [[values.tolist() for values in batch] for batch in loader]
    assert len(loader.restarts) == (2 if kills else 0)
    loader.close()
    return got


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("dataset", [Counting, Passes])
def test_so_it_does_through_epochs_that_were_left_at_once(dataset: Any, resumed: bool) -> None:
    expected = _after_left_epochs(dataset, resumed=resumed, kills=False)
    assert _after_left_epochs(dataset, resumed=resumed, kills=True) == expected


@pytest.mark.parametrize("dataset", [Counting, Passes])
def test_so_it_does_if_an_epoch_ends_because_no_more_workers_may_be_replaced(dataset: Any) -> None:
    expected = _epochs(dataset(), 10, 1, kills=False)[:2]
    loader = fl.DataLoader(
        dataset(), batch_size=4, num_workers=2, workers="processes", persistent_workers=True, max_restarts=0
    )
    got = [[[values.tolist() for values in batch] for batch in loader]]
    for worker in loader._iterator._workers:
        os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="is killed by signal"):
        list(loader)
    got.append([[values.tolist() for values in batch] for batch in loader])
    loader.close()
    assert got == expected
