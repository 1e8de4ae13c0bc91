"""``stats()["epoch"]``: which epoch, how many of its batches are over, and how many it has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, Sampler

import foreload as fl
from foreload.device.ahead import MovedAhead
from tests.fake_device import FakeDevice


def epoch(loader: Any) -> dict[str, Any]:
    found = loader.stats()["epoch"]
    assert found is not None
    assert found.pop("seconds") >= 0
    return dict(found)


def facts(number: int, batches: int, length: int | None, expected: int | None, running: bool) -> dict[str, Any]:
    return {"number": number, "batches": batches, "length": length, "expected": expected, "running": running}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2, "workers": "threads"}])
@pytest.mark.parametrize("drop_last", [False, True])
def test_it_counts_the_batches_that_the_loop_has(workers: dict[str, Any], drop_last: bool) -> None:
    loader: Any = fl.DataLoader(list(range(21)), batch_size=4, shuffle=True, drop_last=drop_last, **workers)
    assert loader.stats()["epoch"] is None
    length = len(loader)
    batches = iter(loader)
    assert epoch(loader) == facts(0, 0, length, None, True)
    for number, _ in enumerate(batches, start=1):
        assert epoch(loader) == facts(0, number, length, None, True)
    assert epoch(loader) == facts(0, length, length, None, False)
    for _ in loader:
        break
    assert epoch(loader)["batches"] == 1
    assert epoch(loader) == facts(1, 1, length, length, False)  # it was left


def test_a_resumed_epoch_is_as_far_as_it_was() -> None:
    loader: Any = fl.DataLoader(list(range(100)), batch_size=10, shuffle=True, seed=0, num_workers=0)
    loader.set_epoch(3)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    for size, over, length in ((10, 4, 10), (20, 2, 5), (7, 6, 15)):
        other: Any = fl.DataLoader(list(range(100)), batch_size=size, shuffle=True, seed=0, num_workers=0)
        other.load_state_dict(loader.state_dict())
        rest = iter(other)
        assert epoch(other) == facts(3, over, length, None, True)
        next(rest)
        assert epoch(other)["batches"] == over + 1
        list(rest)
        assert epoch(other) == facts(3, length, length, None, False)


def test_what_is_skipped_is_over() -> None:
    skip = fl.Skip(steps=range(2, 5))
    loader: Any = fl.DataLoader(list(range(40)), batch_size=4, skip=skip, num_workers=0)
    assert len(loader) == 10
    assert len(list(loader)) == 7
    assert epoch(loader)["batches"] == 10


class Own(Sampler[int]):
    """A sampler whose length must not be asked for."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(12))

    def __len__(self) -> int:
        raise AssertionError("nobody needs the length")


def test_the_users_own_sampler_is_not_asked_for_its_length() -> None:
    loader: Any = fl.DataLoader(list(range(12)), batch_size=4, sampler=Own(), num_workers=0)
    for _ in loader:
        assert epoch(loader)["length"] is None
    assert epoch(loader) == facts(0, 3, None, None, False)
    for _ in loader:
        assert epoch(loader)["expected"] == 3  # as many as before, most likely
    assert epoch(loader) == facts(1, 3, None, 3, False)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))

    def __len__(self) -> int:
        return 10


def test_the_length_of_a_stream_is_known_once_somebody_has_asked_for_it() -> None:
    loader: Any = fl.DataLoader(Stream(), batch_size=4, num_workers=0)
    list(loader)
    assert epoch(loader) == facts(0, 3, None, None, False)
    assert len(loader) == 3
    list(loader)
    assert epoch(loader) == facts(1, 3, 3, 3, False)


def test_batches_that_are_copied_ahead_are_not_over() -> None:
    loader: Any = fl.DataLoader(list(range(12)), batch_size=4, num_workers=0)
    for _ in range(2):
        counts = [epoch(loader)["batches"] for _ in MovedAhead(iter(loader), FakeDevice())]
        assert counts == [1, 2, 3]


@pytest.mark.slow
def test_it_can_be_asked_from_another_thread_at_any_time() -> None:
    loader: Any = fl.DataLoader(
        torch.utils.data.TensorDataset(torch.arange(20000)), batch_size=4, num_workers=2, workers="threads",
        in_order=False,
    )  # fmt: skip
    over, wrong = threading.Event(), []

    def ask() -> None:
        last = 0
        while not over.is_set():
            found = loader.stats()["epoch"]
            if found is not None and not last <= found["batches"] <= 5000:
                wrong.append((last, found))
            last = 0 if found is None else found["batches"]

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        list(loader)
    finally:
        over.set()
        asking.join()
    assert not wrong
    assert epoch(loader)["batches"] == 5000
