"""Values are watched that are many, lie in odd places, or are made when they are first needed."""

from __future__ import annotations

import builtins
import contextvars
import datetime
import enum
import functools
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import Dataset

from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.kept import kept_values

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


def _within(number: int) -> list[Any]:
    own: list[Any] = [number]
    own.append(own)
    return own


class Point(NamedTuple):
    x: int
    y: int


class Colour(enum.Enum):
    red = 1


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
    "a column of an array": (np.zeros((50_000, 2))[:, 0], lambda many: _set(many, 12_347, 1)),
    "an array in Fortran's order": (np.asfortranarray(np.zeros((500, 50))), lambda many: _set(many, (7, 7), 1)),
    "a column of a tensor": (torch.zeros(50_000, 2).T[1].numpy(), lambda many: _set(many, 12_347, 1)),
    "a number of another type": ([1] * 30_000, lambda many: _set(many, 12_347, 1.0)),
    "an array of odd size": (np.zeros(1_000_003, np.uint8), lambda many: _set(many, 1_000_002, 1)),
    "a tensor of a dtype that NumPy lacks": (
        torch.ones(100_003, dtype=torch.bfloat16),
        lambda many: _set(many.data, 54_321, 2),
    ),
    "a list in one of many arrays of objects": (
        [np.array([{"n": n}, None], object) for n in range(100)],
        lambda many: many[80][0].update(n=1),
    ),
    "a list in place of one that is equal": (
        [{"part": [1]} for _ in range(100)],
        lambda many: _set(many[80], "part", many[81]["part"]),
    ),
    "names in place of others": (
        [{"a": 1, "b": 1} for _ in range(100)],
        lambda many: many[80].update(c=many[80].pop("a")),
    ),
    "a set among many": ([{1, 2} for _ in range(100)], lambda many: many[80].add(3)),
    "a list in a tuple among many": ([(n, [n]) for n in range(100)], lambda many: many[80][1].append(1)),
    "a list within itself": ([_within(n) for n in range(100)], lambda many: many[80].append(1)),
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


class Base:
    scale = 1


class Derived(Base):
    pass


NEW: dict[str, Callable[[Any, pytest.MonkeyPatch], Any]] = {
    "an attribute that hides that of a base": lambda dataset, patch: patch.setattr(Derived, "scale", 2),
    "an attribute of a base": lambda dataset, patch: patch.setattr(Base, "scale", 2),
    "a name that hides a builtin": lambda dataset, patch: patch.setitem(globals(), "len", lambda _: 3),
    "a new global variable": lambda dataset, patch: patch.setitem(globals(), "NEW_ONE", 3),
    "other attributes": lambda dataset, patch: setattr(dataset, "__dict__", {"kept": dataset.kept, "many": 2}),
    "what a library's function has given": lambda dataset, patch: dataset.kept('{"n": 0}').update(n=1),
    "a cache that was emptied": lambda dataset, patch: (dataset.kept.cache_clear(), dataset.kept('{"n": 0}')),
}


class Uses(Reads):
    """Uses what a change makes new."""

    def __getitem__(self, index: int) -> Any:
        try:
            return len([NEW_ONE])  # type: ignore[name-defined]
        except NameError:
            return Derived.scale


@pytest.mark.parametrize("name", NEW)
def test_what_is_new_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Uses(kept=functools.cache(json.loads), many=1)
    dataset.kept('{"n": 0}')
    state = CopiedState(dataset)
    assert state.changed() is None
    NEW[name](dataset, monkeypatch)
    assert state.changed() is not None


def test_looking_at_a_tensor_leaves_it_as_it_was() -> None:
    tensors = [torch.zeros(4), torch.zeros(4, dtype=torch.bfloat16)]
    state = CopiedState(Reads(tensors=tensors))
    assert state.changed() is None
    for tensor in tensors:
        tensor.resize_(10)
    assert state.changed() is not None
    torch.cat([torch.ones(20)], out=tensors[0])
    tensors[0].untyped_storage().resize_(0)
    assert state.changed() is not None


def test_a_container_that_all_records_share_is_looked_at_once() -> None:
    shared = list(range(10_000))
    many = [{"n": n, "names": shared, "pair": (shared, n)} for n in range(10_000)]
    state = CopiedState(Reads(many=many, pairs=[(tuple(shared), (n,)) for n in range(1_000)]))
    assert state.changed() is None
    shared[5_000] = -1
    assert state.changed() is not None


def test_too_many_objects_cannot_be_told_of() -> None:
    state = CopiedState(Reads(many=[SimpleNamespace() for _ in range(12_000)]))
    assert "more than 10,000 objects" in str(state.untold)


def test_what_nobody_can_change_may_be_many() -> None:
    many = [
        {"on": datetime.date(2020, 1, 1 + n % 28), "at": Path(str(n)), "is": Colour.red} for n in range(12_000)
    ]
    assert CopiedState(Reads(many=many, of=[np.float32(n) for n in range(12_000)])).untold is None


def test_looking_at_many_files_reads_none_of_them(tmp_path: Path) -> None:
    np.lib.format.open_memmap(tmp_path / "zeros.npy", "w+", np.uint8, (1 << 26,)).flush()
    many = [np.load(tmp_path / "zeros.npy", mmap_mode="r") for _ in range(80)]
    tracemalloc.start()
    try:
        state = CopiedState(Reads(many=many))
        assert state.changed() is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_a_function_that_has_kept_nothing_keeps_nothing() -> None:
    for keep in (functools.cache, functools.lru_cache(maxsize=8)):
        function = keep(lambda value: [value])
        assert kept_values(function) == []
        function(1), function("a")
        assert kept_values(function) == [[1], ["a"]]


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
