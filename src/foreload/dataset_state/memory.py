"""The memory that a dataset holds: where its arrays, tensors and buffers lie."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from mmap import mmap
from typing import Any

import numpy as np
import torch

from foreload._torch import coo_parts
from foreload.dataset_state.walk import walk

__all__ = ["BUFFERS", "OwnedMemory", "Span", "span_of", "storages_of"]

# The addresses of the first byte of some memory, and of the one after its last.
Span = tuple[int, int]

# What memory belongs to, beside tensors.
BUFFERS = (np.ndarray, bytearray, memoryview, mmap, array, torch.UntypedStorage)

# The most values of the dataset that are looked at: for each question, and for some of them.
_FEW_VALUES, _MOST_VALUES = 256, 2_000


class OwnedMemory:
    """The memory of the arrays, tensors and buffers that a dataset holds.

    A dataset may get others at any time, so they are looked for with each question: among those that are nearest
    to it, and with the first, second, fourth, eighth question and so on among more.

    Args:
        owners: the dataset and what is applied to its samples.

    >>> values = np.zeros(3)
    >>> memory = OwnedMemory([values])
    >>> memory.holds([span_of(values[2:])]), memory.holds([span_of(np.zeros(3))])
    (True, False)
    """

    def __init__(self, *owners: Any) -> None:
        self._owners = owners
        self._known: list[Span] = []
        self._num_asked = 0

    def holds(self, spans: Sequence[Span]) -> bool:
        """Whether some of the memory at several places is part of it."""
        self._num_asked += 1
        if self._num_asked & (self._num_asked - 1) == 0:
            self._known = list(self._spans(_MOST_VALUES))
            present = self._known
        else:
            present = [*self._known, *self._spans(_FEW_VALUES)]
        return any(first < end and begin < last for first, last in present for begin, end in spans)

    def _spans(self, most: int) -> Iterator[Span]:
        for owner in self._owners:
            for _, value in islice(walk(owner, None, most), most):
                if isinstance(value, torch.Tensor):
                    yield from map(span_of, storages_of(value))
                elif isinstance(value, np.ndarray) and value.dtype == object:
                    yield from (span_of(part) for part in value.flat[:most] if isinstance(part, np.ndarray))
                elif isinstance(value, BUFFERS):
                    yield span_of(value)


def span_of(memory: Any) -> Span:
    """Return where an array, a storage or a buffer lies; (0, 0) if it is empty, closed or in pieces."""
    if isinstance(memory, torch.UntypedStorage):
        return memory.data_ptr(), memory.data_ptr() + memory.nbytes()
    if not isinstance(memory, np.ndarray):
        try:
            memory = np.frombuffer(memory, np.uint8)
        except (ValueError, BufferError):
            return 0, 0
    if memory.size == 0:
        return 0, 0
    steps = [(side - 1) * stride for side, stride in zip(memory.shape, memory.strides, strict=True)]
    first, before = memory.ctypes.data, sum(step for step in steps if step < 0)
    return first + before, first + sum(steps) - before + memory.itemsize


def storages_of(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """Return the memory of the tensors that a tensor consists of: of itself, or of those of a sparse one."""
    if tensor.device.type != "cpu" or tensor.is_nested:
        return []
    if tensor.layout is torch.strided:
        return [tensor.untyped_storage()]
    parts_of = _SPARSE.get(tensor.layout)
    return [] if parts_of is None else [part.untyped_storage() for part in parts_of(tensor)]


# The tensors that a sparse one consists of.
_SPARSE: dict[torch.layout, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    torch.sparse_coo: coo_parts,
    torch.sparse_csr: lambda tensor: (tensor.crow_indices(), tensor.col_indices(), tensor.values()),
    torch.sparse_bsr: lambda tensor: (tensor.crow_indices(), tensor.col_indices(), tensor.values()),
    torch.sparse_csc: lambda tensor: (tensor.ccol_indices(), tensor.row_indices(), tensor.values()),
    torch.sparse_bsc: lambda tensor: (tensor.ccol_indices(), tensor.row_indices(), tensor.values()),
}
