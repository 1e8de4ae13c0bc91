"""Copies of batches that do not change with the original."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from foreload.nested.containers import is_container, rebuilt
from foreload.nested.tensors import CONSTANTS

__all__ = ["snapshot"]

_OF_CONSTANTS = {"datetime", "decimal", "fractions", "ipaddress", "pathlib", "re", "uuid", "zoneinfo"}


def snapshot(value: Any, others: list[Any] | None = None) -> Any:
    """Return a copy that does not change with the original: with its containers, tensors, arrays and dataclasses.

    Objects of other classes are the same in both. Tensors keep their strides; what occurs twice is copied once.

    Args:
        value: what to copy.
        others: the list for what was not copied, or not with all that belongs to it, and may change.

    >>> scratch = [torch.zeros(1), [7]]
    >>> copied = snapshot(scratch)
    >>> scratch[0][:] = 1; scratch[1].clear()
    >>> copied
    [tensor([0.]), [7]]
    """
    return _copied(value, _Copies([] if others is None else others))


class _Copies(dict[int, Any]):
    """Copies and their originals, by the identity of the original: another object must not get that meanwhile."""

    def __init__(self, others: list[Any]) -> None:
        self.others = others


def _copied(value: Any, done: _Copies) -> Any:
    kind = type(value)
    if kind is list and set(map(type, value)) <= {int, str, np.int64}:
        return list(value)
    if isinstance(value, (type, str, bytes, int, float, complex, np.generic)) or value is None:
        return value
    if id(value) not in done:

        def begun(copied: Any) -> None:
            done[id(value)] = copied, value

        copied = _copied_anew(value, done, begun)
        if id(value) not in done:
            begun(copied)
    return done[id(value)][0]


def _copied_anew(value: Any, done: _Copies, begun: Callable[[Any], None]) -> Any:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        if getattr(value, "__dict__", None) or (isinstance(value, np.ndarray) and value.dtype.hasobject):
            done.others.append(value)
        return _copied_tensor(value) if isinstance(value, torch.Tensor) else value.copy(order="K")
    if is_container(value):
        return rebuilt(value, lambda item: _copied(item, done), begun)
    if type(value) is frozenset:
        for member in value:
            _copied(member, done)  # which notes those that may change
    elif not isinstance(value, CONSTANTS) and type(value).__module__.partition(".")[0] not in _OF_CONSTANTS:
        done.others.append(value)
    return value


def _copied_tensor(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.requires_grad and tensor.is_leaf:
        return copy.deepcopy(tensor)
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.requires_grad:
        return tensor.clone()
    if tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.numel() == 0:
        return tensor.clone()
    span = 1 + sum((side - 1) * step for side, step in zip(tensor.shape, tensor.stride(), strict=True))
    if span > 8 * tensor.numel() and span * tensor.element_size() > 1 << 20:
        return tensor.clone()  # nearly all would be gaps
    storage = tensor.as_strided((span,), (1,)).clone().untyped_storage()
    fresh = torch.empty(0, dtype=tensor.dtype, device=tensor.device)  # which is no view, whatever the original is
    return fresh.set_(storage, 0, tensor.shape, tensor.stride())
