"""Indices as datasets are given them, checked and converted to plain ints or int64 arrays."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from foreload.checks import Array, Indices, first_beyond_int64

__all__ = ["as_indices", "position_of", "positions_of", "require_nonempty", "row_numbers"]


_BOOLS = {bool, np.bool_}
_MAX_INT64 = np.uint64(np.iinfo(np.int64).max)


def position_of(index: Any) -> int | None:
    """Return an index of one sample as an int; None for slices, masks and arrays, also of one element.

    >>> import torch
    >>> position_of(torch.tensor(3)), position_of(torch.tensor([3])), position_of(True)
    (3, None, None)
    """
    if type(index) is int:
        return index
    if isinstance(index, bool) or not hasattr(index, "__index__") or getattr(index, "ndim", 0) != 0:
        return None
    try:
        return operator.index(index)
    except TypeError:
        return None


def as_indices(indices: Any) -> Indices:
    """Return indices as a contiguous int64 array.

    Raises:
        TypeError: one of them is not an int.
        IndexError: one of them is larger than any dataset.
    """
    if isinstance(indices, torch.Tensor):
        indices = indices.numpy()
    elif not isinstance(indices, (np.ndarray, Sequence)):
        try:
            indices = list(indices)
        except TypeError:
            raise TypeError(f"indices must be a flat list of ints, got {indices!r:.80}") from None
    rows = np.asarray(indices)
    if rows.size == 0:
        rows = rows.astype(np.int64)
    if (beyond := first_beyond_int64(indices, rows)) is not None:
        raise IndexError(f"index {indices[beyond]} is out of range for any dataset")
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise TypeError(f"indices must be a flat list of ints, got shape {rows.shape} of {rows.dtype}")
    return np.ascontiguousarray(rows, np.int64)


def row_numbers(indices: Any) -> Indices | None:
    """Return the indices of a batch as an int64 array; None if they are not plain row numbers.

    Slices, masks, and lists of indices are none, though a tensor can be indexed by them; nor are ints
    beyond int64.

    >>> row_numbers([3, -1]), row_numbers([slice(0, 2)]), row_numbers(slice(0, 2)), row_numbers([1, False])
    (array([ 3, -1]), None, None, None)
    """
    if isinstance(indices, np.ndarray):
        if indices.ndim == 1 and indices.dtype == np.int64:
            return (
                indices
                if type(indices) is np.ndarray and indices.flags.c_contiguous
                else np.ascontiguousarray(indices)
            )
    elif isinstance(indices, torch.Tensor):
        indices = indices.numpy()
    elif not isinstance(indices, (list, tuple, range)):
        return None
    try:
        rows = np.asarray(indices)
    except (TypeError, ValueError):  # of different lengths, or of objects that are no numbers
        return None
    if rows.size == 0 and rows.ndim == 1:
        return rows.astype(np.int64)
    # Torch takes a tensor of bytes for a mask.
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or rows.dtype == np.uint8:
        return None
    if isinstance(indices, (list, tuple)) and not _BOOLS.isdisjoint(map(type, indices)):
        return None
    return None if _exceed_int64(rows) else np.ascontiguousarray(rows, np.int64)


def _exceed_int64(rows: Array) -> bool:
    """Whether one of them would wrap round as an int64, and so become the number of another row."""
    return rows.dtype == np.uint64 and bool((rows > _MAX_INT64).any())


def positions_of(indices: Any, count: int) -> Indices:
    """Return a batch's indices as positions in a dataset of ``count`` samples; negative ones count from the end.

    A slice stands for the positions that it has in a list.

    Raises:
        TypeError: one of them is not an int.
        IndexError: one of them is out of range.

    >>> positions_of([2, -1, np.int64(0)], 10)
    array([2, 9, 0])
    """
    if isinstance(indices, slice):
        return np.arange(*indices.indices(count), dtype=np.int64)
    rows = as_indices(indices)
    if rows.size and rows.min() >= 0 and rows.max() < count:  # as they nearly always are
        return rows.copy()  # whoever gave them may use their memory again
    wrong = (rows < -count) | (rows >= count)
    if wrong.any():
        raise IndexError(f"index {rows[wrong][0]} is out of range for {count} samples")
    return np.where(rows < 0, rows + count, rows)


def require_nonempty(rows: Indices) -> Indices:
    """Return the indices of a batch; raise IndexError if there are none.

    >>> require_nonempty(np.zeros(0, np.int64))
    Traceback (most recent call last):
    IndexError: the batch sampler gave a batch without samples, which cannot be collated
    """
    if not len(rows):
        raise IndexError("the batch sampler gave a batch without samples, which cannot be collated")
    return rows
