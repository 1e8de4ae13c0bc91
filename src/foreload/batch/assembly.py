"""Helpers for batch assemblies: counting samples, naming one that failed, and subsets."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from foreload.order.index import row_numbers
from foreload.protocol import Assembly, Batch

__all__ = ["SubsetAssembly", "count", "listed", "note_sample", "shown"]


def count(indices: Any) -> int:
    """Return the number of samples that the indices of a batch stand for; a single index stands for one.

    >>> count([3, 1]), count(torch.arange(4)), count(slice(0, 6, 2)), count("a key")
    (2, 4, 3, 1)
    """
    kind = type(indices)  # (of nearly all batches; the other checks take many times as long)
    if kind is list:
        return len(indices)
    if kind is int:
        return 1
    if isinstance(indices, (np.ndarray, torch.Tensor)):
        return math.prod(indices.shape)
    if isinstance(indices, Iterator):
        return operator.length_hint(indices, 1)
    if isinstance(indices, slice):
        return _count_slice(indices)
    return len(indices) if isinstance(indices, (list, tuple, set, frozenset, range)) else 1


def _count_slice(indices: slice) -> int:
    start, stop, step = indices.start or 0, indices.stop, indices.step or 1
    if stop is None or min(start, stop) < 0:
        return 1  # it depends on the dataset's length
    return len(range(start, stop, step))


def note_sample(error: BaseException, index: object, position: int) -> None:
    """Name the sample that failed in the traceback of its error."""
    error.add_note(f"foreload: while loading sample {index!r} (position {position} of its batch)")


def listed(indices: Any) -> Any:
    """Return the indices of a batch without NumPy: an array of them as a list, others as they are."""
    return indices.tolist() if isinstance(indices, np.ndarray) else indices


def shown(indices: object) -> str:
    """Return the indices of a batch as an error names them."""
    text = repr(listed(indices))
    return text if len(text) <= 200 else f"{text[:200]}..."


class SubsetAssembly:
    """The batches of torch's ``Subset`` of a dataset that has an assembly of its own."""

    def __init__(self, whole: Assembly, subset: Subset[Any]) -> None:
        self.depth = whole.depth
        self._whole = whole
        self._subset = subset

    def start(self, indices: Any) -> Batch:
        """See :class:`~foreload.protocol.Assembly`."""
        # As they are now: the loop may change them.
        known: Any = self._subset.indices
        rows = row_numbers(indices) if isinstance(known, (np.ndarray, torch.Tensor)) else None
        return self._whole.start([known[index] for index in indices] if rows is None else known[rows])
