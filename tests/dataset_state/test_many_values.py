"""Values are watched that are many, lie in odd places, or are made when they are first needed."""

from __future__ import annotations

import builtins
import contextvars
import functools
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload.dataset_state.copied import CopiedState

VARIABLE: contextvars.ContextVar[dict[str, int]] = contextvars.ContextVar("VARIABLE", default={"n": 0})


@functools.cache
def settings() -> dict[str, int]:
    return {"scale": 1}


@functools.lru_cache(maxsize=4)
def words(language: str) -> dict[str, int]:
    return {}


class Reads(Dataset[Any]):
    """A dataset of numbers with whatever attributes a test wants."""

    __scale__ = 1

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return settings()["scale"], words("en"), VARIABLE.get()["n"], SCALE  # type: ignore[name-defined] # noqa: F821


def _set(holder: Any, place: Any, value: Any) -> None:
    holder[place] = value


Record = dict[str, Any]
MANY: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "records": ([{"seen": 0, "box": [1, 2]} for _ in range(500)], lambda many: _set(many[480], "seen", 1)),
    "lists in records": (
        [{"seen": 0, "box": [1, 2]} for _ in range(500)],
        lambda many: many[480]["box"].append(3),
    ),
    "records by name": ({str(n): {"seen": 0} for n in range(500)}, lambda many: _set(many["480"], "seen", 1)),
    "a number in place of one that is equal": ([[1] for _ in range(500)], lambda many: _set(many[480], 0, True)),
    "objects": ([SimpleNamespace(seen=0) for _ in range(500)], lambda many: setattr(many[480], "seen", 1)),
    "arrays": ([np.zeros(3) for _ in range(500)], lambda many: _set(many[480], 1, 1)),
    "tensors": ([torch.zeros(3) for _ in range(500)], lambda many: many[480].data.add_(1)),
    "objects in an array": (
        np.array([SimpleNamespace(seen=0) for _ in range(500)], object),
        lambda many: setattr(many[480], "seen", 1),
    ),
    "lists in a table": (
        pandas.DataFrame({"seen": [[0] for _ in range(500)]}),
        lambda many: _set(many["seen"][480], 0, 1),
    ),
    "numbers": (list(range(200_000)), lambda many: _set(many, 123_457, 0)),
    "pairs": ([(str(n), n) for n in range(150_000)], lambda many: _set(many, 123_457, ("0", 0))),
    "numbers by name": ({str(n): n for n in range(150_000)}, lambda many: _set(many, "123457", 0)),
    "names": ({str(n) for n in range(150_000)}, lambda many: (many.remove("123457"), many.add("a"))),
    "an array of numbers": (np.zeros(1_000_003), lambda many: _set(many, 123_457, 1)),
    "an array of odd size": (np.zeros(1_000_003, np.uint8), lambda many: _set(many, 1_000_002, 1)),
    "a tensor of a dtype that NumPy lacks": (
        torch.ones(100_003, dtype=torch.bfloat16),
        lambda many: _set(many.data, 54_321, 2),
    ),
    "a record": (np.zeros(2, [("n", "i8")])[1], lambda many: _set(many, "n", 1)),
}


@pytest.fixture(autouse=True)
def scale(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(builtins, "SCALE", 1, raising=False)
    yield
    settings.cache_clear()
    words.cache_clear()


@pytest.mark.parametrize("name", MANY)
def test_a_change_far_inside_is_seen(name: str) -> None:
    many, change = MANY[name]
    dataset = Reads(many=many)
    state = CopiedState(dataset)
    assert state.untold is None
    assert state.changed() is None
    assert state.changed_by_loading() is None
    change(many)
    assert state.changed() is not None
    assert state.changed_by_loading() is not None


ELSEWHERE: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "what a function has kept": lambda patch: settings().update(scale=2),
    "what a function has kept of few": lambda patch: words("en").update(a=1),
    "what a context variable holds": lambda patch: patch.setitem(VARIABLE.get(), "n", 1),
    "a name that all modules have": lambda patch: patch.setattr(builtins, "SCALE", 2),
    "an attribute with underscores": lambda patch: patch.setattr(Reads, "__scale__", 2),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_change_elsewhere_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Reads()
    assert len(dataset[0]) == 4  # so that functions have kept what they return
    state = CopiedState(dataset)
    assert state.changed() is None
    ELSEWHERE[name](monkeypatch)
    assert state.changed() is not None


def test_too_many_objects_cannot_be_told_of() -> None:
    state = CopiedState(Reads(many=[SimpleNamespace() for _ in range(12_000)]))
    assert "more than 10,000 objects" in str(state.untold)


def test_a_function_may_keep_anything() -> None:
    """Also classes, dictionaries and nothing."""
    for keep in (functools.cache, functools.lru_cache(maxsize=8)):
        kept = keep(lambda value=None: {1: [{}], 2: dict, 3: {"a": {}}}.get(value))
        for value in (None, 1, 2, 3):
            kept(value)
        state = CopiedState(Reads(kept=kept))
        assert state.changed() is None
        kept(1)[0]["b"] = 1
        assert state.changed() is not None
        state = CopiedState(Reads(kept=kept))
        kept(3)["a"]["b"] = 1
        assert state.changed() is not None


WRITES: dict[str, Callable[[], Any]] = {
    "what samples print": lambda: print("loaded"),
    "what samples log": lambda: logging.getLogger("samples").warning("loaded"),
    "what samples warn of": lambda: warnings.warn("loaded", stacklevel=1),
}


class Counting(logging.Handler):
    """Counts what is logged."""

    seen = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.seen += 1


@pytest.mark.parametrize("name", WRITES)
def test_what_loading_writes_where_only_the_loop_has_it_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(logging.getLogger("samples"), "handlers", [Counting()])
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        state = CopiedState(Reads())
        assert state.changed_by_loading() is None
        WRITES[name]()
        assert state.changed() is None  # which the loop itself may do
        assert state.changed_by_loading() == name


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
    assert "by the sample that is the first" in why or "an epoch" in why


@pytest.mark.slow
def test_what_any_sample_makes_may_be_made_in_each_process() -> None:
    make = lambda index: torch.arange(5.0)
    batches, why = _chosen(Lazy(make))
    assert batches == list(TorchDataLoader(Lazy(make), batch_size=8, collate_fn=list))
    assert "is needed" not in why
    assert "is first needed" not in why


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
