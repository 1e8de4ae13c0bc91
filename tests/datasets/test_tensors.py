"""Tensors in memory: datasets of their rows, in our loader and in torch's."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler, TensorDataset
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl

X = torch.arange(60.0).view(20, 3)
Y = torch.arange(20)
FORMS: dict[str, Any] = {
    "tensor": X,
    "array": X.numpy(),
    "tuple": (X, Y),
    "list": [*X],
    "dict": {"x": X, "y": Y},
    "strided": X.T.contiguous().T,
    "float16": X.half(),
    "bfloat16": X.bfloat16(),
}


class Reference(torch.utils.data.Dataset[Any]):
    """The same samples, by plain Python."""

    def __init__(self, form: str) -> None:
        self.data = FORMS[form]

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        data = self.data
        if isinstance(data, dict):
            return {name: field[index] for name, field in data.items()}
        return tuple(field[index] for field in data) if isinstance(data, tuple) else data[index]


def flat(batch: Any) -> tuple[Any, list[Any]]:
    """The type of a batch, and its values."""
    if isinstance(batch, dict):
        return dict, [(name, value.dtype, value.tolist()) for name, value in batch.items()]
    if isinstance(batch, list):
        return list, [(value.dtype, value.tolist()) for value in batch]
    return type(batch), [(batch.dtype, batch.tolist())]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("batch_size", [1, 6, None])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_batches_are_those_of_torch(form: str, batch_size: int | None) -> None:
    arguments: Any = {"batch_size": batch_size, "shuffle": True}
    torch.manual_seed(5)
    expected = [flat(batch) for batch in TorchDataLoader(Reference(form), **arguments)]
    data = fl.CachedDataset(FORMS[form])
    for cls, more in (
        (TorchDataLoader, {}),
        (TorchDataLoader, {"num_workers": 2}),
        (fl.DataLoader, {}),
        (fl.DataLoader, {"num_workers": 0}),
        (fl.DataLoader, {"num_workers": 2}),
    ):
        torch.manual_seed(5)
        assert [flat(batch) for batch in cls(data, **arguments, **more)] == expected


def test_a_tensor_dataset_is_gathered_natively() -> None:
    torch.manual_seed(5)
    expected = [flat(batch) for batch in TorchDataLoader(TensorDataset(X, Y), batch_size=6, shuffle=True)]
    torch.manual_seed(5)
    assert [flat(b) for b in fl.DataLoader(TensorDataset(X, Y), batch_size=6, shuffle=True)] == expected
    graph = TensorDataset(X.clone().requires_grad_())
    assert next(iter(fl.DataLoader(graph, batch_size=4)))[0].requires_grad


PLAIN = {
    "rows": X,
    "scalars": Y,
    "bool": X > 0,
    "complex": torch.complex(X, X),
    "complex, conjugate": torch.complex(X, X).conj(),
    "bfloat16": X.bfloat16(),
    "strided": X.T.contiguous().T,
    "no bytes": torch.zeros(20, 0),
    "column of a row": X[0].clone()[None].T,
    "one strided row": X[:, 0][:1],
    "graph": X.clone().requires_grad_(),
}


@pytest.mark.parametrize("form", sorted(PLAIN))
@pytest.mark.parametrize("arguments", [{}, {"num_workers": 0}, {"num_workers": 2}, {"on_error": "skip"}])
def test_a_tensor_is_a_dataset_of_its_rows(form: str, arguments: dict[str, Any]) -> None:
    data: Any = PLAIN[form]
    torch.manual_seed(5)
    expected = list(TorchDataLoader(data, batch_size=6, shuffle=True))
    torch.manual_seed(5)
    got = list(fl.DataLoader(data, batch_size=6, shuffle=True, **arguments))
    assert [flat(batch.detach()) for batch in got] == [flat(batch.detach()) for batch in expected]
    assert [batch.requires_grad for batch in got] == [batch.requires_grad for batch in expected]


def test_a_tensor_can_be_cached() -> None:
    data: Any = X
    loader = fl.DataLoader(data, batch_size=4, shuffle=True, cache="1MiB")
    assert [len(list(loader)) for _ in range(2)] == [5, 5]
    cache = loader.stats()["cache"]
    assert cache is not None
    assert cache["hits"] == cache["misses"] == len(X)
    assert loader.num_workers == 0


def test_a_tensor_that_changes_gives_what_it_holds() -> None:
    data: Any = torch.arange(8.0)
    batches = iter(fl.DataLoader(data, batch_size=4, num_workers=0))
    assert next(batches).tolist() == [0, 1, 2, 3]
    data.add_(10)
    assert next(batches).tolist() == [14, 15, 16, 17]
    batches = iter(fl.DataLoader(data, batch_size=4, num_workers=0))
    next(batches)
    data.set_(torch.zeros(8))
    assert next(batches).tolist() == [0, 0, 0, 0]
    with pytest.raises(IndexError, match="8"):
        list(fl.DataLoader(data, sampler=[8], num_workers=0))


def test_samples_are_views_and_a_custom_collate_sees_ordinary_ones() -> None:
    data = fl.CachedDataset((X, Y), share=False)
    x, y = data[-1]
    assert x.tolist() == [57, 58, 59]
    assert y == 19
    x += 1
    assert data[19][0].tolist() == [58, 59, 60]
    x -= 1
    with pytest.raises(IndexError):
        data[20]

    def collate(samples: Any) -> Any:
        assert len(samples) in (2, 3)
        assert all(isinstance(sample, tuple) for sample in samples)
        assert samples[-1][1] == samples[len(samples) - 1][1]
        assert type(samples[0][0] * 2) is torch.Tensor
        return torch.stack([x for x, _ in samples])

    for cls in (TorchDataLoader, fl.DataLoader):
        (first, *_) = cls(data, batch_size=3, collate_fn=collate)
        assert torch.equal(first, X[:3])
    singles = fl.CachedDataset(X)
    plain = TorchDataLoader(
        singles, batch_size=2, collate_fn=lambda samples: torch.utils.data.default_collate(list(samples))
    )
    assert torch.equal(next(iter(plain)), X[:2])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_sampler_may_be_the_sampler(num_workers: int) -> None:
    rows = TensorDataset(X, Y)
    sampler: Any = BatchSampler(SequentialSampler(rows), 6, False)
    options: Any = {"sampler": sampler, "batch_size": None, "num_workers": num_workers}
    expected = [
        [part.tolist() for part in batch] for batch in TorchDataLoader(rows, sampler=sampler, batch_size=None)
    ]
    for make in (fl.DataLoader, TorchDataLoader):
        assert [[part.tolist() for part in batch] for batch in make(fl.CachedDataset(rows), **options)] == expected


@pytest.mark.parametrize(
    "index",
    [[1, -1], [], [True] + 19 * [False], torch.tensor([3, 3]), np.array([4, 5]), Y > 7, slice(2, 9, 3)],
    ids=str,
)
def test_several_samples_are_indexed_as_those_of_a_tensor_dataset(index: Any) -> None:
    expected = TensorDataset(X, Y)[index]
    found = fl.CachedDataset((X, Y))[index]
    assert [part.tolist() for part in found] == [part.tolist() for part in expected]
    assert type(found) is type(expected)


def test_a_map_style_dataset_is_preloaded() -> None:
    data = fl.CachedDataset(Reference("tuple"))
    assert len(data) == 20
    assert torch.equal(data[4][0], X[4])


def test_a_list_of_samples_is_a_dataset() -> None:
    for samples in ([(X[i], Y[i]) for i in range(len(X))], [{"x": X[i]} for i in range(len(X))]):
        data = fl.CachedDataset(samples)
        assert len(data) == len(X)
        assert torch.equal(next(iter(data[3].values() if isinstance(data[3], dict) else data[3])), X[3])


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ((X, Y[:5]), ValueError, "one row per sample"),
        ((), ValueError, "empty"),
        ({}, ValueError, "empty"),
        (torch.tensor(1), ValueError, "one row per sample"),
        (["a"], TypeError, r"data\[0\]"),
        (5, TypeError, "data must be"),
        (X.to_sparse(), ValueError, r"data is of the layout torch.sparse_coo; give data.to_dense\(\)"),
        (
            (X, X.to("meta")),
            ValueError,
            r"data\[1\] is on the meta device, .*; give data\[1\] as it is on the CPU",
        ),
    ],
    ids=["ragged", "no fields", "no names", "scalar", "text", "number", "sparse", "meta"],
)
def test_wrong_data_is_named(data: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        fl.CachedDataset(data)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:The PyTorch API of nested tensors")
def test_tensors_without_rows_of_plain_numbers_are_named() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(2), 1, 0, torch.qint8)
    with pytest.raises(ValueError, match=r"data\['q'\] is quantized; give data\['q'\].dequantize\(\)"):
        fl.CachedDataset({"q": quantized})
    with pytest.raises(ValueError, match="data is a nested tensor; pad it"):
        fl.CachedDataset(torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]))


@pytest.mark.parametrize("kind", [">f4", ">i8", ">u2", ">c16", "<f8"])
@pytest.mark.parametrize("form", [lambda data: data, lambda data: (data, data[::-1]), lambda data: {"x": data}])
def test_arrays_of_any_byte_order_are_their_values(form: Any, kind: str) -> None:
    values = np.arange(40).reshape(20, 2)[::2].astype(kind)  # not contiguous
    data = form(values)
    (batch,) = fl.DataLoader(fl.CachedDataset(data), batch_size=10)
    first = batch["x"] if isinstance(data, dict) else batch[0] if isinstance(data, tuple) else batch
    assert np.array_equal(first.numpy(), values)
    assert first.numpy().dtype == values.dtype.newbyteorder("=")
    assert np.array_equal(fl.gather(np.ascontiguousarray(values), [3, 0]).numpy(), values[[3, 0]])


RECORDS = np.zeros(3, [("x", "f4"), ("y", ">i8")])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (np.ma.masked_equal([1, 2, 3], 2), r"data is a masked array.* give data\.filled\(\.\.\.\)"),
        ({"x": np.ma.array([1, 2])}, r"data\['x'\] is a masked array"),
        (
            np.array(["2026-01-01"], "M8[D]"),
            r"dtype datetime64\[D\], which torch does not have; .*astype\(np\.int64\)",
        ),
        ((np.arange(1), np.array([5], "m8[s]")), r"data\[1\] has the dtype timedelta64\[s\]"),
        (RECORDS, r"data has the dtype .*; give a dict of its fields"),
        (np.array(["a"]), r"data has the dtype <U1, which torch does not have; convert it to numbers"),
        (np.array([None]), r"data has the dtype object"),
    ],
)
def test_arrays_that_are_no_tensors_are_named(data: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        fl.CachedDataset(data)


@pytest.mark.parametrize("data", [np.array(5), np.float64(5), torch.tensor(5), (np.arange(2), np.array(5))])
def test_a_scalar_has_no_samples(data: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"one row per sample|data must be a tensor"):
        fl.CachedDataset(data)


def test_a_tensor_that_a_dataset_no_longer_has_is_freed() -> None:
    array = np.zeros((64, 100), np.float32)
    memory = weakref.ref(array)  # which the tensor's storage holds
    dataset = TensorDataset(torch.from_numpy(array), torch.arange(64))
    del array
    loader = fl.DataLoader(dataset, batch_size=8)
    for _ in range(2):
        assert len(list(loader)) == 8
    assert memory() is not None
    dataset.tensors = (torch.ones(64, 3), dataset.tensors[1])
    assert memory() is None
    assert all(torch.equal(batch, torch.ones(8, 3)) for batch, _ in loader)


@pytest.mark.parametrize("name", ["pin", "share", "move"])
def test_switches_are_true_or_false(name: str) -> None:
    switches: dict[str, Any] = {name: "no"}
    with pytest.raises(TypeError, match=f"{name} must be True or False, got 'no'"):
        fl.CachedDataset(torch.arange(3), **switches)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64, torch.bfloat16, torch.uint16])
def test_a_batch_of_one_is_a_copy_of_its_row(dtype: torch.dtype) -> None:
    rows = torch.arange(12).view(4, 3).to(dtype)
    data = fl.CachedDataset((rows, torch.arange(4)))
    for index in (0, 3, -1, -4):
        batch, targets = torch.utils.data.default_collate(data.__getitems__([index]))
        assert (batch == rows[index : index + 1 or None]).all()
        assert batch.dtype is dtype
        assert targets.tolist() == [index % 4]
        batch.zero_()
    assert (data[3][0] == rows[3]).all()
    for index in (4, -5):
        with pytest.raises(IndexError):
            data.__getitems__([index])
