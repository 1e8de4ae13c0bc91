"""The error for samples of which ``default_collate`` makes no batch names the sample, its part and a remedy."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

import foreload as fl

ROW = np.zeros(1, [("x", "f4"), ("y", "i4")])[0]
UNLIKE: dict[str, tuple[list[Any], str]] = {
    "none": ([1, 2, None], "sample 2: it is None; fill it in"),
    "none first": ([None, 1], "sample 0: it is None; fill it in"),
    "none in a column": ([{"a": "x", "b": 1.5}, {"a": None, "b": None}], "sample 1: ['b'] is None; fill it in"),
    "none in a list": ([{"a": [1, 2]}, {"a": [1, None]}], "sample 1: ['a'][1] is None; fill it in"),
    "none among tensors": ([torch.ones(2), None], "sample 1: it is None; fill it in"),
    "compound": ([(ROW, 1)] * 2, "sample 0: [0] is a row of a compound dtype; take its fields in a transform"),
    "compound array": ([np.zeros(2, ROW.dtype)] * 2, "sample 0: it is of the dtype [('x', '<f4'), ('y', '<i4')]"),
    "texts in an array": ([np.array(["a"])] * 2, "sample 0: it is of the dtype <U1, which torch does not have"),
    "long double": ([np.longdouble(1)] * 2, "which torch does not have; convert it"),
    "decimal": ([decimal.Decimal(1)] * 2, "sample 0: it is a decimal.Decimal, of which no batch is made; convert"),
    "too large": ([1, 1 << 63], f"sample 1: it is {1 << 63}, which does not fit into int64; convert it"),
    "shapes": ([torch.ones(1), torch.ones(2)], "sample 1: it has the shape (2,), but the shape (1,) in the first"),
    "lengths": ([[1], [1, 2]], "sample 1: it has 2 items, but 1 items in the first sample; make them alike"),
    "keys": ([{"a": 1}, {"b": 1}], "sample 1: it has the keys 'b', but the keys 'a' in the first sample"),
    "kinds": ([(torch.ones(2), 1), ([1.0, 1.0], 1)], "sample 1: [0] is a list, but a torch.Tensor in the first"),
}


def notes_of(dataset: Any, **options: Any) -> str:
    loader = fl.DataLoader(dataset, batch_size=8, num_workers=0, **options)
    with pytest.raises((TypeError, ValueError, RuntimeError, KeyError)) as caught:
        list(loader)
    return "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("case", UNLIKE)
def test_the_sample_that_is_unlike_is_named(case: str) -> None:
    samples, words = UNLIKE[case]
    assert words in notes_of(samples)
    assert words in notes_of(samples, cache="1MiB")


def test_it_is_named_in_a_stream() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter([1, 2, None])

    assert "sample 2 of the batch: it is None; fill it in" in notes_of(Stream())


def test_the_position_is_given_if_samples_were_left_out() -> None:
    class Failing:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return [1, 1 // (index - 1), 1, None][index]

    loader = fl.DataLoader(Failing(), batch_size=4, num_workers=0, on_error="skip")
    assert list(loader) == []
    assert "sample 2 of the batch: it is None; fill it in" in loader.errors[-1].traceback


def test_other_errors_and_collate_functions_get_no_such_note() -> None:
    class Hostile:
        def __len__(self) -> int:
            raise RuntimeError("no length")

    def collate(samples: list[Any]) -> Any:
        raise ValueError("mine")

    assert "sample 0:" not in notes_of([1, None], collate_fn=collate)
    assert "of which no batch is made" in notes_of([Hostile(), Hostile()])
