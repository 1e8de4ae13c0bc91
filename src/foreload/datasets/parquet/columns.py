"""Columns of an Arrow table, as values per row or as a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from foreload.checks import Array, first_beyond_int64
from foreload.datasets.parquet.rowgroups import load_pyarrow
from foreload.protocol import BatchMemory

__all__ = ["collated", "values_of"]


def values_of(column: Any) -> list[Any]:
    """Turn a column into one value per row."""
    pa = load_pyarrow()
    shape = _tensor_shape(column.type, pa)
    if shape is None:
        return list(column.to_pylist())
    rows: list[Any] = []
    for array in column.chunks:
        tensor = _tensor(array, shape, pa)
        if tensor is not None:
            rows += tensor.unbind()
        else:
            rows += [_row(array[i : i + 1], shape, pa) for i in range(len(array))]
    return rows


def collated(column: Any, order: Array, buffers: BatchMemory) -> Any:
    """Turn a column of one chunk into what ``default_collate`` makes of its values, in this order.

    None if that is left to ``default_collate`` itself. Lists of numbers are copied into memory of ``buffers``.
    """
    pa = load_pyarrow()
    is_a = pa.types
    kind, array = column.type, column.chunk(0)
    if array.null_count:
        return None
    if is_a.is_uint64(kind):
        numbers = array.to_numpy()[order]
        return None if first_beyond_int64((), numbers) is not None else torch.from_numpy(numbers.astype(np.int64))
    if is_a.is_string(kind) or is_a.is_large_string(kind) or is_a.is_binary(kind) or is_a.is_large_binary(kind):
        values = array.to_pylist()
        return [values[place] for place in order.tolist()]
    shape = _tensor_shape(kind, pa)
    if shape is not None:
        if getattr(kind, "permutation", None) is not None:
            tensor = _tensor(array, shape, pa)
            # NumPy indexes here: torch would wake all its threads for it.
            return None if tensor is None else torch.from_numpy(tensor.numpy()[order])
        numbers = _numbers(array, pa)
        return None if numbers is None else _gathered(numbers.reshape(len(array), *shape), order, buffers)
    for is_kind, dtype in (
        (is_a.is_boolean, np.bool_),
        (is_a.is_integer, np.int64),
        (is_a.is_floating, np.float64),
    ):
        if is_kind(kind):
            return torch.from_numpy(array.to_numpy(zero_copy_only=False)[order].astype(dtype, copy=False))
    return None


def _row(array: Any, shape: tuple[int, ...], pa: Any) -> Any:
    """Return the value of an array of one row: a tensor, a list if numbers in it are missing, or None."""
    tensor = _tensor(array, shape, pa)
    return array.to_pylist()[0] if tensor is None else tensor[0]


def _tensor_shape(kind: Any, pa: Any) -> tuple[int, ...] | None:
    """Return the shape of a fixed-size list of numbers, or of a fixed-shape tensor; None for any other type."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return tuple(kind.shape)
    shape = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return tuple(shape) if shape and is_number else None


def _gathered(rows: Array, order: Array, buffers: BatchMemory) -> torch.Tensor:
    dtype = torch.from_numpy(rows[:0].copy()).dtype
    batch = buffers.take((len(order), *rows.shape[1:]), dtype)
    np.take(rows, order, axis=0, out=batch.numpy(), mode="clip")  # other modes go through a copy
    return batch


def _numbers(array: Any, pa: Any) -> Array | None:
    """Return the numbers of an array of fixed-size lists, not copied if possible; None if any is missing."""
    if isinstance(array.type, pa.FixedShapeTensorType):
        array = array.storage
    while pa.types.is_fixed_size_list(array.type):
        if array.null_count:
            return None
        array = array.flatten()
    if array.null_count:
        return None
    numbers: Array = array.to_numpy(zero_copy_only=False)
    return numbers


def _tensor(array: Any, shape: tuple[int, ...], pa: Any) -> torch.Tensor | None:
    """Copy an array of fixed-size lists to a tensor of rows x shape; None if values are missing."""
    numbers = _numbers(array, pa)
    if numbers is None:
        return None
    permutation = getattr(array.type, "permutation", None)
    tensor = torch.from_numpy(np.array(numbers)).reshape(len(array), *shape)
    return tensor if permutation is None else tensor.permute(0, *(1 + axis for axis in permutation))
