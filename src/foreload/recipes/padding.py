"""Token sequences and other rows of numbers, padded to the longest of a batch."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from foreload.batch.collate import new_tensor
from foreload.nested.tensors import is_masked_array

__all__ = ["as_numbers", "is_row", "is_sequence", "of_one_type", "pad", "read_labels", "read_tokens"]


def as_numbers(value: Any, position: int, what: str = "") -> torch.Tensor:
    """Return a value of a sample as a tensor.

    Args:
        value: a tensor, an array or a list of numbers.
        position: of the sample in the batch.
        what: the value's name, for the error; "": it is the sample.

    Raises:
        TypeError: it is no such value, or torch has no type for its numbers.
    """
    if is_masked_array(value) and np.ma.is_masked(value):
        problem = "some of it is masked; fill that in the dataset, by .filled(...)"
    else:
        try:
            return torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            is_large = "Overflow" in str(error)
            problem = (
                "int64 does not hold one of its numbers; convert them in the dataset" if is_large else str(error)
            )
            if isinstance(value, list) and any(isinstance(part, (torch.Tensor, np.ndarray)) for part in value):
                problem += "; a tensor and its target must be a tuple, not a list"
    raise TypeError(
        f"sample {position} of the batch{what and f': {what}'} must be a tensor, an array or a list of numbers, "
        f"got {type(value).__name__}: {problem}"
    )


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
    tokens = named["input_ids"]
    ids = as_numbers(tokens, position, "input_ids") if is_sequence(tokens) else None
    if ids is None or ids.ndim != 1 or ((ids.is_floating_point() or ids.is_complex()) and len(ids)):
        shown = "" if ids is None else f" of the shape {tuple(ids.shape)} and {ids.dtype}"
        raise TypeError(
            f"sample {position} of the batch: tokens must be a list of ints or a 1-D tensor of them, got "
            f"{type(sample).__name__}{shown}; tokenize texts in the dataset"
        )
    mask = as_numbers(named.get("attention_mask", torch.ones(len(ids))), position, "attention_mask")
    if mask.shape != ids.shape:
        raise ValueError(
            f"sample {position} of the batch: attention_mask has {mask.numel()} entries for {len(ids)} tokens"
        )
    if not _is_equal(mask, mask.to(torch.int64)) or mask.isnan().any():
        raise ValueError(
            f"sample {position} of the batch: attention_mask must be of ints, as 1 for a token and 0 for padding"
        )
    others = {name: value for name, value in named.items() if name not in ("input_ids", "attention_mask")}
    return {"input_ids": _to_int64(ids, position), "attention_mask": mask.to(torch.int64), **others}


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


def read_labels(value: Any, position: int) -> torch.Tensor:
    """Return the labels of a sample's tokens as int64, or as the floats that they are; ``[]`` is int64."""
    labels = as_numbers(value, position, "labels")
    is_bare = isinstance(value, (list, tuple)) and not value
    return labels if labels.is_floating_point() and not is_bare else _to_int64(labels, position)


def _to_int64(numbers: torch.Tensor, position: int) -> torch.Tensor:
    whole = numbers.to(torch.int64)
    if numbers.dtype is torch.uint64 and (whole < 0).any():
        largest = max(numbers.view(-1).tolist())
        raise ValueError(f"sample {position} of the batch: int64 does not hold a token or label, {largest}")
    return whole


def of_one_type(tensors: Sequence[torch.Tensor], what: str = "its sequence") -> list[torch.Tensor]:
    """Convert tensors to their common dtype; an empty one has no say, as that of ``[]`` is float32 by chance.

    Raises:
        ValueError: torch has no common dtype, or it does not hold a number of one of them.
    """
    kinds = [tensor.dtype for tensor in tensors if tensor.numel()] or [tensor.dtype for tensor in tensors]
    try:
        kind = functools.reduce(torch.promote_types, kinds)
    except RuntimeError:
        names = ", ".join(sorted({str(kind) for kind in kinds}))
        raise ValueError(f"{what} has types without a common one: {names}; give all of them one type") from None
    converted = [tensor.to(kind) for tensor in tensors]
    for position, (given, tensor) in enumerate(zip(tensors, converted, strict=True)):
        if given.dtype is not kind and not _is_equal(given, tensor):
            raise ValueError(
                f"sample {position} of the batch: {what} is {given.dtype}, and {kind}, the type of all together, "
                "does not hold one of its numbers; give all of them one type"
            )
    return converted


def _is_equal(given: torch.Tensor, converted: torch.Tensor) -> bool:
    if converted.is_complex() and not given.is_complex():
        converted = converted.real
    back = converted.to(given.dtype)
    return bool(((back == given) | (given != given)).all())


def pad(sequences: Sequence[torch.Tensor], value: float) -> torch.Tensor:
    """Pad tensors of one dtype."""
    first = sequences[0]
    longest = max(map(len, sequences))
    padded = new_tensor((len(sequences), longest, *first.shape[1:]), first.dtype)
    # (Rows that are iterated over may not be written to where there is a gradient.)
    for row, sequence in enumerate(sequences):
        padded[row, : len(sequence)] = sequence
        padded[row, len(sequence) :] = value
    return padded
