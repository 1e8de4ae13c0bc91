"""The error for samples that ``default_collate`` cannot batch: it names the sample, its part and a remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from foreload._torch import torch_collate
from foreload.checks import fits_int64

__all__ = ["Unlike", "first_rounded", "first_unlike", "note_unlike"]

_TAKEN = (torch.Tensor, np.ndarray, np.number, np.bool_, int, float, str, bytes, Mapping)
_REMEDY = "convert it in the dataset or a transform, or give a collate_fn"


class Unlike(NamedTuple):
    """A sample that cannot be in a batch with the ones before it.

    Attributes:
        position: in the batch.
        problem: what it has, and what to do.
    """

    position: int
    problem: str


def note_unlike(error: BaseException, samples: Any, indices: Sequence[Any] | None = None) -> None:
    """Name the sample for which no batch was made, and what is wrong with it, in the traceback of the error.

    Args:
        error: of ``default_collate``.
        samples: of the batch.
        indices: of the samples, if they are known.
    """
    unlike = first_unlike(samples)
    if unlike is not None:
        # (Some may have been left out, so that the others moved.)
        which: Any = f"{unlike.position} of the batch"
        if indices is not None and len(indices) == len(samples):
            which = indices[unlike.position]
        error.add_note(f"foreload: sample {which}: {unlike.problem}")


def first_unlike(samples: Any) -> Unlike | None:
    """Find the sample that keeps ``default_collate`` from making a batch; None if nothing is wrong with any.

    >>> first_unlike([{"text": "a", "label": 1}, {"text": "b", "label": None}])
    Unlike(position=1, problem="['label'] is None; fill it in ..., or give a collate_fn")
    """
    try:
        return _first_unlike(list(samples), "")
    except Exception:  # samples may be objects that fail at anything, and there is an error to report already
        return None


def first_rounded(samples: Sequence[Any], batch: Any) -> int | None:
    """Return the position of a sample with a number that the batch does not hold; None if it holds all.

    Torch gives numbers of different types the type of all together, and float32 does not hold all of int64.

    >>> samples = [torch.tensor(0.5), torch.tensor(16_777_217)]
    >>> first_rounded(samples, torch.stack(samples))
    1
    """
    parts: list[int | None]
    if samples and isinstance(samples[0], (str, bytes)):
        return None  # a batch of texts is the list of them
    if isinstance(batch, Mapping):
        parts = [first_rounded([sample[key] for sample in samples], rows) for key, rows in batch.items()]
    elif isinstance(batch, torch.Tensor):
        is_mixed = len({getattr(value, "dtype", type(value)) for value in samples}) > 1
        parts = [i for i, value in enumerate(samples) if is_mixed and _is_rounded(value, batch.dtype)]
    elif _is_sequence(batch):
        parts = [
            first_rounded(values, rows) for values, rows in zip(zip(*samples, strict=True), batch, strict=True)
        ]
    else:
        parts = []
    return next((part for part in parts if part is not None), None)


def _first_unlike(values: list[Any], path: str) -> Unlike | None:
    """Look at what all samples have at one place, such as ``['image'][0]``."""
    what, first = path or "it", values[0] if values else ""
    if isinstance(first, (str, bytes)):
        return None  # a batch of texts is the list of them, whatever the others are
    for position, value in enumerate(values):
        if problem := _untaken(value):
            return Unlike(position, f"{what} is {problem}")
        if _kind(value) != _kind(first):
            return Unlike(
                position, f"{what} is a {_name(value)}, but a {_name(first)} in the first sample; {_REMEDY}"
            )
        if not _has_shape_of(first, value):
            return Unlike(
                position,
                f"{what} has {_shown(value)}, but {_shown(first)} in the first sample; make them alike in the "
                "dataset or a transform, or give a collate_fn (foreload.CustomCollateFn has some that pad)",
            )
    inside = list(first) if isinstance(first, Mapping) else range(len(first)) if _is_sequence(first) else []
    parts = (_first_unlike([value[key] for value in values], f"{path}[{key!r}]") for key in inside)
    return next((part for part in parts if part is not None), None)


def _untaken(value: Any) -> str:
    """Say what a value is of which no batch can be made, and what to do; empty if one can."""
    if value is None:
        return "None; fill it in the dataset or a transform, or give a collate_fn"
    if isinstance(value, np.void) and value.dtype.names is not None:
        return (
            "a row of a compound dtype; take its fields in a transform "
            "({name: row[name] for name in row.dtype.names}), or give a collate_fn"
        )
    if isinstance(value, int) and not fits_int64(value):
        return f"{value}, which does not fit into int64; {_REMEDY}"
    if isinstance(value, (np.ndarray, np.number)) and not _is_torchs(value.dtype):
        return f"of the dtype {value.dtype}, which torch does not have; {_REMEDY}"
    added = tuple(torch_collate.default_collate_fn_map)
    if isinstance(value, _TAKEN) or _is_sequence(value) or any(isinstance(value, kind) for kind in added):
        return ""
    return f"a {_name(value)}, of which no batch is made; {_REMEDY}"


def _is_torchs(dtype: np.dtype[Any]) -> bool:
    try:
        torch.from_numpy(np.empty(0, dtype))
    except (TypeError, ValueError):
        return False
    return True


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _kind(value: Any) -> Any:
    kinds = (torch.Tensor, np.ndarray, str, bytes, Mapping, Sequence, (int, float, np.number, np.bool_))
    return next((kind for kind in kinds if isinstance(value, kind)), type(value))


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _has_shape_of(first: Any, value: Any) -> bool:
    if isinstance(first, (torch.Tensor, np.ndarray)):
        return tuple(value.shape) == tuple(first.shape)
    if isinstance(first, Mapping):
        return all(key in value for key in first)  # more are left out
    return not _is_sequence(first) or len(value) == len(first)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"the keys {', '.join(map(repr, value)) or '(none)'}"
    return f"{len(value)} items" if _is_sequence(value) else f"the shape {tuple(value.shape)}"


def _is_rounded(value: Any, dtype: torch.dtype) -> bool:
    given = torch.as_tensor(value)
    kept = given.to(dtype).to(given.dtype)
    return not bool(((kept == given) | (given != given)).all())
