"""Probes of the numbers of tensors and arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from foreload._torch import tensor_version
from foreload.checks import Array
from foreload.dataset_state.probes.probe import IsSame, is_same
from foreload.dataset_state.probes.writes import MIN_WATCHED_BYTES, Unwritten
from foreload.datasets.mapped_files import mapping_of_large

__all__ = ["Numbers", "Room", "compare_numbers", "is_of_compiler", "memory_of", "objects_in", "spread"]

# Numbers that take so many bytes are compared as a whole; of more, those at so many places, or in a file.
_MOST_BYTES, _MOST_PLACES, _MOST_IN_FILE = 1 << 24, 1_024, 16

# The bytes of all arrays and tensors that are copied; of more, some numbers are compared, unless the system tells
# whether they are written to, which takes 0.2 us for each MiB.
_MOST_COPIED, _MOST_WATCHED = 1 << 26, 1 << 29

# Up to these bytes a copy to compare with takes less than NumPy's comparison does.
_SHORT_BYTES = 1 << 16


class Room:
    """The bytes of numbers that may still be copied, to compare with later.

    Args:
        left: those bytes.
        watched: the bytes of other numbers, of which the system may be asked whether they are written to.
    """

    def __init__(self, left: int = _MOST_COPIED, watched: int = _MOST_WATCHED) -> None:
        self.left, self.watched = left, watched

    def take(self, size: int) -> bool:
        """Whether so many bytes may be copied; if so, fewer are left."""
        is_enough = size <= self.left
        self.left -= size if is_enough else 0
        return is_enough


class Numbers:
    """A probe of the numbers of a tensor or an array, and of whether a tensor without attributes has got some.

    Args:
        name: of what is probed.
        value: it.
        room: for copies of the numbers; where there is none, some are compared.
    """

    def __init__(self, name: str, value: Any, room: Room) -> None:
        self.name, self._value, self._room, self._taken = name, value, room, (0, 0)
        self._is_bare = isinstance(value, torch.Tensor) and not _attributes_of(value)
        self.renew()

    def renew(self) -> None:
        self._form, self._grad = _form_of(self._value), _grad_of(self._value)
        self._before = _whose_memory(self._value)
        room, (copied, watched) = self._room, self._taken
        room.left += copied
        room.watched += watched
        left, unwatched = room.left, room.watched
        self._are_same = list(compare_numbers(self._value, room))
        self._taken = left - room.left, unwatched - room.watched

    def begin(self) -> None:
        """Begin to look in a process that has been forked since."""
        for each in self._are_same:
            if isinstance(each, Unwritten):
                each.begin()

    def changed(self) -> str | None:
        if self._is_bare and self._value.__dict__ and (own := _attributes_of(self._value)):
            return own[0]
        if self._form != _form_of(self._value) or self._grad is not _grad_of(self._value):
            return self.name
        return None if all(is_same() for is_same in self._are_same) else self.name

    def made(self) -> None:
        return None

    def lacks(self, place: tuple[str, int]) -> bool:
        return False

    def add_to(self, references: Any) -> bool:
        return False

    def sent(self) -> None:
        """Look again if nothing but sending the tensor has moved its memory to where processes share it."""
        before, now = self._before, _whose_memory(self._value)
        if before is None or now is None or before[0] or not now[0]:
            return
        if now[1] is before[1] and now[2] == before[2]:
            self.renew()


def _form_of(value: Any) -> tuple[Any, ...]:
    """Return what says how the numbers of an array or a tensor are to be taken."""
    with suppress(Exception):  # whatever a class of the user's raises
        if isinstance(value, np.ndarray):
            return value.shape, value.strides, value.dtype, value.flags.writeable
        strides = value.stride() if value.layout is torch.strided and not value.is_nested else None
        return tuple(value.shape) if strides is not None else (), strides, value.dtype, value.requires_grad
    return ()


def _grad_of(value: Any) -> Any:
    with suppress(Exception):  # likewise
        return value.grad if isinstance(value, torch.Tensor) and value.is_leaf else None  # (to ask others warns)
    return None


def is_of_compiler(name: str) -> bool:
    """Whether an attribute of a tensor is one that ``torch.compile`` sets, by its name."""
    return name.startswith("_dynamo_")


def _attributes_of(tensor: torch.Tensor) -> list[str]:
    return [str(name) for name in tensor.__dict__ if not is_of_compiler(str(name))]


def _whose_memory(value: Any) -> tuple[bool, Any, int | None] | None:
    """Return whether processes share a tensor's memory, and what has it, and what counts the tensor's changes."""
    if not isinstance(value, torch.Tensor):
        return None
    with suppress(Exception):  # of a layout without memory of its own
        return value.is_shared(), value.untyped_storage(), tensor_version(value)  # type: ignore[no-untyped-call]
    return None


def compare_numbers(value: Any, room: Room) -> Iterator[IsSame]:
    """Compare the numbers of a tensor or an array, all of them unless they are many."""
    numbers: Any = value
    if isinstance(value, torch.Tensor):
        version, place = tensor_version(value), _place(value)
        yield lambda: bool(tensor_version(value) == version and _place(value) == place)
        try:
            numbers = memory_of(value)
        except (TypeError, RuntimeError):  # of a device, or a layout without memory of its own
            return
    if not numbers.size:
        return
    if numbers.dtype.hasobject:
        items = objects_in(numbers)
        yield lambda: len(now := objects_in(numbers)) == len(items) and all(map(is_same, now, items))
        return
    in_file = isinstance(numbers, np.memmap) or isinstance(numbers.base, np.memmap)
    numbers = np.asarray(numbers)  # views of masked arrays cannot have another dtype
    if in_file and not numbers.flags.writeable:
        return
    if (file := mapping_of_large(numbers)) is not None:
        in_file = True
        if not file.writable:
            return
    is_whole = numbers.nbytes <= _MOST_BYTES and not in_file and room.take(numbers.nbytes)
    if not in_file and not numbers.flags.c_contiguous:
        numbers = numbers.transpose(np.argsort(numbers.strides)[::-1])
    flat = numbers.reshape(-1).view(np.uint8) if numbers.flags.c_contiguous else None
    may_watch = not in_file and numbers.nbytes >= MIN_WATCHED_BYTES and not _is_page_locked(value)
    if is_whole:
        yield _all_of(numbers, flat, may_watch=may_watch)
        return
    is_watched = flat is not None and may_watch and numbers.nbytes <= room.watched
    room.watched -= numbers.nbytes if is_watched else 0
    some = partial(_some_of, numbers, _MOST_IN_FILE if in_file else _MOST_PLACES)
    yield some() if flat is None or not is_watched else Unwritten(flat, some, is_whole=False)


def _is_page_locked(value: Any) -> bool:
    """Whether a GPU may write to the memory of a tensor, which the system would not see."""
    uses_cuda: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return uses_cuda and isinstance(value, torch.Tensor) and value.is_pinned()


def _all_of(numbers: Array, flat: Array | None, *, may_watch: bool) -> IsSame:
    if flat is None:
        apart = numbers.tobytes()
        return lambda: bool(numbers.tobytes() == apart)
    if numbers.nbytes <= _SHORT_BYTES:
        before = flat.tobytes()
        return lambda: bool(flat.tobytes() == before)
    compared = partial(_words_of, flat)
    return Unwritten(flat, compared, is_whole=True) if may_watch else compared()


def _some_of(numbers: Array, most: int) -> IsSame:
    places = np.array(spread(numbers.size, most))
    at = np.unravel_index(places, numbers.shape)
    some = numbers[at].tobytes()
    return lambda: bool(numbers[at].tobytes() == some)


def objects_in(array: Array) -> list[Any]:
    """Return the values of an array with objects in it, of a structured one field by field."""
    if array.dtype.names is None:
        return array.ravel().tolist()
    return [value for name in array.dtype.names for value in objects_in(array[name])]


class _Memory:
    """The memory of a tensor as NumPy takes it; after its method ``numpy()`` a tensor could not be resized."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            "typestr": f"|V{size}",
        }


def memory_of(tensor: torch.Tensor) -> Array:
    """View the memory of a tensor as elements of so many bytes, of whatever dtype.

    Raises:
        TypeError: it lies on a device, or is of a layout without memory of its own.
        RuntimeError: likewise.

    >>> memory_of(torch.ones(2, 3, dtype=torch.bfloat16)).shape
    (2, 3)
    """
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_nested:
        raise TypeError("it has no memory that NumPy could take")
    if tensor.numel() == 0 or tensor.data_ptr() == 0:
        return np.empty(0, np.uint8)
    return np.asarray(_Memory(tensor.detach()))


def _words_of(flat: Array) -> IsSame:
    whole = flat.size // 8 * 8
    words, rest = flat[:whole].view(np.uint64), flat[whole:]
    before, before_rest = words.copy(), rest.tobytes()
    return lambda: np.array_equal(words, before) and bool(rest.tobytes() == before_rest)


def _place(tensor: torch.Tensor) -> int:
    """Return where a tensor's memory is, which is elsewhere when its ``data`` has been set."""
    try:
        return tensor.data_ptr()
    except RuntimeError:  # of a layout without memory of its own
        return 0


def spread(size: int, most: int) -> list[int]:
    """Return places all over a sequence."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).astype(np.int64)).tolist() if size else []
