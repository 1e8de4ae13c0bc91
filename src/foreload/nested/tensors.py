"""The tensors of a batch, and their memory."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from foreload._torch import coo_parts
from foreload.nested.constants import is_constant
from foreload.nested.containers import attributes

__all__ = ["NUMPY_DTYPES", "bytes_of", "is_masked_array", "is_plain", "tensors"]

# The dtypes that NumPy has too.
NUMPY_DTYPES = {torch.from_numpy(np.empty(0, kind)).dtype: np.dtype(kind) for kind in "?BbhilfdeFD"}


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is numbers in the memory of the CPU, and nothing else."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
    )


def is_masked_array(value: Any) -> bool:
    """Whether a value is a NumPy array with a mask.

    (There is none until ``numpy.ma`` is imported, which NumPy does when it is asked for the class: for 10 ms, in
    each worker process again.)

    >>> is_masked_array(np.zeros(2)), is_masked_array(np.ma.zeros(2))
    (False, True)
    """
    kind = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    return kind is not None and isinstance(value, kind)


def bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """View the memory of a contiguous CPU tensor as bytes.

    Raises:
        ValueError: it is not contiguous.

    >>> bytes_of(torch.arange(4, dtype=torch.uint8)[None].t()).tolist()
    [0, 1, 2, 3]
    """
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor with strides {tensor.stride()} is not contiguous, as its bytes are to be")
    # The stride of a dimension of length 1 may be anything, and view() would keep it.
    memory: np.ndarray[Any, Any] = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return memory


def tensors(batch: Any, *, of_any_object: bool = False) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch, each once, and those inside objects; of sparse and nested ones the parts.

    Args:
        batch: with tensors in containers, dataclasses, and attributes of objects that have ``.to``.
        of_any_object: look into the attributes of all other objects too, and into sets and deques.

    >>> [tensor.tolist() for tensor in tensors({"x": [torch.ones(1), 3]})]
    [[1.0]]
    """
    seen: dict[int, Any] = {}
    # Not by recursion: a batch may be nested more deeply than that may go.
    waiting: list[Iterator[Any]] = [iter((batch,))]
    while waiting:
        for value in waiting[-1]:
            if isinstance(value, (type, str, bytes, int, float, complex)) or value is None or id(value) in seen:
                continue
            seen[id(value)] = value  # kept, since what a mapping makes when it is asked for could get its id
            parts = _parts(value, of_any_object)
            if parts is None:
                yield value
            else:
                waiting.append(iter(parts))
                break
        else:
            waiting.pop()


def _parts(value: Any, of_any: bool) -> Iterable[Any] | None:
    """Return what a value holds; None for a tensor that is a part itself."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.sparse_coo:
            return coo_parts(value)
        if value.layout in (torch.sparse_csr, torch.sparse_bsr):
            return value.crow_indices(), value.col_indices(), value.values()
        if value.layout in (torch.sparse_csc, torch.sparse_bsc):
            return value.ccol_indices(), value.row_indices(), value.values()
        if hasattr(value, "__tensor_flatten__"):  # made of others, as jagged ones are
            names, _ = value.__tensor_flatten__()
            return [getattr(value, name) for name in names]
        return (value.values(),) if value.is_nested else None
    if isinstance(value, dict):
        return dict.values(value)
    if isinstance(value, (tuple, list)) or (of_any and isinstance(value, (set, frozenset, deque))):
        return value
    # (Some mappings make their items when they are asked for them: what they hold is looked at.)
    is_looked_into = isinstance(value, Mapping) or hasattr(value, "to") or dataclasses.is_dataclass(value)
    if is_looked_into or (of_any and not is_constant(value)):
        return [part for _, part in attributes(value)]
    return ()
