"""Values that a dataset makes when they are first needed, and that each copy of it makes for itself.

A file that is opened then is its own in each process. All else must be the same whichever sample is the first, or
copies of the dataset would go on from different values.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from foreload.cache.fingerprint.content import ContentPickler
from foreload.dataset_state.digest import checksum, digest
from foreload.dataset_state.handles import handle_kind, is_open, is_written
from foreload.dataset_state.probes.containers import ATOMS, Unordered
from foreload.dataset_state.probes.numbers import memory_of, spread
from foreload.dataset_state.probes.path import ValuePath
from foreload.dataset_state.sealed import is_made_of_samples, is_sealed
from foreload.dataset_state.walk import walk

__all__ = ["Fills", "content_of", "contents_of", "may_fill", "opens"]

# The numbers of a file that are read.
_MOST_PLACES = 16

_LOCKS = (type(threading.Lock()), type(threading.RLock()))

# Hashes of what has been made, by the place.
Fills = Mapping[ValuePath, bytes]

# What stands before the hash of what holds something open, and of what does not.
_OPEN, _CLOSED = b"o", b"c"


def contents_of(made: Iterable[tuple[ValuePath, Any]]) -> Fills:
    """Return hashes of what has been made; b"" for what each process opens for itself.

    >>> place = ValuePath((("dataset", 0),), "Attributes", "size", 0)
    >>> contents_of([(place, 3)]) == contents_of([(place, 3)])
    True
    >>> contents_of([(place, 3)]) == contents_of([(place, 4)])
    False
    """
    return {place: _known(value) for place, value in made}


def opens(fills: Fills) -> bool:
    """Whether loading opens a file or the like when it is first needed, by itself or within what it makes."""
    return not all(known.startswith(_CLOSED) for known in fills.values())


def may_fill(place: ValuePath, value: Any, fills: Fills) -> bool:
    """Whether a value may take the place of nothing.

    Args:
        place: where.
        value: it.
        fills: what is known to be made, whichever sample is the first.
    """
    known = _known(value)
    if place in fills or known:
        return fills.get(place) == known
    # Of several files in a container, perhaps only some were needed when it was measured.
    is_beside = any(other[:3] == place[:3] for other, made in fills.items() if not made)
    return is_beside and bool(handle_kind(value))


def _known(value: Any) -> bytes:
    if is_written(value):  # what one process writes is not what all would
        return os.urandom(16)
    if _is_opened(value):
        return b""
    opened = [each for _, each in walk(value) if is_open(each) or is_sealed(each)]
    if any(map(is_written, opened)):
        return os.urandom(16)
    return (_OPEN if opened else _CLOSED) + content_of(value)


def _is_opened(value: Any) -> bool:
    """Whether each process opens it (a file, a connection, another library's decoder), or tells which one did."""
    if type(value) is int and value == os.getpid():
        return True
    return bool(handle_kind(value)) or (is_sealed(value) and not is_made_of_samples(value))


def content_of(value: Any) -> bytes:
    if digest(value)[0] == "generator" or is_made_of_samples(value):  # which each use of it changes
        return os.urandom(16)
    known = hashlib.blake2b(digest_size=16)
    try:
        _Pickler(known).dump(value)
    except Exception:  # whatever pickling a user's object raises
        return os.urandom(16)
    return known.digest()


class _Pickler(ContentPickler):
    """A pickler that hashes objects for comparison; an object of which nothing is known equals no other."""

    def __init__(self, known: Any) -> None:
        super().__init__(_Written(known), protocol=5, buffer_callback=lambda part: known.update(part.raw()))

    def persistent_id(self, thing: Any) -> Any:
        if type(thing) in (set, frozenset):
            are_atoms = ATOMS.issuperset(map(type, thing))
            hashes: Any = map(repr if are_atoms else content_of, thing)
            return type(thing).__name__, sorted(hashes)
        if type(thing) is Unordered:
            return sorted(map(content_of, thing))
        return None

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, np.memmap):
            return str, (repr((str(thing.filename), thing.offset, thing.dtype, thing.shape, thing.strides)),)
        if type(thing) is np.ndarray and not thing.dtype.hasobject:
            return str, (_of_numbers(thing),)
        if isinstance(thing, (MappingProxyType, memoryview)):
            return str, ("view",), dict(thing) if isinstance(thing, MappingProxyType) else thing.tobytes()
        if isinstance(thing, torch.Generator) or is_made_of_samples(thing):
            return bytes, (os.urandom(16),)
        return super().reducer_override(thing)

    def of_tensor(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        with suppress(TypeError, RuntimeError):  # of a device, or a dtype that NumPy does not have
            return (_of_numbers(memory_of(tensor)),)
        return super().of_tensor(tensor)

    def of_failed(self, thing: Any, error: Exception) -> Any:
        if _is_opened(thing) or isinstance(thing, _LOCKS):
            return super().of_failed(thing, error)
        return bytes, (os.urandom(16),)


def _of_numbers(array: Any) -> str:
    """Return what tells numbers from others; of many, and those in files that are mapped, by some of them."""
    some = array[np.unravel_index(spread(array.size, _MOST_PLACES), array.shape)] if array.size else array
    return repr((array.dtype, array.shape, checksum(array), some.tobytes()))


class _Written:
    """A file that is hashed."""

    def __init__(self, known: Any) -> None:
        self.write = known.update
