"""Comparisons of one value with what it was before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, repeat
from operator import is_
from types import FunctionType, MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch

from foreload._torch import tensor_version
from foreload.dataset_state.digest import is_made
from foreload.dataset_state.sealed import is_made_of_samples
from foreload.dataset_state.walk import CONTAINERS
from foreload.datasets.mapped_files import mapping_of_large

__all__ = ["MISSING", "Attributes", "Contents", "Look", "Numbers", "Value", "Whole", "numbers_of"]

# Containers and arrays up to these sizes are compared as a whole; of larger ones, values at so many places, or in
# a file.
_MOST_ITEMS, _MOST_BYTES, _MOST_PLACES, _MOST_IN_FILE = 100_000, 1 << 18, 1_024, 16

# Larger lists are compared with less care for what is equal, but of another type.
_SHORT = 2_000

_PLAIN = (int, float, complex, str, bytes, type(None))

_NUMBERS = (int, float, complex)

MISSING = object()

IsSame = Callable[[], bool]


class Look(Protocol):
    """A look at something that may have been changed."""

    def changed(self) -> str | None:
        """Return the name of what is not the same as before; None if all is."""

    def is_filled(self, *, with_plain: bool) -> bool:
        """Whether all that has been changed was None or not there before.

        Args:
            with_plain: whether it may be text or a container now; a number may count something.
        """


@dataclass
class Whole:
    """A look at something that is the same or is not."""

    name: str
    is_same: IsSame

    def changed(self) -> str | None:
        return None if self.is_same() else self.name

    def is_filled(self, *, with_plain: bool) -> bool:
        return False


class Numbers:
    """A look at the numbers of a tensor or an array."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self._value = name, value
        self._note()

    def _note(self) -> None:
        self._before = _memory_of(self._value)
        self._are_same = list(numbers_of(self._value))

    def changed(self) -> str | None:
        return None if all(is_same() for is_same in self._are_same) else self.name

    def is_filled(self, *, with_plain: bool) -> bool:
        return False

    def sent(self) -> None:
        """Look again if nothing but sending the tensor has moved its memory to where processes share it."""
        before, now = self._before, _memory_of(self._value)
        if before is None or now is None or before[0] or not now[0]:
            return
        if now[1] is before[1] and now[2] == before[2]:
            self._note()


def _memory_of(value: Any) -> tuple[bool, Any, int | None] | None:
    """Return whether processes share a tensor's memory, and what has it, and what counts the tensor's changes."""
    if not isinstance(value, torch.Tensor):
        return None
    with suppress(Exception):  # of a layout without memory of its own
        return value.is_shared(), value.untyped_storage(), tensor_version(value)  # type: ignore[no-untyped-call]
    return None


class Value:
    """A look at one variable, attribute or slot, which ``get`` returns."""

    def __init__(self, name: str, get: Callable[[], Any]) -> None:
        self.name, self._get, self.before = name, get, get()

    def changed(self) -> str | None:
        return None if is_same(self._get(), self.before) else self.name

    def is_filled(self, *, with_plain: bool) -> bool:
        return _is_filled(self.before, self._get(), with_plain)


def _is_filled(before: Any, value: Any, with_plain: bool) -> bool:
    if is_same(value, before):
        return True
    kinds = _NUMBERS if with_plain else (*_PLAIN, *CONTAINERS, FunctionType)
    may_be = not isinstance(value, kinds)
    return (before is None or before is MISSING) and may_be and is_made(value) and not is_made_of_samples(value)


class Attributes:
    """A look at the attributes of an object."""

    def __init__(self, own: dict[str, Any]) -> None:
        self._own, self._names, self._values = own, list(own), list(own.values())

    def changed(self) -> str | None:
        """Return the name of an attribute that is not the same as before; None if all are."""
        own = self._own
        if list(own) == self._names and all(map(is_, own.values(), self._values)):
            return None
        return next((name for name, before, value in self._pairs() if not is_same(value, before)), None)

    def is_filled(self, *, with_plain: bool) -> bool:
        return all(_is_filled(before, value, with_plain) for _, before, value in self._pairs())

    def _pairs(self) -> Iterator[tuple[str, Any, Any]]:
        before = dict(zip(self._names, self._values, strict=True))
        for name in before | self._own:
            yield name, before.get(name, MISSING), self._own.get(name, MISSING)


def is_same(value: Any, before: Any) -> bool:
    return value is before or (type(value) is type(before) and isinstance(value, _PLAIN) and value == before)


def _are_same(values: list[Any], before: list[Any]) -> bool:
    return len(values) == len(before) and all(map(is_same, values, before))


class Contents:
    """A look at the values of a container, all of them if there are not too many."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self._value, self._size = name, value, len(value)
        self._places = _spread(len(value), _MOST_PLACES) if _is_long_sequence(value) else None
        self._before = self._items()

    def _items(self) -> tuple[Any, ...]:
        value = self._value
        if isinstance(value, set):
            return (set(value) if len(value) <= _MOST_ITEMS else None,)
        if isinstance(value, (dict, MappingProxyType)):
            return list(islice(value, _MOST_ITEMS)), list(islice(value.values(), _MOST_ITEMS))
        return (list(value) if self._places is None else [value[place] for place in self._places],)

    def changed(self) -> str | None:
        value, before = self._value, self._before
        if len(value) != self._size:
            return self.name
        if type(value) is list and self._places is None:
            return None if _are_items(value, before[0]) else self.name
        return None if all(map(_are_items, self._items(), before)) else self.name

    def is_filled(self, *, with_plain: bool) -> bool:
        if len(self._value) != self._size or isinstance(self._value, set):
            return False
        return all(
            len(one) == len(other) and all(map(_is_filled, other, one, repeat(with_plain)))
            for one, other in zip(self._items(), self._before, strict=True)
        )


def _is_long_sequence(value: Any) -> bool:
    return len(value) > _MOST_ITEMS and not isinstance(value, (dict, set, MappingProxyType))


def _are_items(values: Any, before: Any) -> bool:
    if not isinstance(before, list):
        return bool(values == before)
    if len(before) > _SHORT:
        try:
            return bool((values if type(values) is list else list(values)) == before)
        except Exception:  # a comparison of the user's objects may raise anything
            return False
    return all(map(is_, values, before)) or _are_same(list(values), before)


def numbers_of(value: Any) -> Iterator[IsSame]:
    """Compare the numbers of a tensor or an array, all of them unless they are many."""
    numbers: Any = value
    if isinstance(value, torch.Tensor):
        version, place = tensor_version(value), _place(value)
        yield lambda: bool(tensor_version(value) == version and _place(value) == place)
        try:
            numbers = value.detach().numpy()
        except (TypeError, RuntimeError):  # of a device, or a layout or dtype that NumPy does not have
            return
    if not numbers.size:
        return
    if numbers.dtype.hasobject:
        if numbers.size <= _MOST_ITEMS:
            items = numbers.ravel().tolist()
            yield lambda: _are_items(numbers.ravel().tolist(), items)
        return
    in_file = isinstance(numbers, np.memmap) or isinstance(numbers.base, np.memmap)
    numbers = np.asarray(numbers)  # views of masked arrays cannot have another dtype
    if in_file and not numbers.flags.writeable:
        return
    if (file := mapping_of_large(numbers)) is not None:
        in_file = True
        if not file.writable:
            return
    if numbers.nbytes <= _MOST_BYTES and numbers.flags.c_contiguous and not in_file:
        flat = numbers.reshape(-1).view(np.uint8)
        before = flat.tobytes()  # (Most are small, and then this takes a fraction of what np.array_equal() does.)
        yield lambda: bool(flat.tobytes() == before)
        return
    places = np.array(_spread(numbers.size, _MOST_IN_FILE if in_file else _MOST_PLACES))
    at = np.unravel_index(places, numbers.shape)
    some = numbers[at].tobytes()
    yield lambda: bool(numbers[at].tobytes() == some)


def _place(tensor: torch.Tensor) -> int:
    """Return where a tensor's memory is, which is elsewhere when its ``data`` has been set."""
    try:
        return tensor.data_ptr()
    except RuntimeError:  # of a layout without memory of its own
        return 0


def _spread(size: int, most: int) -> list[int]:
    """Return places all over a sequence."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).astype(np.int64)).tolist() if size else []
