"""Columns of an Arrow table, as values per row or as a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from foreload.checks import Array, first_beyond_int64
from foreload.datasets.parquet.file import load_pyarrow
from foreload.protocol import BatchMemory

__all__ = ["collated", "collated_numbers", "column_values", "copied_bytes", "numbers_of", "without_dictionary"]

# What default_collate makes of Python's numbers, by the kind of their dtype.
_COLLATED = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64}


def column_values(column: Any) -> list[Any]:
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
    if is_a.is_string(kind) or is_a.is_large_string(kind) or is_a.is_binary(kind) or is_a.is_large_binary(kind):
        values = array.to_pylist()
        return [values[place] for place in order.tolist()]
    if getattr(kind, "permutation", None) is not None:
        tensor = _tensor(array, tuple(kind.shape), pa)
        # NumPy indexes here: torch would wake all its threads for it.
        return None if tensor is None else torch.from_numpy(tensor.numpy()[order])
    numbers = numbers_of(array)
    if numbers is None:
        return None
    shape = (len(order), *numbers.shape[1:])
    # (Other modes go through a copy.)
    return collated_numbers(shape, numbers.dtype, partial(np.take, numbers, order, 0, mode="clip"), buffers)


@cache
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def collated_numbers(
    shape: tuple[int, ...], dtype: np.dtype[Any], copy_to: Callable[..., Any], buffers: BatchMemory
) -> torch.Tensor | None:
    """Turn rows of a column into a batch: numbers become int64, float64 or bool, and lists keep their dtype.

    Args:
        shape: of the rows; its first dimension counts them.
        dtype: of the rows.
        copy_to: copies them to its argument ``out``, of this shape and dtype.
        buffers: memory for lists.

    Returns:
        The batch; None if a number does not fit into int64.
    """
    if len(shape) > 1:
        batch = buffers.take(shape, _torch_dtype(dtype))
        copy_to(out=batch.numpy())
        return batch
    values = np.empty(shape, dtype)
    copy_to(out=values)
    if dtype == np.uint64 and first_beyond_int64((), values) is not None:
        return None
    return torch.from_numpy(values.astype(_COLLATED[dtype.kind], copy=False))


def numbers_of(array: Any) -> Array | None:
    """Return values of an Arrow array as NumPy has them, a row for each; not copied if possible.

    None if they are no numbers (or lists of as many each), or some are missing, or lists are not in the order of
    their dimensions.
    """
    pa = load_pyarrow()
    kind = array.type
    shape = _tensor_shape(kind, pa)
    if array.null_count or getattr(kind, "permutation", None) is not None:
        return None
    if shape is not None:
        numbers = _numbers(array, pa)
        return None if numbers is None else numbers.reshape(len(array), *shape)
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return None
    rows: Array = array.to_numpy(zero_copy_only=False)
    return rows


def copied_bytes(column: Any) -> int:
    """Return how many bytes :func:`numbers_of` copies of a column: Arrow keeps eight booleans in one."""
    pa = load_pyarrow()
    kind, count = column.type, len(column)
    if isinstance(kind, pa.FixedShapeTensorType):
        kind = kind.storage_type
    while pa.types.is_fixed_size_list(kind):
        kind, count = kind.value_type, count * kind.list_size
    return count if pa.types.is_boolean(kind) else 0


def without_dictionary(array: Any) -> Any:
    """Return an Arrow array, or column, whose values are not numbers of words in a dictionary.

    To join arrays takes far longer if their dictionaries differ.
    """
    is_dictionary = load_pyarrow().types.is_dictionary(array.type)
    return array.cast(array.type.value_type) if is_dictionary else array


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
