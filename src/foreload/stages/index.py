"""What a dataset is asked for: one sample, or something else that is its own affair."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["position_of"]


def position_of(index: Any) -> int | None:
    """Give the one sample that an index means; None for slices, masks, and arrays, also of one element.

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
