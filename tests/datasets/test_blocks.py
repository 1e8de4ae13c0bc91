"""Rows are copied to the memory that was given, never to a copy of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foreload import _native
from foreload.datasets.blocks import gather_rows


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


def test_memory_with_gaps_is_refused_not_left_as_it_was() -> None:
    block = np.ones((2, 4), np.uint8)
    address = block.ctypes.data
    gaps = np.zeros((2, 8), np.uint8)[:, ::2]
    with pytest.raises(ValueError, match="out must be contiguous"):
        gather_rows([address], numbers(0, 0), numbers(1, 0), gaps)
    with pytest.raises(TypeError, match="incompatible"):
        _native.gather_from(numbers(address, address), gaps)
    with pytest.raises(TypeError, match="incompatible"):
        _native.gather(block, numbers(1, 0), gaps)
    marks = np.zeros((1, 4), np.int64)
    rows = _native.PackedRows(numbers(0), numbers(0), numbers(2), numbers(0, 1), 2)
    for documents, positions in ((marks[:, ::2], marks[:, :2].copy()), (marks[:, :2].copy(), marks[:, ::2])):
        with pytest.raises(TypeError, match="incompatible"):
            rows.mark(numbers(0), documents, positions)
