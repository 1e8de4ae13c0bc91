"""The number of samples of a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["count_samples"]


def count_samples(batch: Any) -> int:
    """Count the samples of a batch: the rows of its first tensor or array, or the entries of a list of samples.

    >>> count_samples({"ids": torch.zeros(4, 9), "length": torch.zeros(4)}), count_samples(["a", "b", "c"])
    (4, 3)
    """
    found = _rows(batch)
    return 1 if found is None else found


def _rows(batch: Any) -> int | None:
    """Count the rows of a field of a batch; None if it has none, like a single number."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return (batch.size(0) if isinstance(batch, torch.Tensor) else len(batch)) if batch.ndim else None
    if isinstance(batch, torch.nn.utils.rnn.PackedSequence):
        return int(batch.batch_sizes[0])
    if isinstance(batch, Mapping):
        return _first(batch.values())
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _first(getattr(batch, field.name) for field in dataclasses.fields(batch))
    if isinstance(batch, (list, tuple)):
        return _rows_of_sequence(batch)
    if isinstance(batch, (str, bytes)) or not hasattr(batch, "__len__"):
        return None
    return len(batch)


def _first(fields: Any) -> int | None:
    return next((rows for field in fields if (rows := _rows(field)) is not None), None)


def _rows_of_sequence(batch: Any) -> int | None:
    # default_collate turns tuples into lists, so a list of tuples (or dicts) is taken for uncollated samples.
    if isinstance(batch, list) and batch and all(isinstance(sample, (tuple, Mapping)) for sample in batch):
        return len(batch)
    if type(batch) is tuple and batch and all(type(field) is tuple for field in batch):
        return len(batch[0])  # tuple(zip(*samples)), as is usual for detection
    rows = [_rows(field) for field in batch]
    kinds = {(field.ndim, field.dtype) if hasattr(field, "dtype") else type(field) for field in batch}
    if set(rows) <= {None} or (len(kinds) == 1 and len(set(rows)) > 1):
        return len(batch)  # numbers, texts, or tensors of different lengths: one for each sample
    return _first(batch)
