"""The tensors and samples of a batch, however it is nested."""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections import UserDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np
import torch

from foreload._torch import coo_parts

__all__ = ["bytes_of", "count_samples", "move", "snapshot", "tensors"]


def bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """View the memory of a contiguous CPU tensor as bytes.

    Raises:
        ValueError: it is not contiguous.

    >>> bytes_of(torch.arange(4, dtype=torch.uint8)[None].t()).tolist()
    [0, 1, 2, 3]
    """
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor with strides {tensor.stride()} is not contiguous, as its bytes are to be")
    # The stride of a dimension of length 1 may be anything, and view() would keep it.
    memory: np.ndarray[Any, Any] = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return memory


def move(batch: Any, copy_one: Callable[[Any], Any]) -> Any:
    """Return a batch with ``copy_one`` applied to its tensors, and to objects that have ``.to``.

    Tuples, named tuples, lists, mappings and dataclasses keep their type. A tensor that occurs twice is copied
    once. Arrays, sets and the like that may be written to are copied as they are now; anything else is the same.

    >>> move({"x": [torch.zeros(2)], "name": "cat"}, lambda tensor: tensor + 1)
    {'x': [tensor([1., 1.])], 'name': 'cat'}
    """
    return _move(batch, copy_one, {})


def _move(value: Any, copy_one: Callable[[Any], Any], done: dict[int, Any]) -> Any:
    if isinstance(value, (type, str, bytes, int, float, complex)) or value is None:
        return value
    if isinstance(value, torch.Tensor) or (
        callable(getattr(value, "to", None)) and not isinstance(value, UserDict)
    ):
        if id(value) not in done:
            # The `.to` of many objects changes the object, and the source is still needed.
            moved = copy_one(value if isinstance(value, torch.Tensor) else copy.copy(value))
            # The original is kept too: some mappings make a tensor when it is asked for, and the next one would
            # get its id.
            done[id(value)] = moved, value
        return done[id(value)][0]
    if isinstance(value, (tuple, list)):
        items = [_move(item, copy_one, done) for item in value]
        return items if type(value) is list else _like(value, items)
    if isinstance(value, np.ndarray):
        return value.copy(order="K") if value.flags.writeable else value
    if isinstance(value, (set, deque, bytearray)):
        return copy.copy(value)
    if isinstance(value, Mapping):
        moved = {name: _move(item, copy_one, done) for name, item in value.items()}
        if type(value) is dict:
            return moved
        if not isinstance(value, MutableMapping):
            return _like(value, moved)
        other = copy.copy(value)
        for name, item in moved.items():  # the update() of transformers' ModelOutput raises an error
            other[name] = item
        return other
    if dataclasses.is_dataclass(value):
        return _copied_fields(value, lambda field: _move(field, copy_one, done))
    return value


def _copied_fields(value: Any, copied: Callable[[Any], Any]) -> Any:
    """Return a dataclass's object with all fields copied; one that has not been set stays so."""
    instance: Any = copy.copy(value)
    for field in dataclasses.fields(value):
        if hasattr(value, field.name):
            object.__setattr__(instance, field.name, copied(getattr(value, field.name)))
    return instance


def _like(value: Any, items: Any) -> Any:
    if isinstance(value, list):  # which may have attributes too
        other = copy.copy(value)
        other[:] = items
        return other
    if isinstance(value, tuple):
        return _tuple_like(value, items)
    try:
        return type(value)(items)
    except TypeError:
        return items


def _tuple_like(value: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    """Return a tuple of the same class with other items, and the same attributes."""
    kind = type(value)
    try:
        # The constructor of a user's class, as of a named tuple, may take other arguments.
        copied = tuple.__new__(kind, items)
    except TypeError:  # of a class that is written in C
        copied = kind(items)
    if hasattr(value, "__dict__"):
        vars(copied).update(vars(value))
    return copied


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
    return _snapshot(value, _Copies([] if others is None else others))


class _Copies(dict[int, Any]):
    """Copies and their originals, by the identity of the original: another object must not get that meanwhile."""

    def __init__(self, others: list[Any]) -> None:
        self.others = others


# Types, and modules, whose objects do not change.
_CONSTANTS: Any = (enum.Enum, FunctionType, BuiltinFunctionType, ModuleType, range, slice, type(...), np.dtype)
_CONSTANTS += (torch.dtype, torch.device, torch.layout, torch.memory_format)
_OF_CONSTANTS = {"datetime", "decimal", "fractions", "ipaddress", "pathlib", "re", "uuid", "zoneinfo"}

_COPIED = (torch.Tensor, np.ndarray, list, set, deque, bytearray, tuple, MutableMapping)


def _snapshot(value: Any, done: _Copies) -> Any:
    kind = type(value)
    if kind is list and set(map(type, value)) <= {int, str, np.int64}:
        return list(value)
    if isinstance(value, (type, str, bytes, int, float, complex, np.generic)) or value is None:
        return value
    if id(value) not in done:
        done[id(value)] = _copied(value, done), value
    return done[id(value)][0]


def _copied(value: Any, done: _Copies) -> Any:
    if _has_more(value):
        done.others.append(value)
    if isinstance(value, torch.Tensor):
        return _copied_tensor(value)
    if isinstance(value, np.ndarray):
        return value.copy(order="K")
    if isinstance(value, (list, set, deque, bytearray)):
        copied = copy.copy(value)
        if isinstance(copied, (list, deque)):
            for position, item in enumerate(value):
                copied[position] = _snapshot(item, done)
        elif isinstance(copied, set):
            _note_others(value, done)
        return copied
    if isinstance(value, tuple):
        items = [_snapshot(item, done) for item in value]
        if all(copied is item for copied, item in zip(items, value, strict=True)):
            return value
        return _like(value, items)
    if isinstance(value, MutableMapping):
        mapping = copy.copy(value)
        for name, item in value.items():  # the update() of transformers' ModelOutput raises an error
            mapping[name] = _snapshot(item, done)
        _note_others(value, done)
        return mapping
    if dataclasses.is_dataclass(value):
        return _copied_fields(value, lambda field: _snapshot(field, done))
    if isinstance(value, frozenset):
        _note_others(value, done)
    elif not isinstance(value, _CONSTANTS) and type(value).__module__.partition(".")[0] not in _OF_CONSTANTS:
        done.others.append(value)
    return value


def _has_more(value: Any) -> bool:
    """Whether an object holds more than what is copied of it."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return True
    own = getattr(value, "__dict__", None)
    if not own:
        return False
    if isinstance(value, _COPIED):
        return not (isinstance(value, UserDict) and own.keys() == {"data"})
    return dataclasses.is_dataclass(value) and not own.keys() <= {
        field.name for field in dataclasses.fields(value)
    }


def _note_others(items: Iterable[Any], done: _Copies) -> None:
    """Note those keys, or members of a set, that are not copied and may change."""
    for item in items:
        _snapshot(item, done)


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


def tensors(batch: Any, *, of_any_object: bool = False) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch, each once, and those inside objects; of sparse and nested ones the parts.

    Args:
        batch: with tensors in containers, dataclasses, and attributes of objects that have ``.to``.
        of_any_object: look into the attributes of all other objects too, and into sets and deques.

    >>> [tensor.tolist() for tensor in tensors({"x": [torch.ones(1), 3]})]
    [[1.0]]
    """
    return _tensors(batch, of_any_object, {})


def _tensors(value: Any, of_any: bool, seen: dict[int, Any]) -> Iterator[torch.Tensor]:
    if isinstance(value, (type, str, bytes, int, float, complex)) or value is None or id(value) in seen:
        return
    seen[id(value)] = value  # kept, since what a mapping makes when it is asked for could get its id
    if isinstance(value, torch.Tensor):
        if value.layout is torch.sparse_coo:
            yield from coo_parts(value)
        elif value.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield from (value.crow_indices(), value.col_indices(), value.values())
        elif value.layout in (torch.sparse_csc, torch.sparse_bsc):
            yield from (value.ccol_indices(), value.row_indices(), value.values())
        elif hasattr(value, "__tensor_flatten__"):  # made of others, as jagged ones are
            names, _ = value.__tensor_flatten__()
            for name in names:
                yield from _tensors(getattr(value, name), of_any, seen)
        elif value.is_nested:
            yield value.values()
        else:
            yield value
        return
    if isinstance(value, Mapping):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, (tuple, list)) or (of_any and isinstance(value, (set, frozenset, deque))):
        parts = value
    elif hasattr(value, "to") or dataclasses.is_dataclass(value) or (of_any and not isinstance(value, _CONSTANTS)):
        parts = _attributes(value)
    else:
        return
    for part in parts:
        yield from _tensors(part, of_any, seen)


def _attributes(value: Any) -> Iterator[Any]:
    """Yield what an object holds in its ``__dict__`` and slots."""
    yield from list(getattr(value, "__dict__", {}).values())
    for kind in type(value).__mro__:
        for member in vars(kind).values():  # the names in __slots__ may be one string, or private to the class
            if isinstance(member, MemberDescriptorType):
                with suppress(AttributeError):  # it has not been set
                    yield member.__get__(value)


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
        return int(batch.shape[0]) if batch.ndim else None
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
    kinds = {(field.ndim, field.dtype) if hasattr(field, "ndim") else type(field) for field in batch}
    if set(rows) <= {None} or (len(kinds) == 1 and len(set(rows)) > 1):
        return len(batch)  # numbers, texts, or tensors of different lengths: one for each sample
    return _first(batch)
