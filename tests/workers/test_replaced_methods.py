"""Methods and functions of torch's that somebody has replaced, as libraries do, are called as in stock torch."""

from __future__ import annotations

import collections.abc
import enum
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data._utils import collate as torch_collate

import foreload as fl
from foreload.datasets.prefetch import AsyncPrefetchDataset


def tensors() -> TensorDataset:
    return TensorDataset(torch.arange(8))


FORMS: dict[str, Callable[[], Any]] = {
    "tensors": tensors,
    "subset": lambda: Subset(tensors(), [1, 3, 5]),
    "nested subset": lambda: Subset(Subset(tensors(), [1, 3, 5]), [2, 0]),
    "concat": lambda: ConcatDataset([tensors(), tensors()]),
    "stack": lambda: StackDataset(tensors(), tensors()),
    "list": lambda: list(range(6)),
    "subset of a list": lambda: Subset(list(range(6)), [1, 3]),  # type: ignore[arg-type]
}


def same_as_stock(dataset: Any, **options: Any) -> None:
    expected = repr(list(TorchDataLoader(dataset, batch_size=2, **options)))
    for workers in ({}, {"num_workers": 0}, {"num_workers": 2}):
        assert repr(list(fl.DataLoader(dataset, batch_size=2, **workers, **options))) == expected


def other_item(self: Any, index: Any) -> Any:
    return torch.tensor(int(index) + 100)


def other_items(self: Any, indices: list[int]) -> Any:
    return [torch.tensor(index + 50) for index in indices]


@pytest.mark.sampled(14)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [TensorDataset, Subset, ConcatDataset, StackDataset])
@pytest.mark.parametrize("name", ["__getitem__", "__getitems__"])
def test_methods_of_torchs_datasets(form: str, kind: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other: Any = other_item if name == "__getitem__" else other_items
    monkeypatch.setattr(kind, name, other, raising=False)
    same_as_stock(FORMS[form]())


def test_methods_that_are_wrapped_in_the_name_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    own = TensorDataset.__getitem__

    def doubled(self: Any, index: Any) -> Any:
        return tuple(2 * part for part in own(self, index))

    doubled.__module__, doubled.__qualname__ = own.__module__, own.__qualname__  # as functools.wraps() does
    monkeypatch.setattr(TensorDataset, "__getitem__", doubled)
    same_as_stock(tensors())
    assert [batch[0].tolist() for batch in TorchDataLoader(AsyncPrefetchDataset(tensors()), 4)] == [
        [0, 2, 4, 6],
        [8, 10, 12, 14],
    ]


def test_a_method_of_one_dataset() -> None:
    dataset: Any = tensors()
    dataset.__getitems__ = lambda indices: [torch.tensor(-index) for index in indices]
    same_as_stock(dataset)
    same_as_stock(Subset(dataset, [1, 3, 5]))


def test_indexing_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    own = torch.Tensor.__getitem__
    monkeypatch.setattr(torch.Tensor, "__getitem__", lambda self, index: own(self, index) * 3)
    same_as_stock(tensors())
    same_as_stock(torch.arange(6))


class StackOneMore(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + 1 if getattr(func, "__name__", "") == "stack" else result


class DispatchOneMore(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + 1 if "stack" in str(func) else result


@pytest.mark.slow
@pytest.mark.parametrize("mode", [StackOneMore, DispatchOneMore])
@pytest.mark.parametrize("options", [{}, {"num_workers": 0}], ids=str)
def test_modes_of_torch_see_what_the_loops_thread_does(mode: Any, options: dict[str, Any]) -> None:
    with mode():
        expected = [batch[0].tolist() for batch in TorchDataLoader(tensors(), 4)]
        assert [batch[0].tolist() for batch in fl.DataLoader(tensors(), 4, **options)] == expected
        assert expected[0] == [1, 2, 3, 4]


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 2, "workers": "threads"}], ids=str)
@pytest.mark.parametrize("width", [1, 1 << 14])
def test_the_default_device_is_not_that_of_batches(options: dict[str, Any], width: int) -> None:
    rows = torch.arange(8 * width).view(8, width)
    sources: list[Any] = [TensorDataset(rows), list(rows), Subset(fl.CachedDataset((rows,)), range(8))]
    for dataset in sources:
        batches = iter(fl.DataLoader(dataset, batch_size=4, **options))
        torch.set_default_device("meta")  # after the seed of the epoch, which torch draws on the default device
        try:
            parts = [batch[0] if isinstance(batch, list) else batch for batch in batches]
        finally:
            torch.set_default_device(None)
        assert torch.equal(torch.cat(parts), rows)


@pytest.mark.parametrize("name", ["default_collate", "collate"])
def test_collation_as_a_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_collate, name, lambda batch, **_: ("mine", len(batch)))
    for make in FORMS.values():
        same_as_stock(make())


class Marked(torch.Tensor):
    """A tensor of a class of the user's."""


class Color(enum.Enum):
    red = 1


class Pair(NamedTuple):
    x: int
    y: int


SAMPLES: list[Any] = [
    *(make() for make in FORMS.values()),
    [(1, 2.0), (3, 4.0)],
    [{"a": 1}, {"a": 2}],
    ["a", "b"],
    [np.zeros(2), np.ones(2)],
    [np.float32(1), np.float32(2)],
    [True, False],
    [torch.zeros(2).as_subclass(Marked), torch.ones(2).as_subclass(Marked)],
    [Pair(1, 2), Pair(3, 4)],
    [Color.red, Color.red],
    StackDataset(a=torch.arange(4)),  # type: ignore[arg-type]
    [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.ones(2))],
]

KINDS: list[Any] = [
    tuple,
    list,
    dict,
    object,
    collections.abc.Sequence,
    collections.abc.Mapping,
    (tuple, list),
    np.float32,
    np.generic,
    bool,
    torch.nn.Parameter,
    Marked,
    Color,
    Pair,
]


def tell(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return "told", len(batch), type(batch[0]).__name__


def outcome(loader: Any) -> str:
    try:
        return re.sub(r"grad_fn=<\w+>", "", repr(list(loader)))
    except Exception as error:
        return type(error).__name__


@pytest.mark.sampled(7)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("first", [False, True])
def test_functions_that_are_added_for_types(kind: Any, first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    added = {kind: tell}
    functions = torch_collate.default_collate_fn_map
    monkeypatch.setattr(torch_collate, "default_collate_fn_map", added | functions if first else functions | added)
    for dataset in SAMPLES:
        expected = outcome(TorchDataLoader(dataset, batch_size=2))
        assert outcome(fl.DataLoader(dataset, batch_size=2)) == expected
        assert outcome(fl.DataLoader(dataset, batch_size=2, num_workers=0)) == expected


def test_functions_that_are_added_run_in_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = [torch.zeros(2).as_subclass(Marked) for _ in range(4)]
    monkeypatch.setitem(torch_collate.default_collate_fn_map, Marked, tell)
    loader = fl.DataLoader(dataset, batch_size=2, num_workers=2)  # type: ignore[arg-type]
    assert list(loader) == [("told", 2, "Marked")] * 2
    assert loader.stats()["workers"]["kind"] == "processes"
    native = fl.DataLoader(tensors(), batch_size=2, num_workers=2)  # calls no such function
    list(native)
    assert native.stats()["workers"]["kind"] == "threads"


class Plain(Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index).as_subclass(Marked)


def draw(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return torch.rand(())


def test_functions_that_are_added_draw_keyed_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch_collate.default_collate_fn_map, Marked, draw)
    found = [
        [float(batch) for batch in fl.DataLoader(Plain(), batch_size=2, seed=1, **options)]
        for options in ({"num_workers": 0}, {"num_workers": 1}, {"num_workers": 2, "workers": "threads"})
    ]
    assert found[0] == found[1] == found[2]
