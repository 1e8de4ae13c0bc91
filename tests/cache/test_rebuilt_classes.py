"""Datasets of OPTCache whose class, or whose instances, are made in unusual ways: each gets its own samples."""

from __future__ import annotations

import copy
import gc
import inspect
import multiprocessing
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import pytest
import torch
from torch.utils.data import Dataset, RandomSampler

import foreload as fl

N = 8
T = TypeVar("T")


@pytest.fixture(autouse=True)
def future() -> fl.OPTInit:
    """A future, with which the caches of all methods begin anew."""
    return fl.OPTInit(RandomSampler, torch.Generator().manual_seed(0), N)


class Rows(Dataset[Any]):
    """Counts its calls."""

    rows: Any

    def __len__(self) -> int:
        return N

    @fl.OPTCache()
    def __getitem__(self, index: int) -> Any:
        type(self).calls += 1
        return self.rows[index]

    calls = 0


class Plain(Rows):
    def __init__(self, rows: Any) -> None:
        self.rows = rows


class WithoutInit(Plain):
    def __init__(self, rows: Any) -> None:
        self.rows = rows


@dataclass
class Data(Dataset[Any]):
    rows: list[int]
    scale: int = 1

    def __len__(self) -> int:
        return N

    @fl.OPTCache()
    def __getitem__(self, index: int) -> int:
        return self.rows[index] * self.scale


@dataclass(slots=True)
class Slotted(Dataset[Any]):
    rows: list[int]
    scale: int = 1

    def __len__(self) -> int:
        return N

    @fl.OPTCache()
    def __getitem__(self, index: int) -> int:
        return self.rows[index] * self.scale


@dataclass(frozen=True, slots=True)
class Frozen(Dataset[Any]):
    rows: tuple[int, ...]
    scale: int = 1

    @fl.OPTCache()
    def __getitem__(self, index: int) -> int:
        return self.rows[index] * self.scale


class Bare:
    """Has no room for weak references, so that its instances cannot be told apart."""

    __slots__ = ("rows",)

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    @fl.OPTCache()
    def __getitem__(self, index: int) -> int:
        return self.rows[index]


class Typed(Dataset[Any], Generic[T]):
    def __init__(self, rows: list[T]) -> None:
        self.rows = rows

    @fl.OPTCache()
    def __getitem__(self, index: int) -> T:
        return self.rows[index]


def rebuilt(kind: type) -> type:
    """The class, made again of its attributes, as attrs and others do."""
    own = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return type(kind.__name__, kind.__bases__, own)


KINDS: dict[str, Callable[[list[int]], Any]] = {
    "class": Plain,
    "no super().__init__": WithoutInit,
    "dataclass": Data,
    "slots": Slotted,
    "frozen": lambda rows: Frozen(tuple(rows)),
    "bare": Bare,
    "generic": lambda rows: Typed[int](rows),
    "rebuilt": rebuilt(Plain),
    "rebuilt generic": rebuilt(Typed),
    "a copy": lambda rows: replaced(copy.copy(Plain([])), rows),
    "a deep copy": lambda rows: replaced(copy.deepcopy(Plain([])), rows),
    "unpickled": lambda rows: replaced(pickle.loads(pickle.dumps(Plain([]))), rows),
    "without __init__": lambda rows: replaced(Plain.__new__(Plain), rows),
    "without __new__": lambda rows: replaced(object.__new__(Plain), rows),
}


def replaced(dataset: Any, rows: list[int]) -> Any:
    dataset.rows = rows
    return dataset


@pytest.mark.parametrize("kind", KINDS)
def test_one_after_another_each_gets_its_own_rows(kind: str) -> None:
    for fold in range(20):
        dataset = KINDS[kind]([fold * 100 + row for row in range(N)])
        for _ in range(2):
            assert [dataset[index] for index in range(N)] == [fold * 100 + row for row in range(N)]
        del dataset  # its address is free for the next one


@pytest.mark.parametrize("kind", KINDS)
def test_two_in_turns_get_their_own_rows(kind: str) -> None:
    one, other = KINDS[kind](list(range(N))), KINDS[kind](list(range(100, 100 + N)))
    for _ in range(2):
        assert [(one[index], other[index]) for index in range(N)] == [(row, 100 + row) for row in range(N)]


def test_folds_that_are_copies_get_their_own_rows() -> None:
    base = Plain([])
    for fold in range(20):
        part = copy.deepcopy(base)
        part.rows = [fold] * N
        assert [part[index] for index in range(N)] == [fold] * N
        del part
        gc.collect()


@pytest.mark.parametrize("kind", [Data, Slotted, WithoutInit])
def test_they_are_cached(kind: Any) -> None:
    dataset = kind(list(range(N)))
    for _ in range(2):
        assert [dataset[index] for index in range(N)] == list(range(N))
    method = inspect.getattr_static(Rows if kind is WithoutInit else kind, "__getitem__")
    assert method.stats()["hits"] == N


def first_rows(dataset: Any, out: Any) -> None:
    out.put([dataset[index] for index in range(3)])


@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [Data, Slotted])
def test_workers_share_the_cache_of_a_dataclass(kind: Any, method: str) -> None:
    dataset = kind([5, 6, 7, 8], 2)
    context: Any = multiprocessing.get_context(method)
    out = context.Queue()
    process = context.Process(target=first_rows, args=(dataset, out))
    process.start()
    assert out.get(timeout=300) == [10, 12, 14]
    process.join(300)
    stats = inspect.getattr_static(kind, "__getitem__").stats
    assert stats()["misses"] == 3
    assert [dataset[index] for index in range(4)] == [10, 12, 14, 16]
    assert (stats()["hits"], stats()["misses"]) == (3, 4)


def test_classes_stay_what_they_were() -> None:
    assert str(inspect.signature(Data)) == "(rows: 'list[int]', scale: 'int' = 1) -> None"
    assert str(inspect.signature(Slotted)) == str(inspect.signature(Data))
    assert list(inspect.signature(Plain).parameters) == ["rows"]

    class Nothing:
        @fl.OPTCache()
        def __getitem__(self, index: int) -> int:
            return index

    assert str(inspect.signature(Nothing)) == "()"
    assert Nothing()[3] == 3
    for wrong in (lambda: Nothing(1), lambda: Nothing(a=1)):  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"Nothing\(\) takes no arguments"):
            wrong()


def test_other_bases_keep_their_new() -> None:
    made = []

    class Noted:
        def __new__(cls, *args: Any) -> Any:
            made.append(cls)
            return super().__new__(cls)

    class Both(Plain, Noted):
        registered: ClassVar[list[type]] = []

        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            Both.registered.append(cls)

    class One(Both):
        only: Any = None

        def __new__(cls, *args: Any) -> Any:
            if cls.only is None:
                cls.only = super().__new__(cls)
            return cls.only

        @fl.OPTCache()
        def __getitem__(self, index: int) -> Any:
            return self.rows[index]

    assert Both([1]).rows == [1]
    assert One([1, 2]) is One([3, 4])
    assert made == [Both, One]
    assert Both.registered == [One]
    assert One.only[0] == 3
    assert One([7])[0] == 3  # the same object, which is cached
