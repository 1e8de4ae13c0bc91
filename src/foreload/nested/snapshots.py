"""Copies of batches that do not change with the original."""

from __future__ import annotations

import copy
import enum
from collections import deque
from collections.abc import Iterable, MutableMapping
from typing import Any

import numpy as np
import torch

from foreload.nested.containers import is_container, rebuilt, rebuilt_tuple
from foreload.nested.own_means import copied_by_itself, has_fields, with_other_fields
from foreload.nested.tensors import is_constant

__all__ = ["snapshot"]

_SIMPLE = frozenset({int, str, np.int64})
_UNCHANGING = frozenset({type(None), bool, float, bytes, *_SIMPLE})
_OF_CONSTANTS = {"datetime", "decimal", "fractions", "ipaddress", "pathlib", "re", "uuid", "zoneinfo"}


def snapshot(value: Any, others: list[Any] | None = None) -> Any:
    """Return a copy that does not change with the original: with its containers, tensors, arrays and dataclasses.

    Objects of other classes, keys and the members of sets are the same in both. Tensors keep their strides; what
    occurs twice is copied once.

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
    if kind in _UNCHANGING:
        return value
    if (found := done.get(id(value))) is not None:
        return found[0]
    # (These with as few calls as possible: they are nested the most deeply.)
    if kind is list:
        items: list[Any] = []
        done[id(value)] = items, value
        if set(map(type, value)) <= _SIMPLE:
            items.extend(value)
        else:
            for item in value:
                items.append(_copied(item, done))  # noqa: PERF401 (a comprehension would be one more call)
        return items
    if kind is dict:
        fields: dict[Any, Any] = {}
        done[id(value)] = fields, value
        for name, item in value.items():
            if type(name) is not str:
                _copied(name, done)
            fields[name] = _copied(item, done)
        return fields
    if kind is tuple:
        parts = []
        for item in value:
            parts.append(_copied(item, done))  # noqa: PERF401 (as above)
        is_same = all(part is item for part, item in zip(parts, value, strict=True))
        return done.setdefault(id(value), (value if is_same else tuple(parts), value))[0]
    if isinstance(value, (type, str, bytes, int, float, complex, np.generic, enum.Enum)):
        return value
    copied = _copied_other(value, done)
    return done.setdefault(id(value), (copied, value))[0]


def _copied_other(value: Any, done: _Copies) -> Any:
    def begun(copied: Any) -> None:
        done[id(value)] = copied, value

    def each(item: Any) -> Any:
        return _copied(item, done)

    if isinstance(value, (torch.Tensor, np.ndarray)):
        if getattr(value, "__dict__", None) or (isinstance(value, np.ndarray) and value.dtype.hasobject):
            done.others.append(value)
        return _copied_tensor(value) if isinstance(value, torch.Tensor) else value.copy(order="K")
    if is_container(value):
        if isinstance(value, (dict, set)):
            _note(value, done)
        return rebuilt(value, each, begun)
    if issubclass(type(value), tuple):
        return rebuilt_tuple(value, each)
    if type(value) is frozenset:
        _note(value, done)
        return value
    if is_constant(value) or type(value).__module__.partition(".")[0] in _OF_CONSTANTS:
        return value
    return _copied_by_its_rules(value, done)


def _copied_by_its_rules(value: Any, done: _Copies) -> Any:
    copied: Any = None
    if isinstance(value, (MutableMapping, list, deque)):
        copied = copied_by_itself(value, lambda item: _copied(item, done))
    elif has_fields(value):
        copied = with_other_fields(value, lambda field: _copied(field, done))
    if copied is None or (copied is not value and getattr(value, "__dict__", None)):
        done.others.append(value)
    return value if copied is None else copied


def _note(keys: Iterable[Any], done: _Copies) -> None:
    """Note those keys, or members of a set, that may change."""
    for key in dict.__iter__(keys) if isinstance(keys, dict) else keys:
        _copied(key, done)


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
