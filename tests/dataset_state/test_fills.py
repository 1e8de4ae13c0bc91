"""Values that a dataset makes when they are first needed may be made by its copies if they are always the same."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.looks.fills import contents_of


class Reads:
    """A dataset with whatever attributes a test wants."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Lazy(Dataset[Any]):
    """Makes something when the first sample is loaded, which takes some time."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make, self.made = make, None

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Any:
        if self.made is None:
            self.made = self.make(index)
        torch.sin(torch.ones(200_000))
        return index, str(self.made) if isinstance(self.made, str) else float(torch.as_tensor(self.made).sum())


def _chosen(dataset: Any) -> tuple[list[Any], str]:
    loader = fl.DataLoader(dataset, batch_size=8, collate_fn=list)
    return list(loader), loader.stats()["workers"]["why"]


MADE_BY_THE_FIRST: dict[str, Callable[[int], Any]] = {
    "a tensor": lambda index: torch.full((2,), float(index)),
    "an array": lambda index: np.full(2, index),
    "a number of NumPy": np.float32,
    "a text": lambda index: f"first {index}",
    "a tuple": lambda index: (index, 0),
    "a list": lambda index: [index, 1],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE_BY_THE_FIRST)
def test_what_the_first_sample_makes_is_that_of_the_first_sample(name: str) -> None:
    make = MADE_BY_THE_FIRST[name]
    batches, why = _chosen(Lazy(make))
    assert batches == list(TorchDataLoader(Lazy(make), batch_size=8, collate_fn=list))
    assert "with the sample that is the first" in why or "an epoch" in why


@pytest.mark.slow
def test_what_any_sample_makes_may_be_made_in_each_process() -> None:
    make = lambda index: torch.arange(5.0)
    batches, why = _chosen(Lazy(make))
    assert batches == list(TorchDataLoader(Lazy(make), batch_size=8, collate_fn=list))
    assert "is needed" not in why
    assert "is first needed" not in why


UNKNOWN: dict[str, Callable[[], Any]] = {
    "a match": lambda: re.match("a", "a"),
    "an iterator": lambda: iter([1]),
    "a random generator": lambda: np.random.default_rng(0),
    "a function's frame": lambda: (each for each in [1]),
    "a hash within": lambda: [hashlib.sha256()],
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_nothing_is_known_of_is_like_nothing_else(name: str) -> None:
    make = UNKNOWN[name]
    one, other = contents_of([("made", make())]), contents_of([("made", make())])
    assert one != other


SAME: dict[str, Callable[[int], Any]] = {
    "a view of a dict": lambda number: MappingProxyType({"a": number}),
    "a view of bytes": lambda number: memoryview(bytes([number])),
    "a set": lambda number: {"a", "b", number},
    "objects in a set": lambda number: {SimpleHash(number), SimpleHash(7)},
    "a lock": lambda number: [threading.Lock(), number],
}


class SimpleHash:
    """An object without a text of its own."""

    def __init__(self, number: int) -> None:
        self.number = number


@pytest.mark.parametrize("name", SAME)
def test_what_is_made_is_compared_by_its_content(name: str) -> None:
    make = SAME[name]
    assert contents_of([("made", make(1))]) == contents_of([("made", make(1))])
    assert contents_of([("made", make(1))]) != contents_of([("made", make(2))])


def test_a_worker_may_not_make_what_it_cannot_watch() -> None:
    dataset = Reads(made=None)
    state = CopiedState(dataset)
    dataset.made = [SimpleNamespace() for _ in range(12_000)]
    fills = state.made()
    dataset = Reads(made=None)
    state = CopiedState(dataset, fills=fills)
    dataset.made = [SimpleNamespace() for _ in range(12_000)]
    assert "more than 10,000 objects" in str(state.changed_by_loading())


def test_a_worker_may_only_make_what_is_known() -> None:
    known = CopiedState(dataset := Reads(made=None))
    dataset.made = torch.arange(3)
    fills = known.made()
    for value, is_known in ((torch.arange(3), True), (torch.arange(1, 4), False), (3, False), (open, False)):
        dataset = Reads(made=None)
        state = CopiedState(dataset, fills=fills)
        dataset.made = value
        assert (state.changed_by_loading() is None) is is_known
    dataset = Reads(made=None)
    state = CopiedState(dataset, fills=fills)
    with open(__file__) as file:
        dataset.made = file
        assert state.changed_by_loading() is None
        dataset = Reads(made=None)
        state = CopiedState(dataset, fills=fills)
        dataset.made = os.getpid()  # which tells a process that it has to open files of its own
        assert state.changed_by_loading() is None
        dataset.made = None
        assert state.changed_by_loading() is not None
