"""Collation into memory that is used again, against torch's ``default_collate``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import default_collate

import foreload as fl
from foreload.batch.buffers import Buffers
from foreload.batch.collate import MIN_BORROWED_BYTES, collate_into, lending, stack

# Three samples are too few for borrowed memory, or enough, whatever their type.
SIDES = {"small": 3, "large": MIN_BORROWED_BYTES // 4}


class Special(torch.Tensor):
    pass


def numbers(side: int) -> torch.Tensor:
    return torch.arange(2.0 * side).view(side, 2) / 7


def quantized(side: int) -> torch.Tensor:
    return torch.quantize_per_tensor(numbers(side), 0.5, 3, torch.quint8)


ODD: dict[str, Callable[[int], Any]] = {
    "ordinary": numbers,
    "float64": lambda side: numbers(side).double(),
    "bfloat16": lambda side: numbers(side).bfloat16(),
    "one row more": lambda side: numbers(side + 1),
    "one side more": lambda side: numbers(side)[None],
    "transposed": lambda side: numbers(side).view(2, side).t(),
    "conjugate": lambda side: torch.complex(numbers(side), numbers(side)).conj(),
    "leaf": lambda side: numbers(side).requires_grad_(),
    "parameter": lambda side: torch.nn.Parameter(numbers(side)),
    "subclass": lambda side: numbers(side).as_subclass(Special),
    "sparse": lambda side: numbers(side).to_sparse(),
    "meta": lambda side: numbers(side).to("meta"),
    "quantized": quantized,
    "nested": lambda side: torch.nested.nested_tensor([numbers(side), numbers(1)]),
    "array": lambda side: numbers(side).numpy(),
    "number": lambda side: 3.5,
}


def described(collate: Callable[[Any], Any], samples: list[Any]) -> tuple[Any, ...]:
    try:
        batch = collate(samples)
    except Exception as error:
        return type(error), str(error)
    facts = type(batch), batch.dtype, batch.layout, batch.device, batch.requires_grad, batch.is_conj()
    if batch.is_nested:
        return (*facts, [part.tolist() for part in batch.unbind()])
    whole = batch.dequantize() if batch.is_quantized else batch.detach()
    strides = whole.stride() if whole.layout is torch.strided else None
    values = None if whole.is_meta else whole.to_dense().resolve_conj().tolist()
    return (*facts, tuple(whole.shape), strides, values)


@pytest.mark.sampled(8)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", SIDES)
@pytest.mark.parametrize("form", ODD)
def test_one_odd_tensor_of_a_batch_is_noticed_wherever_it_is(form: str, size: str) -> None:
    side, buffers = SIDES[size], Buffers()

    def lent(samples: list[Any]) -> Any:
        with lending(buffers):
            return stack(samples)

    for places in ({0}, {1}, {2}, {0, 1, 2}):
        samples = [ODD[form](side) if i in places else numbers(side) for i in range(3)]
        expected = described(default_collate, samples)
        for is_required in (False, True):
            collate = collate_into(buffers, is_required=is_required)
            assert described(collate, samples) == expected, (places, is_required)
        if isinstance(samples[0], torch.Tensor):
            assert described(lent, samples) == expected, places


def test_a_batch_of_ordinary_tensors_lies_in_lent_memory() -> None:
    buffers = Buffers()
    samples = [numbers(SIDES["large"]) for _ in range(3)]
    address = buffers.take((3, *samples[0].shape), torch.float32).data_ptr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns if it must resize what it writes to
        assert collate_into(buffers, is_required=True)(samples).data_ptr() == address


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("first", "other"),
    [
        (torch.ones(2), torch.full((2,), 1e300, dtype=torch.float64)),
        (torch.ones(2, dtype=torch.float64), torch.ones(2)),
        (torch.ones(2, dtype=torch.uint8), torch.full((2,), 300)),
        (torch.ones(2, dtype=torch.uint8), torch.ones(2)),
        (np.ones(2, np.float32), np.ones(2)),
    ],
    ids=["f32, f64", "f64, f32", "u8, i64", "u8, f32", "arrays"],
)
def test_tensors_of_several_types_are_cast_as_by_torchs_workers(first: Any, other: Any, num_workers: int) -> None:
    """Threads load a list; torch's workers give a batch the type of its first sample."""

    def batch(make: Any) -> Any:
        loader = make([first, other], batch_size=2, num_workers=num_workers)
        try:
            (found,) = loader
        except TypeError:
            return TypeError
        return found.dtype, found.tolist()

    assert batch(fl.DataLoader) == batch(TorchDataLoader)
