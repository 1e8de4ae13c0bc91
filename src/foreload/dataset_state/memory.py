"""The owners of the memory of tensors, arrays and buffers.

Torch does not tell which array a tensor of ``torch.from_numpy()`` lies in, or which buffer one of
``torch.frombuffer()``. It keeps the object in the C++ function that releases it with the storage. Where, is not
documented, so it is looked for once per process; only storages that are released by the same code are read.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from array import array
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum, auto
from mmap import mmap
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from foreload._torch import address_of, storage_uses

__all__ = ["Owner", "chain", "is_foreign", "object_under", "owner_of", "uses_of_storage"]

# The words of a storage, and of what releases it, that are looked through.
_MOST_WORDS = 16


class Owner(Enum):
    """The owner of the memory of an array or a buffer.

    Nobody can write to memory of ``nobody``: a file that is mapped for reading.
    """

    itself = auto()
    nobody = auto()
    file = auto()
    unknown = auto()


def owner_of(memory: Any) -> Owner:
    """Tell to whom the memory belongs that an array or a buffer lies in, or what it is a view of.

    >>> owner_of(np.zeros(3)[1:]), owner_of(memoryview(b"abc")), owner_of(np.from_dlpack(np.zeros(3)))
    (<Owner.itself: 1>, <Owner.itself: 1>, <Owner.unknown: 4>)
    """
    is_private = False
    for memory in chain(memory):  # noqa: B020 (the last one is what all others lie in)
        is_private |= isinstance(memory, np.memmap) and memory.mode == "c"
    if isinstance(memory, mmap):
        with suppress(ValueError), memoryview(memory) as view:  # one that is closed
            if view.readonly:
                return Owner.nobody
            return Owner.itself if is_private else Owner.file
    if isinstance(memory, np.ndarray):
        return Owner.itself if memory.flags.owndata else Owner.unknown
    is_known = isinstance(memory, (np.void, torch.Tensor, bytes, bytearray, array))
    return Owner.itself if is_known else Owner.unknown


def chain(memory: Any) -> Iterator[Any]:
    """Yield an array or a buffer, what it is a view of, and so on."""
    while memory is not None:
        yield memory
        if isinstance(memory, memoryview):
            try:
                memory = memory.obj
            except ValueError:  # it has been released
                return
        elif isinstance(memory, (np.ndarray, np.void)) or type(memory).__name__ == "DummyArray":
            memory = memory.base  # (NumPy puts a DummyArray between an array and one of other strides.)
        else:
            return


def is_foreign(storage: torch.UntypedStorage) -> bool:
    """Whether torch has not allocated the memory of a storage."""
    if storage.nbytes() == 0 or storage.resizable():
        return False
    places = _places()  # (Memory of torch's that an array lies in, too, cannot be resized.)
    return places is None or _words(address_of(storage), places.release + 1)[places.release] != places.frees


def object_under(storage: torch.UntypedStorage) -> Any:
    """Return the array or buffer that a storage lies in; None: none, or it is not known.

    >>> array = np.zeros(3)
    >>> object_under(torch.from_numpy(array)[1:].untyped_storage()) is array
    True
    >>> object_under(torch.zeros(3).untyped_storage())
    """
    places = _places()
    if places is None:
        return None
    words = _words(address_of(storage), max(places.release, places.context) + 1)
    if words[places.release] != places.releases:
        return None
    context = _words(words[places.context], places.object + 4)
    if context[places.object + 2 :] not in places.codes:
        return None
    return ctypes.cast(context[places.object], ctypes.py_object).value


class _Places(NamedTuple):
    """The offsets within a storage at which the function that releases it is found.

    Attributes:
        release: the place of the address of a function among the words of a storage.
        context: that of the address of what the function is called with.
        object: the place, among the words there, of a function object of C++: of the Python object in it, after
            which come another word and the addresses of its code.
        releases: the address of the function.
        frees: the same for memory of torch's.
        codes: those addresses, for function objects that hold one Python object and nothing else.
    """

    release: int
    context: int
    object: int
    releases: int
    frees: int
    codes: frozenset[tuple[int, ...]]


_known: list[_Places] = []


def _places() -> _Places | None:
    """Return where the objects are found that some storages lie in; None: nowhere, or not at the same places."""
    if not _known:
        # (Within some modes of torch's, tensors have no memory; then it is tried again.)
        with suppress(OSError), open("/proc/self/mem", "rb", buffering=0) as file:
            _known.extend(_found(file.fileno()))
    return _known[0] if _known else None


def _found(file: int) -> Iterator[_Places]:
    arrays, buffers = [np.zeros(3) for _ in range(3)], [bytearray(8) for _ in range(3)]
    tensors = [*map(torch.from_numpy, arrays), *(torch.frombuffer(each, dtype=torch.uint8) for each in buffers)]
    trials = [_trials(file, tensor, owner) for tensor, owner in zip(tensors, [*arrays, *buffers], strict=True)]
    # One in memory of torch's, and one of another library's object.
    others = torch.zeros(3, device="cpu"), from_dlpack(arrays[0])
    own, other = (_read(file, address_of(tensor.untyped_storage()), _MOST_WORDS) for tensor in others)
    if len(own) != _MOST_WORDS or len(other) != _MOST_WORDS:
        return
    # (By chance, an address may be elsewhere too.)
    for place in set.intersection(*(set(trial) for trial in trials)):
        context, at = place
        codes = [trial[place] for trial in trials]
        releases = {code[0] for code in codes}
        of_arrays, of_buffers = {code[1:] for code in codes[:3]}, {code[1:] for code in codes[3:]}
        of_others = _read(file, other[context], _MOST_WORDS)[at + 2 : at + 4]
        is_clear = len(releases) == len(of_arrays) == len(of_buffers) == 1 and own[context - 1] not in releases
        if is_clear and of_others not in of_arrays | of_buffers:
            known = frozenset(of_arrays | of_buffers)
            yield _Places(context - 1, context, at, releases.pop(), own[context - 1], known)


def _trials(file: int, tensor: torch.Tensor, owner: Any) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return, by the places where an owner's address is found, the functions there: what releases it, its code."""
    storage = _read(file, address_of(tensor.untyped_storage()), _MOST_WORDS)
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for context, address in enumerate(storage[1:], 1):
        words = _read(file, address, _MOST_WORDS) if address % 8 == 0 else ()
        for at, word in enumerate(words[:-4]):
            if word == id(owner):
                found[context, at] = storage[context - 1], *words[at + 2 : at + 4]
    return found


def _read(file: int, address: int, count: int) -> tuple[int, ...]:
    """Return words of this process's memory, as many as there are."""
    try:
        text = os.pread(file, 8 * count, address)
    except (OSError, OverflowError):  # there is no memory
        return ()
    return struct.unpack(f"{len(text) // 8}Q", text[: len(text) // 8 * 8])


def _words(address: int, count: int) -> tuple[int, ...]:
    return tuple((ctypes.c_size_t * count).from_address(address))


def uses_of_storage(place: int) -> int:
    """Return how many references there are to a storage in C++, by its address; very many if that is not known.

    >>> tensor = torch.zeros(2); place = address_of(tensor.untyped_storage())
    >>> before = uses_of_storage(place); view = tensor[:1]
    >>> uses_of_storage(place) - before
    1
    """
    return int((storage_uses or _present_count)(place))


def _counted(place: int) -> int:
    # An object that is counted (c10::intrusive_ptr_target) begins with the address of its class' functions.
    return ctypes.c_uint32.from_address(place + ctypes.sizeof(ctypes.c_void_p)).value


def _finds_counts() -> bool:
    """Whether counts are found where they lie in torch 2.6 to 2.9."""
    tensor = torch.zeros(2, device="cpu")
    place = address_of(tensor.untyped_storage())
    alone = _counted(place)
    views = [tensor[:1], tensor[1:]]
    return 0 < alone < alone + len(views) == _counted(place)


_present_count = _counted if storage_uses is not None or _finds_counts() else lambda place: sys.maxsize
