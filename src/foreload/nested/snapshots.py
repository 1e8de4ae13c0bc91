"""Copies of batches that do not change with the original."""

from __future__ import annotations

import copy
from collections import UserDict, UserList, deque
from typing import Any

import numpy as np
import torch

from foreload.nested.constants import is_constant
from foreload.nested.containers import is_container, rebuilt

__all__ = ["snapshot"]

_SIMPLE = frozenset({int, str, np.int64, np.float32, np.float64, np.bool_})
_REFILLED = (list, dict, set, deque, UserDict, UserList)
_UNCHANGING = frozenset({type(None), bool, float, bytes, *_SIMPLE})


def snapshot(value: Any, *, strict: bool = False) -> Any:
    """Return a copy that does not change with the original: with its containers, tensors and arrays.

    Objects of other classes, keys, attributes and the members of sets are the same in both. Tensors keep their
    strides; what occurs twice is copied once.

    Args:
        value: what to copy.
        strict: copy objects of built-in classes, tensors and arrays only, and leave nothing that may change.

    Raises:
        TypeError: ``strict``, and there is another object.

    >>> scratch = [torch.zeros(1), [7]]
    >>> copied = snapshot(scratch)
    >>> scratch[0][:] = 1; scratch[1].clear()
    >>> copied
    [tensor([0.]), [7]]
    """
    return value if type(value) in _UNCHANGING else _copied(value, _Copies(strict))


class _Copies(dict[int, Any]):
    """Copies and their originals, by the identity of the original: another object must not get that meanwhile."""

    def __init__(self, strict: bool) -> None:
        super().__init__()
        self.strict = strict


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
    copied = _copied_other(value, done)
    return done.setdefault(id(value), (copied, value))[0]


def _copied_other(value: Any, done: _Copies) -> Any:
    kind = type(value)
    if kind is torch.Tensor and not value.__dict__:
        return _copied_tensor(value)
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy(order="K")
    if kind is deque:
        return deque([_copied(item, done) for item in value], value.maxlen)
    if kind in (set, frozenset):
        for member in value:
            _copied(member, done)  # which raises if one may change, and none may
        return value if kind is frozenset else set(value)
    if issubclass(kind, tuple) and hasattr(kind, "_fields") and not getattr(value, "__dict__", None):
        parts = [_copied(item, done) for item in value]
        is_same = all(part is item for part, item in zip(parts, value, strict=True))
        return value if is_same else tuple.__new__(kind, parts)
    if kind is np.void and not value.dtype.hasobject:
        return value.copy()
    if done.strict:
        if is_constant(value):
            return value
        raise TypeError(f"a {kind.__name__} is copied by its own rules")

    def each(item: Any) -> Any:
        return _copied(item, done)

    def begun(copied: Any) -> None:
        done[id(value)] = copied, value

    def own(name: Any, item: Any) -> Any:
        return each(item) if name == "data" and isinstance(value, (UserDict, UserList)) else item

    # (What a sampler may fill again; other objects, and those that are known by their identity, are the same.)
    is_known_by_identity = getattr(kind, "__hash__", None) is getattr(object, "__hash__", None)
    if isinstance(value, _REFILLED) and is_container(value) and not is_known_by_identity:
        return rebuilt(value, each, begun, own)
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
