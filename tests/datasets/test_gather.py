"""Rows of tensors, gathered into one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import foreload as fl

DTYPES = [
    torch.uint8,
    torch.bool,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex128,
]


@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.sampled_from([(), (1,), (3,), (2, 5), (7, 1, 3), (0,), (100,)]),
    rows=st.integers(1, 20),
    data=st.data(),
)
def test_gather_is_indexing(dtype: torch.dtype, shape: tuple[int, ...], rows: int, data: Any) -> None:
    source = torch.randint(0, 2, (rows, *shape)).to(dtype)
    indices = data.draw(st.lists(st.integers(-rows, rows - 1), max_size=30))
    expected = source[torch.tensor(indices, dtype=torch.int64)]
    for form in (indices, np.array(indices, np.int32), torch.tensor(indices, dtype=torch.int64)):
        assert torch.equal(fl.gather(source, form), expected)
    out = torch.empty(expected.shape, dtype=dtype)
    assert fl.gather(source, indices, out) is out
    assert torch.equal(out, expected)
    assert fl.gather(source, slice(1, None, 2)).data_ptr() == source[1::2].data_ptr()


def test_the_stride_of_a_dimension_of_length_one_does_not_matter() -> None:
    column, row = torch.arange(4.0)[None].T, torch.arange(4.0)[::2][:1]
    for source in (column, row):
        assert fl.gather(source, [0, -1]).tolist() == [source[0].tolist(), source[-1].tolist()]
        (batch,) = fl.DataLoader(fl.CachedDataset(source), batch_size=4, num_workers=1)
        assert batch.tolist() == source.tolist()
    assert fl.gather(column, [1, 2], torch.zeros(1, 2).T).tolist() == [[1], [2]]


def test_gather_says_what_does_not_fit() -> None:
    source = torch.arange(12).view(4, 3)
    for index in (4, -5):
        out = torch.full((2, 3), 7)
        with pytest.raises(IndexError, match=f"index {index} at position 1"):
            fl.gather(source, [0, index], out)
        assert (out == 7).all()
    for wrong in (torch.empty(1, 3), torch.empty(2, 3), torch.empty(3, 2, dtype=torch.int64).T):
        with pytest.raises(ValueError, match="out must be"):
            fl.gather(source, [0, 1], wrong)
    with pytest.raises(ValueError, match="source must be contiguous"):
        fl.gather(source.T, [0])
    with pytest.raises(ValueError, match="scalar"):
        fl.gather(torch.tensor(1), [0])
    with pytest.raises(TypeError, match="source must be a tensor"):
        fl.gather([1, 2], [0])  # type: ignore[arg-type]
    for wrong_indices in ([0.5], [[0]], torch.tensor([True])):
        with pytest.raises(TypeError, match="indices"):
            fl.gather(source, wrong_indices)


def test_rows_are_not_copied_over_those_that_are_still_to_be_read() -> None:
    rows = torch.arange(6)
    for out in (rows, rows[:3], rows[2:5]):
        indices = list(reversed(range(len(out))))
        with pytest.raises(ValueError, match="out shares memory with source"):
            fl.gather(rows, indices, out)
        with pytest.raises(ValueError, match="out shares memory with source"):
            fl.gather(rows, slice(0, len(out)), out)
    assert rows.tolist() == list(range(6))
    assert fl.gather(rows[:3], [2, 1, 0], rows[3:]).tolist() == [2, 1, 0]  # next to each other


def test_out_fits_a_slice_too() -> None:
    for out in (torch.zeros(3, 2), torch.zeros(1, 2, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"out must be .* of shape \(1, 2\) and torch.float32"):
            fl.gather(torch.ones(4, 2), slice(0, 1), out)
