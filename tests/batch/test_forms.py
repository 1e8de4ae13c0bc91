"""Tensors and arrays of every form arrive as they were made: strides, memory format, dtype, shared memory."""

from __future__ import annotations

import collections
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload.cache.serialize import flatten, restore
from foreload.nested import snapshot

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create",
    "ignore:The PyTorch API of nested",
    "ignore:Sparse",
    "ignore:.*quantized.*",
)


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Fields:
    a: Any
    b: Any


class Special(torch.Tensor):
    pass


def random(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), **options)


def numbers() -> Any:
    return np.arange(10_000.0).reshape(100, 100)


def read_only(array: Any) -> Any:
    array.setflags(write=False)
    return array


def overlapping() -> Any:
    whole = random(5000)
    return whole[:-1], whole[1:]


def part_and_whole() -> Any:
    whole = random(100, 100)
    return {"part": whole[3], "whole": whole}


def twice() -> Any:
    whole = random(5000)
    return whole, whole


def as_ints() -> Any:
    whole = random(50, 100)
    return whole, whole.view(torch.int32)


TENSORS: dict[str, Callable[[], Any]] = {
    "plain": lambda: random(50, 60),
    "channels last": lambda: random(2, 3, 40, 50).to(memory_format=torch.channels_last),
    "channels last, small": lambda: random(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels last 3d": lambda: random(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
    "transposed": lambda: random(60, 70).t(),
    "permuted": lambda: random(2, 3, 4).permute(2, 0, 1),
    "expanded": lambda: random(60, 1).expand(60, 70),
    "expanded scalar": lambda: torch.tensor(3.0).expand(100, 100),
    "every second": lambda: random(60, 70)[:, ::2],
    "column": lambda: random(100, 100)[:, 3],
    "row of more": lambda: random(1000, 100)[5],
    "rows of more": lambda: random(1000, 100)[5:9],
    "spread rows": lambda: random(1000, 100)[10:500:3],
    "from the second on": lambda: random(7000)[1:],
    "unfolded": lambda: random(100).unfold(0, 10, 3),
    "no rows": lambda: torch.zeros(0, 3),
    "no columns": lambda: torch.zeros(3, 0, 2).transpose(0, 2),
    "scalar": lambda: torch.tensor(3.0),
    "complex": lambda: random(50, 60, dtype=torch.cfloat),
    "real part": lambda: random(50, 60, dtype=torch.cfloat).real,
    "bfloat16": lambda: random(50, 60).bfloat16().t(),
    "half": lambda: random(5).half(),
    "bool": lambda: random(50, 60) > 0,
    "uint16": lambda: torch.arange(10).to(torch.uint16),
    "float8": lambda: random(10).to(torch.float8_e5m2),
    "leaf": lambda: random(50, 60).requires_grad_(),
    "leaf, transposed": lambda: random(60, 50).t().requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(random(50, 60)),
    "subclass": lambda: random(50, 60).as_subclass(Special),
    "sparse": lambda: random(50, 60).relu().to_sparse(),
    "csr": lambda: random(50, 60).relu().to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([random(3, 2), random(4, 2)]),
    "overlapping": overlapping,
    "part and whole": part_and_whole,
    "twice": twice,
    "other dtype": as_ints,
    "storage": lambda: random(100).untyped_storage(),
    "packed": lambda: torch.nn.utils.rnn.pack_sequence([random(3, 2), random(2, 2)]),
    "in a named tuple": lambda: Pair(random(60, 70).t(), "x"),
    "in a dataclass": lambda: Fields(random(9000)[::2], [random(3)]),
    "in dicts": lambda: {"a": collections.OrderedDict(b=[random(3), (random(2, 3).t(),)])},
}
ARRAYS: dict[str, Callable[[], Any]] = {
    "reversed": lambda: numbers()[::-1],
    "Fortran": lambda: np.asfortranarray(numbers()),
    "every third": lambda: numbers()[:, ::3],
    "read-only": lambda: read_only(numbers()),
    "read-only Fortran": lambda: read_only(np.asfortranarray(numbers())),
    "broadcast": lambda: np.broadcast_to(np.arange(3.0), (4, 3)),
    "structured": lambda: np.array([(1, 2.5), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "objects": lambda: np.array([None, "x", [1]], dtype=object),
    "dates": lambda: np.array(["2020-01-01"], "M8[s]"),
    "0-d": lambda: np.array(5.0),
    "NumPy scalar": lambda: np.float32(3),
    "texts": lambda: np.array(["ab", "c"] * 3000),
    "big-endian": lambda: np.arange(2000, dtype=">i4"),
    "small big-endian": lambda: np.arange(3, dtype=">f4"),
    "big-endian Fortran": lambda: np.asfortranarray(np.ones((30, 50), ">f8")),
    "big-endian texts": lambda: np.array(["ab", "c"] * 3000, dtype=">U3"),
    "big-endian fields": lambda: np.zeros(2000, [("a", ">i4"), ("b", "<f2")]),
    "image, channels first": lambda: numbers().reshape(20, -1, 5).transpose(2, 0, 1),
    "big-endian image, channels first": lambda: np.ones((30, 40, 3), ">f4").transpose(2, 0, 1),
    "no elements": lambda: np.zeros((0, 3), ">f4"),
    "masked": lambda: np.ma.masked_array([1, 2], [0, 1]),
    "records": lambda: np.rec.array([(1, 2)], dtype=[("a", "i4"), ("b", "i4")]),
    "array twice": lambda: (lambda array: (array, array))(np.zeros(9000)),
    "bytes": lambda: b"x" * 9000,
    "bytearray": lambda: bytearray(9000),
    "set": lambda: {1, 2},
    "none": lambda: None,
    "range": lambda: range(3),
    "size": lambda: torch.Size([1, 2]),
    "dtype": lambda: torch.float32,
}
# Torch's own workers give other numbers or another dtype for these than torch without workers.
WRONG_IN_STOCK: dict[str, Callable[[], Any]] = {
    "quantised": lambda: torch.quantize_per_tensor(random(50, 60), 0.1, 3, torch.quint8),
    "quantised by channel": lambda: torch.quantize_per_channel(
        random(5, 6), torch.full((5,), 0.1), torch.zeros(5), 0, torch.quint8
    ),
    "conjugate": lambda: random(50, 60, dtype=torch.cfloat).conj(),
    "negative": lambda: torch.imag(random(50, 60, dtype=torch.cfloat).conj()),
    "tensor and array": lambda: (lambda tensor: (tensor, tensor.numpy()))(torch.zeros(9000)),
}
FORMS = {**TENSORS, **ARRAYS}


class Made(Dataset[Any]):
    def __init__(self, makers: dict[str, Callable[[], Any]]) -> None:
        self.makers = list(makers.values())

    def __len__(self) -> int:
        return len(self.makers)

    def __getitem__(self, index: int) -> Any:
        return self.makers[index]()


def identity(value: Any) -> Any:
    return value


def described(value: Any) -> Any:
    """All about a value that a loop could see."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested:
            parts = value.unbind() if value.is_nested else [value.to_dense()]
            return type(value), value.layout, [part.tolist() for part in parts]
        content = value.dequantize() if value.is_quantized else value
        flags = value.requires_grad, value.is_leaf, value.is_conj(), value.is_neg()
        return type(value), value.dtype, value.shape, value.stride(), flags, content.tolist()
    if isinstance(value, np.ndarray):
        form = value.shape, value.strides, value.flags.writeable, value.flags.f_contiguous
        return type(value), value.dtype.str, form, value.tolist()
    if isinstance(value, torch.UntypedStorage):
        return value.tolist()
    if isinstance(value, dict):
        return type(value), [(name, described(item)) for name, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [described(item) for item in value], len({id(item) for item in value})
    return (type(value), described(vars(value))) if isinstance(value, Fields) else (type(value), value)


def shares(value: Any) -> bool:
    """Whether two tensors of a batch share memory: what is written to one is read from the other."""
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    tensors = [part for part in parts if type(part) is torch.Tensor and part.layout is torch.strided]
    return len({part.untyped_storage().data_ptr() for part in tensors}) < len(tensors)


@pytest.fixture(scope="module")
def loaded() -> dict[str, dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        everything = {**FORMS, **WRONG_IN_STOCK}
        options: dict[str, Any] = {"batch_size": None, "collate_fn": identity}
        loaders = {
            "stock 0": (FORMS, TorchDataLoader(Made(FORMS), **options)),
            "stock 2": (FORMS, TorchDataLoader(Made(FORMS), num_workers=2, **options)),
            "here": (everything, fl.DataLoader(Made(everything), num_workers=0, **options)),
            "threads": (everything, fl.DataLoader(Made(everything), num_workers=2, workers="threads", **options)),
            "processes": (
                everything,
                fl.DataLoader(Made(everything), num_workers=2, workers="processes", **options),
            ),
        }
        return {kind: dict(zip(forms, loader, strict=True)) for kind, (forms, loader) in loaders.items()}


@pytest.mark.parametrize("form", FORMS)
def test_worker_processes_give_what_torchs_give(loaded: Any, form: str) -> None:
    ours, stock = loaded["processes"][form], loaded["stock 2"][form]
    assert described(ours) == described(stock)
    assert shares(ours) == shares(stock)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["here", "threads"])
def test_what_stays_in_the_process_stays_as_it_is(loaded: Any, form: str, kind: str) -> None:
    ours, stock = loaded[kind][form], loaded["stock 0"][form]
    assert described(ours) == described(stock)
    assert shares(ours) == shares(stock)


@pytest.mark.parametrize("form", WRONG_IN_STOCK)
def test_what_torchs_workers_get_wrong_is_right(loaded: Any, form: str) -> None:
    expected = described(WRONG_IN_STOCK[form]())
    for kind in ("here", "threads", "processes"):
        assert described(loaded[kind][form]) == expected, kind


@pytest.mark.parametrize("form", TENSORS)
def test_what_arrives_can_be_written_to(loaded: Any, form: str) -> None:
    value = loaded["processes"][form]
    overlaps = form in ("expanded", "expanded scalar", "unfolded", "nested")
    if type(value) is torch.Tensor and value.layout is torch.strided and not (value.requires_grad or overlaps):
        value.zero_()
        assert not value.any()


SAMPLES: dict[str, Callable[[], Any]] = {
    "image": lambda: random(100, 120, 3).permute(2, 0, 1),
    "small image": lambda: random(4, 5, 3).permute(2, 0, 1),
    "channels last": lambda: random(2, 3, 40, 50).to(memory_format=torch.channels_last),
    "transposed": lambda: random(100, 120).t(),
    "expanded": lambda: random(100, 1).expand(100, 200),
    "sliced": lambda: random(100, 200)[:, ::2],
    "one channel": lambda: random(1, 100, 200),
    "one pixel": lambda: random(30_000, 1, 1),
    "array": lambda: np.asfortranarray(numbers()),
    "nothing": lambda: torch.zeros(0, 3),
    "scalar": lambda: torch.tensor(3.0),
    "bfloat16": lambda: random(100, 200).bfloat16(),
    "subclass": lambda: random(100, 200).as_subclass(Special),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("form", SAMPLES)
@pytest.mark.parametrize("workers", [0, 2])
def test_default_collate_gives_torchs_strides(form: str, workers: int) -> None:
    class Same(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return SAMPLES[form]()

    if workers and form == "subclass":
        pytest.skip("torch's own workers cannot collate it")
    expected = [described(batch) for batch in TorchDataLoader(Same(), batch_size=2, num_workers=workers)]
    for kind in ("auto",) if workers == 0 else ("threads", "processes"):
        loader = fl.DataLoader(Same(), batch_size=2, num_workers=workers, workers=kind)
        assert [described(batch) for batch in loader] == expected, kind


@pytest.mark.parametrize("form", FORMS)
def test_the_cache_keeps_the_form_of_a_sample(form: str) -> None:
    made = FORMS[form]()
    parts = flatten(made)
    kept = restore([bytes(parts[0]), *map(bytearray, parts[1:])])
    if form in TENSORS:
        assert described(kept) == described(made)
        assert shares(kept) == shares(made)


def test_a_small_part_of_much_is_all_that_is_sent() -> None:
    much = torch.zeros(1000, 1000)
    assert sum(map(len, flatten(much[5]))) < 5000
    assert sum(map(len, flatten(much[:, 5]))) < 5000
    assert sum(map(len, flatten([much, much[5], much[6:]]))) < 4_010_000
    assert sum(map(len, flatten([much[5], much]))) < 4_010_000


@pytest.mark.parametrize("form", FORMS)
def test_a_snapshot_is_equal_and_apart(form: str) -> None:
    value = FORMS[form]()
    taken = snapshot(value)
    assert described(taken) == described(value) or form in (
        "reversed",
        "every third",
        "broadcast",
        "read-only",
        "read-only Fortran",
    )
    if type(value) is torch.Tensor and value.layout is torch.strided and value.numel():
        assert taken.untyped_storage().data_ptr() != value.untyped_storage().data_ptr()
