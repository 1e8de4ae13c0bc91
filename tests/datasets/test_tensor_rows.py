"""Rows of tensors that are changed, replaced or read otherwise between two batches come as torch gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset

import foreload as fl
from foreload import _native
from foreload.datasets.tensor_rows import Rows

COUNT, BATCH = 12, 4


class Tagged(torch.Tensor):
    """A class of its own."""


def make() -> TensorDataset:
    return TensorDataset(torch.arange(5.0 * COUNT).reshape(COUNT, 5), torch.arange(COUNT))


def first(dataset: TensorDataset) -> torch.Tensor:
    tensor: torch.Tensor = dataset.tensors[0]
    return tensor


def replaced(dataset: TensorDataset, change: Callable[[torch.Tensor], Any]) -> None:
    dataset.tensors = (change(first(dataset)), *dataset.tensors[1:])


def data_of(dataset: TensorDataset, change: Callable[[torch.Tensor], Any]) -> None:
    first(dataset).data = change(first(dataset).data)


CHANGES: dict[str, Callable[[TensorDataset], Any]] = {
    "nothing": lambda dataset: None,
    "in place": lambda dataset: first(dataset).mul_(2),
    "other memory": lambda dataset: first(dataset).set_(torch.zeros(COUNT, 5)),
    "data": lambda dataset: data_of(dataset, lambda data: data + 1),
    "narrower, in the same memory": lambda dataset: data_of(dataset, lambda data: data[:, :3]),
    "a column, in the same memory": lambda dataset: data_of(dataset, lambda data: data[:, 0]),
    "other strides, in the same memory": lambda dataset: data_of(
        dataset, lambda data: data.as_strided((COUNT, 5), (1, COUNT))
    ),
    "of the same shape and strides, shifted": lambda dataset: data_of(
        dataset, lambda data: data.flatten()[1:-4].reshape(COUNT - 1, 5)[torch.arange(COUNT) % 11]
    ),
    "another dtype, in the same memory": lambda dataset: data_of(dataset, lambda data: data.view(torch.int32)),
    "bytes of half the width": lambda dataset: data_of(dataset, lambda data: data.view(torch.bfloat16)),
    "resized storage": lambda dataset: first(dataset).untyped_storage().resize_(1 << 20),
    "more rows": lambda dataset: first(dataset).resize_(COUNT + 1, 5),
    "a gradient": lambda dataset: first(dataset).requires_grad_(),
    "another tensor": lambda dataset: replaced(dataset, lambda tensor: tensor + 3),
    "an alias": lambda dataset: replaced(dataset, lambda tensor: tensor.view(COUNT, 5)),
    "a class of its own": lambda dataset: replaced(dataset, lambda tensor: tensor.as_subclass(Tagged)),
    "a parameter": lambda dataset: replaced(dataset, torch.nn.Parameter),
    "an array": lambda dataset: replaced(dataset, lambda tensor: tensor.numpy()),
    "conjugates": lambda dataset: replaced(dataset, lambda tensor: torch.complex(tensor, tensor).conj()),
    "sparse": lambda dataset: replaced(dataset, lambda tensor: tensor.to_sparse()),
    "a list of tensors": lambda dataset: setattr(dataset, "tensors", list(dataset.tensors)),
    "one more": lambda dataset: setattr(dataset, "tensors", (*dataset.tensors, torch.zeros(COUNT))),
    "one less": lambda dataset: setattr(dataset, "tensors", dataset.tensors[:1]),
}


def what_comes(kind: Any, change: Callable[[TensorDataset], Any]) -> list[Any]:
    """Return what comes before and after a change, or the class of the error."""
    dataset, come = make(), list[Any]()
    try:
        for number, batch in enumerate(kind(dataset, batch_size=BATCH, num_workers=0)):
            come.append(batch)
            if number == 0:
                change(dataset)
    except Exception as error:
        come.append(type(error))
    return come


def is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        alike = (type(one), one.dtype, one.shape, one.requires_grad, one.layout)
        is_alike = alike == (type(other), other.dtype, other.shape, other.requires_grad, other.layout)
        return is_alike and torch.equal(one.detach().to_dense(), other.detach().to_dense())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return bool(one == other)


@pytest.mark.parametrize("change", CHANGES)
def test_changes_between_batches_come_as_torch_gives_them(change: str) -> None:
    expected = what_comes(TorchDataLoader, CHANGES[change])
    come = what_comes(fl.DataLoader, CHANGES[change])
    assert is_equal(come, expected), (come, expected)


@pytest.mark.parametrize("change", CHANGES)
def test_the_native_look_tells_what_the_one_in_python_tells(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> bool:
        dataset = make()
        rows = Rows(dataset.tensors)
        assert rows.are_of(dataset.tensors)
        CHANGES[change](dataset)
        try:
            return rows.are_of(dataset.tensors)
        except AttributeError:  # what is no tensor has no such methods
            return False

    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        dataset = make()
        views = _native.TensorViews(torch.Tensor.__dlpack_c_exchange_api__, torch.Tensor, dataset.tensors)
        assert views.are_of(dataset.tensors)
        CHANGES[change](dataset)
        assert views.are_of(dataset.tensors) == (change in ("nothing", "in place", "an alias"))
    native = told()
    monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__", raising=False)  # as before torch 2.10
    assert told() == native


class Pairs(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.x, self.y = make().tensors

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="torch before 2.10")
@pytest.mark.parametrize("dataset", [make(), Pairs(), torch.arange(12.0)])
def test_rows_are_looked_at_natively(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_python(*_: Any) -> Any:
        raise AssertionError("a slower look")

    expected = list(TorchDataLoader(dataset, batch_size=5))
    loader = fl.DataLoader(dataset, batch_size=5, num_workers=0)
    assert is_equal(list(loader), expected)
    monkeypatch.setattr(torch.Tensor, "is_set_to", in_python)
    assert is_equal(list(loader), expected)
