"""Objects of libraries whose state no attribute shows: it is kept in C or Rust, or in the frame of a coroutine."""

from __future__ import annotations

import copyreg
import ctypes
import functools
import io
import mmap
import pickle
import struct
import sys
import threading
import types
import weakref
from array import array
from contextvars import ContextVar
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import numpy as np
import torch

from foreload.checks import module_of, optional, package_of
from foreload.dataset_state.handles import is_open
from foreload.dataset_state.installed import is_installed
from foreload.dataset_state.walk import CONTAINERS, leaves, walk

__all__ = ["SEALED", "TOO_LARGE", "UNTOLD", "find_sealed", "is_made_of_samples", "is_sealed", "pickled_state"]

# States: of an object that nothing tells of, and of one that takes more bytes than are compared.
SEALED, TOO_LARGE = b"sealed", b""

_MOST_BYTES = 1 << 16

# Why copies of a dataset might load other samples.
UNTOLD = "the dataset holds {!r}, of which nothing tells whether loading changes it"

# The most objects that are looked at, and of those with too large a state: telling that may take long.
_MOST_OBJECTS, _MOST_LARGE = 2_000, 4

# Packages whose objects are looked into otherwise, or have no state that could be in a sample.
_KNOWN_PACKAGES = (
    *("foreload", "functools", "operator", "typing", "re", "datetime", "ssl", "_cffi_backend"),
    *("multiprocessing", "_multiprocessing"),
)

_C_DATA: Any = ctypes.Structure.__base__
_POINTER: Any = ctypes.POINTER(ctypes.c_int).__base__

# (A coroutine's or an async generator's frame is its state.)
_TYPES = [
    kind
    for name, kind in vars(types).items()
    if isinstance(kind, type) and name not in ("CoroutineType", "AsyncGeneratorType", "SimpleNamespace")
]

_KNOWN = (
    *_TYPES,
    *(type, property, BaseException, io.IOBase, bytearray, array, memoryview, mmap.mmap, range, slice),
    *(struct.Struct, threading.local, type(threading.Lock()), type(threading.RLock()), ContextVar),
    *(weakref.ref, weakref.ProxyType, weakref.CallableProxyType),
    *(np.generic, np.dtype, np.ufunc, torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(torch.finfo, torch.iinfo),
)


# Classes by name, in packages that are not imported for this: one use of such an object does not show in the next.
_KNOWN_NAMES = {
    *(("zstandard", name) for name in ("ZstdCompressor", "ZstdDecompressor", "ZstdCompressionDict")),
    *(("_json", "Scanner"), ("_json", "Encoder"), ("pandas", "BlockValuesRefs")),
}


class _TooLargeError(Exception):
    """A state is not written to its end."""


class _Limited:
    """A file that takes only so many bytes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._left = _MOST_BYTES

    def write(self, part: Any) -> int:
        size = memoryview(part).nbytes
        self._left -= size
        if self._left < 0:
            raise _TooLargeError
        self.parts.append(bytes(part))
        return size


def find_sealed(part: Any) -> str | None:
    """Return the name of an object of which nothing tells whether it has been changed; None if there is none.

    >>> import hashlib
    >>> class Signed: pass
    >>> signed = Signed(); signed.hash = hashlib.sha256()
    >>> find_sealed(signed)
    'hash'
    """
    told: set[int] = set()
    large = 0

    def is_told(value: Any) -> bool:
        return id(value) in told or isinstance(value, weakref.finalize)  # which know all others of the program

    for name, value in walk(part, is_told, _MOST_OBJECTS):
        state = pickled_state(value)
        if state == SEALED:
            return name
        if state is not None:
            told.add(id(value))
        large += state == TOO_LARGE
        if large == _MOST_LARGE:
            break
    return None


def is_sealed(value: Any) -> bool:
    """Whether nothing tells of what state a library's object is.

    >>> import zlib
    >>> is_sealed(zlib.compressobj()), is_sealed({}), is_sealed(np.float32(1))
    (True, False, False)
    """
    return pickled_state(value) == SEALED


def pickled_state(value: Any) -> bytes | None:
    """Return what an object of a library's, or of the user's compiled code, says of its state when it is pickled.

    Returns:
        ``SEALED`` if it does not say; ``TOO_LARGE``; None if its attributes tell, or it is of the user's class.
    """
    kind: Any = type(value)
    if isinstance(value, _POINTER):
        return SEALED  # reading what it points to may crash
    if not _is_of_library(kind) or is_open(value):
        return None
    if not _says_itself(kind):
        return SEALED if _is_made_in_c(value) else None
    own = optional(value, "__dict__")
    if own and not any(map(_is_inner, own.values())):
        return None
    return _pickled(value, None if own else SEALED)


def _pickled(value: Any, otherwise: bytes | None) -> bytes | None:
    into = _Limited()
    try:
        pickle.Pickler(into, protocol=5).dump(value)
    except _TooLargeError:
        return TOO_LARGE
    except Exception:  # whatever a library raises for what cannot be pickled
        return otherwise
    return b"".join(into.parts)


def _is_inner(value: Any) -> bool:
    """Whether a value is the part of a library's object that no attribute shows."""
    kind: Any = type(value)
    return _is_of_library(kind) and not (is_open(value) or _says_itself(kind)) and _is_made_in_c(value)


def _is_made_in_c(value: Any) -> bool:
    """Whether an object consists of more than attributes, in which case Python refuses to pickle it."""
    try:
        object.__reduce_ex__(value, 4)
    except Exception:
        return True
    return False


@functools.lru_cache(maxsize=4096)
def _is_of_library(kind: type) -> bool:
    package = package_of(kind)
    is_memory = package == "_cffi_backend" and "CData" in kind.__name__  # of a library's, or one of the user's
    if (package in _KNOWN_PACKAGES and not is_memory) or (package, kind.__name__) in _KNOWN_NAMES:
        return False
    if not is_installed(package) and not any(map(_is_compiled, kind.__mro__)):
        return False
    return not issubclass(kind, (*leaves(), *CONTAINERS, *_KNOWN, _C_DATA))


def _is_compiled(kind: type) -> bool:
    """Whether a class is of a module of the user's that is compiled."""
    file = optional(sys.modules.get(module_of(kind)), "__file__")
    is_extension = isinstance(file, str) and file.endswith(tuple(EXTENSION_SUFFIXES))
    return is_extension and not is_installed(module_of(kind))


@functools.lru_cache(maxsize=4096)
def _says_itself(kind: type) -> bool:
    """Whether objects of a class have a way of their own to be pickled."""
    names = ("__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")
    own = any(getattr(kind, name, None) is not getattr(object, name, None) for name in names)
    return own or kind in copyreg.dispatch_table


def is_made_of_samples(value: Any) -> bool:
    """Whether a value that was made when it was first needed keeps count of the samples since.

    Those of other libraries than Python's own are taken for files and decoders, of which each opens its own.
    """
    return is_sealed(value) and package_of(type(value)) in sys.stdlib_module_names
