"""A state that is taken while the loop is about to get a batch, by another thread or a signal's handler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import foreload as fl
from foreload.order.resume import Given

_when_taken: list[Callable[[], object]] = []  # what the loop's process does when it takes a batch from a worker


def _taken(batch: Any) -> Any:
    for act in _when_taken:
        act()
    return batch


class Taken:
    """A batch whose way to the loop can be looked into."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __reduce__(self) -> Any:
        return _taken, (self.batch,)


class Counting(Dataset[Any]):
    """Counts the samples that its copy has loaded."""

    def __init__(self) -> None:
        self.loaded = 0

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.loaded += 1
        return index, self.loaded

    def state_dict(self) -> dict[str, int]:
        return {"loaded": self.loaded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded = state["loaded"]


class Numbers(IterableDataset[Any]):
    """Knows which of a worker's numbers comes next."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        while self.next < 12:
            self.next += 1
            yield info.id, self.next
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


def _loader(dataset: Any, every: int, workers: int = 2) -> Any:
    how: dict[str, Any] = {"workers": "processes", "collate_fn": Taken} if workers else {}
    return fl.DataLoader(dataset, batch_size=3, num_workers=workers, snapshot_every_n_steps=every, **how)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("is_other", [False, True], ids=["same thread", "other thread"])
@pytest.mark.parametrize("dataset", [Counting, Numbers])
def test_it_is_that_of_before_the_batch(dataset: Any, is_other: bool, every: int) -> None:
    loader, states = _loader(dataset(), every), []

    def save() -> None:
        states.append(loader.state_dict())

    def save_elsewhere() -> None:
        thread = threading.Thread(target=save)
        thread.start()
        thread.join()

    epoch = iter(loader)
    expected = [next(epoch) for _ in range(3)]
    _when_taken.append(save_elsewhere if is_other else save)
    try:
        expected += [*epoch]
    finally:
        _when_taken.clear()
    assert len(expected) == 8
    for begin, state in enumerate(states, start=3):
        again = _loader(dataset(), every)
        again.load_state_dict(state)
        assert [*again] == expected[begin:]


def test_that_of_a_dataset_that_the_other_thread_loads_from_is_that_of_after_the_batch() -> None:
    states: list[Any] = []

    class Saved(Counting):
        def __getitem__(self, index: int) -> tuple[int, int]:
            sample = super().__getitem__(index)
            if index == 10:
                thread.start()
                thread.join(0.2)
            return sample

    loader = _loader(Saved(), 1, workers=0)
    thread = threading.Thread(target=lambda: states.append(loader.state_dict()))
    for number, _ in enumerate(loader):
        if number == 3:
            thread.join()
            assert states == [loader.state_dict()]


@pytest.mark.parametrize("dataset", [Counting, Numbers])
def test_that_of_a_signals_handler_is_of_before_the_batch_or_after_it(
    dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, states, add = _loader(dataset(), 1), [], Given.add

    def add_between_states(self: Given, batch: int) -> None:
        states.append(loader.state_dict())
        add(self, batch)
        states.append(loader.state_dict())

    epoch = iter(loader)
    expected = [next(epoch) for _ in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr(Given, "add", add_between_states)
        expected.append(next(epoch))
    expected += epoch
    assert len(expected) == 8
    for begin, state in zip((3, 4), states, strict=True):
        again = _loader(dataset(), 1)
        again.load_state_dict(state)
        assert [*again] == expected[begin:]
