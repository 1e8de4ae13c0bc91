"""Token sequences and other rows of numbers, padded to the longest of a batch."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from foreload.batch.collate import new_tensor

__all__ = ["is_row", "is_sequence", "of_one_type", "pad", "read_labels", "read_tokens"]


def read_tokens(sample: Any, position: int) -> dict[str, Any]:
    """Return a sample as a dict, with its tokens and their mask as 1-D int64 tensors."""
    if hasattr(sample, "ids") and hasattr(sample, "attention_mask"):  # an encoding of the tokenizers library
        sample = {"input_ids": sample.ids, "attention_mask": sample.attention_mask}
    if isinstance(sample, Mapping):
        if "input_ids" not in sample:
            raise TypeError(f"sample {position} of the batch: a dict needs input_ids, has {', '.join(sample)}")
        named = {("labels" if name == "label" else name): value for name, value in sample.items()}
        if len(named) < len(sample):
            raise ValueError(f"sample {position} of the batch has both 'label' and 'labels'; leave one out")
    elif isinstance(sample, (tuple, list)) and len(sample) == 2 and is_sequence(sample[0]):
        named = {"input_ids": sample[0], "labels": sample[1]}
    else:
        named = {"input_ids": sample}
    ids = torch.as_tensor(named["input_ids"]) if is_sequence(named["input_ids"]) else None
    if ids is None or ids.ndim != 1 or ((ids.is_floating_point() or ids.is_complex()) and len(ids)):
        raise TypeError(
            f"sample {position} of the batch: tokens must be a list of ints or a 1-D tensor of them, got "
            f"{type(sample).__name__}; tokenize texts in the dataset"
        )
    mask = torch.as_tensor(named.get("attention_mask", torch.ones(len(ids))))
    if mask.shape != ids.shape:
        raise ValueError(
            f"sample {position} of the batch: attention_mask has {mask.numel()} entries for {len(ids)} tokens"
        )
    others = {name: value for name, value in named.items() if name not in ("input_ids", "attention_mask")}
    return {"input_ids": _to_int64(ids), "attention_mask": mask.to(torch.int64), **others}


def is_sequence(value: Any) -> bool:
    """Whether a value is a list or tuple of ints, or a tensor or array with rows."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value.ndim > 0
    return isinstance(value, (list, tuple)) and all(isinstance(item, (int, np.integer)) for item in value)


def is_row(value: Any) -> bool:
    """Whether a value is a list or tuple of numbers, or a tensor or array of one dimension."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value.ndim == 1
    return isinstance(value, (list, tuple)) and all(isinstance(item, (int, float, np.number)) for item in value)


def read_labels(value: Any) -> torch.Tensor:
    """Return the labels of a sample's tokens as int64, or as the floats that they are; ``[]`` is int64."""
    labels = torch.as_tensor(value)
    is_bare = isinstance(value, (list, tuple)) and not value
    return labels if labels.is_floating_point() and not is_bare else _to_int64(labels)


def _to_int64(numbers: torch.Tensor) -> torch.Tensor:
    whole = numbers.to(torch.int64)
    if numbers.dtype is torch.uint64 and (whole < 0).any():
        raise ValueError(f"int64 does not hold a token or label of the batch, of 2**63 or more: {numbers!r:.80}")
    return whole


def of_one_type(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Convert tensors to their common dtype; an empty one has no say, as that of ``[]`` is float32 by chance."""
    kinds = [tensor.dtype for tensor in tensors if tensor.numel()] or [tensor.dtype for tensor in tensors]
    kind = functools.reduce(torch.promote_types, kinds)
    return [tensor.to(kind) for tensor in tensors]


def pad(sequences: Sequence[torch.Tensor], value: float) -> torch.Tensor:
    """Pad tensors of one dtype."""
    first = sequences[0]
    longest = max(map(len, sequences))
    padded = new_tensor((len(sequences), longest, *first.shape[1:]), first.dtype)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
        row[len(sequence) :] = value
    return padded
