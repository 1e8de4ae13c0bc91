"""Batches of plain tensors are sent by a pickle stream that is kept; what comes out is what pickling gives."""

from __future__ import annotations

import copyreg
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foreload._libraries import registered_reducers
from foreload.cache import serialize
from foreload.cache.serialize import flatten, flatten_exactly, restore
from foreload.nested.forms import Streams, form_of
from foreload.nested.picklers import ExactPickler, SamplePickler, TorchPickler

DTYPES = (torch.float32, torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.complex64)


def pickled(batch: Any, kind: type[SamplePickler]) -> list[bytes]:
    return [bytes(part) for part in serialize._dumped(batch, kind)[1]]


def described(batch: Any) -> Any:
    """All that tells batches apart, and which of their tensors share memory."""
    parts = list(batch.values()) if isinstance(batch, dict) else batch
    tensors = parts if isinstance(parts, (list, tuple)) else [parts]
    names = list(batch) if isinstance(batch, dict) else None
    places = [each.untyped_storage().data_ptr() if each.numel() else -1 for each in tensors]
    values = [(each.dtype, each.shape, each.stride(), each.reshape(-1).tolist()) for each in tensors]
    return type(batch), names, values, [places.index(place) for place in places]


with_gradient = torch.zeros(2)
with_gradient.grad = torch.ones(2)
with torch.inference_mode():
    made_in_inference = torch.zeros(2)
named = torch.zeros(2)
named.unit = "m"  # type: ignore[attr-defined]


@st.composite
def plain_tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    tensor = torch.from_numpy(np.asarray(np.random.default_rng(draw(st.integers(0, 9))).integers(0, 2, shape)))
    tensor = tensor.to(draw(st.sampled_from(DTYPES)))
    changed = draw(st.sampled_from(["as it is", "a row", "turned", "a side of one"]))
    if changed == "a row" and tensor.ndim and len(tensor):
        return tensor[-1]
    if changed == "a side of one":
        return tensor.unsqueeze(0).transpose(0, -1)
    return tensor.t() if changed == "turned" and tensor.ndim == 2 else tensor


@st.composite
def batches(draw: st.DrawFn) -> Any:
    tensors: list[torch.Tensor] = draw(st.lists(plain_tensors(), max_size=4))
    if tensors and draw(st.sampled_from([False, True])):
        tensors.append(draw(st.sampled_from(tensors)))  # once more, or another view of it
    kind = draw(st.sampled_from(["tensor", "list", "tuple", "dict"]))
    if kind == "tensor":
        return tensors[0] if tensors else torch.zeros(2)
    if kind == "dict":
        return {f"field {i}": tensor for i, tensor in enumerate(tensors)}
    return tensors if kind == "list" else tuple(tensors)


@given(batch=batches(), kind=st.sampled_from([SamplePickler, TorchPickler, ExactPickler]))
def test_the_stream_that_is_kept_is_the_one_that_pickling_gives(batch: Any, kind: type[SamplePickler]) -> None:
    flattened = flatten_exactly if kind is ExactPickler else lambda batch: flatten(batch, kind)
    expected = pickled(batch, kind)
    for _ in range(2):  # the second time by what the first one has kept
        parts = flattened(batch)
        assert [bytes(part) for part in parts] == expected
        assert described(restore([bytearray(part) for part in parts])) == described(batch)


@pytest.mark.parametrize("flattened", [flatten, flatten_exactly])
def test_batches_of_one_form_come_out_each_as_it_is(flattened: Any) -> None:
    for number in range(3):
        batch = {"x": torch.full((2, 3), float(number)), "y": torch.arange(number, number + 2)}
        found = restore([bytearray(part) for part in flattened(batch)])
        assert {name: each.tolist() for name, each in found.items()} == {
            "x": [[number] * 3] * 2,
            "y": [number, number + 1],
        }


def _shrunk() -> torch.Tensor:
    tensor = torch.arange(6.0)[2:]
    tensor.untyped_storage().resize_(16)
    return tensor


def _read_only() -> torch.Tensor:
    array = np.arange(4.0)
    array.flags.writeable = False
    with warnings.catch_warnings(action="ignore"):  # torch says that it is
        return torch.from_numpy(array)


PLAIN_TOO = {
    "made in inference mode": lambda: made_in_inference.clone(),
    "with a gradient": lambda: with_gradient,
    "shared": lambda: torch.arange(3).share_memory_(),
    "of a read-only array": _read_only,
    "a number": lambda: torch.tensor(3.5),
}


@pytest.mark.parametrize("kind", [SamplePickler, TorchPickler])
@pytest.mark.parametrize("name", PLAIN_TOO)
def test_what_is_sent_without_more_than_its_numbers(name: str, kind: type[SamplePickler]) -> None:
    tensor = PLAIN_TOO[name]()
    expected = pickled(tensor, kind)
    assert all([bytes(part) for part in flatten(tensor, kind)] == expected for _ in range(2))
    assert form_of(tensor, exactly=False) is not None


def test_memory_is_not_copied() -> None:
    batch = [torch.zeros(3), torch.zeros(2, 2)]
    for _ in range(2):
        parts = flatten(batch, TorchPickler)
        batch[1] += 1
        assert restore(parts)[1].tolist() == batch[1].tolist()


class Names(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "batch",
    [
        with_gradient,
        made_in_inference,
        named,
        torch.zeros(2, requires_grad=True),
        torch.zeros(2, dtype=torch.complex64).conj(),
        torch.zeros(2).to_sparse(),
        torch.zeros(0),
        torch.zeros(4)[1:],
        _shrunk(),
        [torch.zeros(2), 3],
        {Names("x"): torch.zeros(2)},
        {1: torch.zeros(2)},
        [[torch.zeros(2)]],
        [],
        {},
        [torch.zeros(2)] * 2,
        [torch.zeros(1) for _ in range(17)],
        torch.nn.Parameter(torch.zeros(2), requires_grad=False),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_anything_else_is_pickled(batch: Any) -> None:
    assert form_of(batch, exactly=True) is None


def test_what_is_registered_for_tensors_is_called_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = torch.zeros(3)
    flatten(batch, TorchPickler)
    calls = []

    def reduced(tensor: torch.Tensor) -> Any:
        calls.append(tensor)
        return torch.ones, (3,)

    monkeypatch.setitem(registered_reducers, torch.Tensor, reduced)
    assert restore(flatten(batch, TorchPickler)).tolist() == [1, 1, 1]
    assert len(calls) == 1
    assert torch.Tensor not in copyreg.dispatch_table


def test_streams_of_many_forms_do_not_pile_up() -> None:
    streams = Streams()
    for form in range(1000):
        streams.keep(form, pickle.dumps(form))
    assert sum(streams.find(form) is not None for form in range(1000)) <= 64
    assert streams.find(999) == pickle.dumps(999)
