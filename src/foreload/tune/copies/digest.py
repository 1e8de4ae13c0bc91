"""Digests of values: equal as long as a value is the same, and has not been changed."""

from __future__ import annotations

import ctypes
import functools
import io
import logging
import mmap
import random
import zlib
from array import array
from collections import deque
from types import ModuleType
from typing import Any

import numpy as np
import torch

from foreload._torch import tensor_version
from foreload.tune.copies.handles import is_iterator

__all__ = ["CONTAINERS", "LRU_CACHE", "NOTHING", "PLAIN", "contents", "digest", "generators", "leaves"]

# The most bytes of an array that are compared.
_MOST_BYTES = 1 << 20

PLAIN = (int, float, complex, bool, str, bytes, type(None))
CONTAINERS = (list, dict, set, tuple, frozenset, deque)

# A number of ctypes; numbers, arrays and structures of its may lie in shared memory.
_NUMBER: Any = ctypes.c_int.__base__


@functools.cache  # and when it is first needed, since NumPy imports its generators then
def generators() -> tuple[Any, ...]:
    return random.Random, np.random.Generator, np.random.RandomState, torch.Generator


@functools.cache
def leaves() -> tuple[Any, ...]:
    """Return the types that are compared as a whole, and loggers, whose state is in no sample."""
    return *PLAIN, *generators(), torch.Tensor, np.ndarray, logging.Logger, ModuleType


NOTHING = ("value", None)

# What functions become that keep what they have returned, which is nothing until they are first called.
LRU_CACHE: Any = type(functools.lru_cache(len))


def digest(value: Any) -> Any:
    """Return what is equal as long as a value is the same, and has not been changed."""
    if isinstance(value, PLAIN):
        return "value", value
    if isinstance(value, torch.Tensor):
        return "tensor", id(value), tensor_version(value), _checksum(value)
    if isinstance(value, np.ndarray):
        return "array", id(value), value.shape, _checksum(value)
    if isinstance(value, random.Random):
        return "generator", hash(value.getstate())
    if isinstance(value, torch.Generator):
        return "generator", value.get_state().numpy().tobytes()
    if isinstance(value, np.random.Generator):
        return "generator", repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return "generator", repr(value.get_state(legacy=False))
    if is_iterator(value):
        return "generator", id(value)
    if isinstance(value, (ctypes.Array, ctypes.Structure, _NUMBER)):
        return "array", zlib.crc32(bytes(value))
    if isinstance(value, (bytearray, array, memoryview)):
        return "array", id(value), len(value), _checksum(memoryview(value))
    if isinstance(value, (mmap.mmap, io.BytesIO, io.StringIO)):
        return "array", id(value), *contents(value)
    if isinstance(value, LRU_CACHE):
        size = value.cache_info().currsize
        return ("container", type(value), size) if size else NOTHING
    if isinstance(value, CONTAINERS):
        return "container", type(value), len(value)
    return "object", id(value)


def contents(value: Any, most: int = _MOST_BYTES) -> tuple[Any, ...]:
    """Return where a file in memory is at, and what tells if it is written to; nothing if it is closed.

    Args:
        value: a ``mmap``, ``BytesIO`` or ``StringIO``.
        most: the most bytes that are looked at.
    """
    try:
        if isinstance(value, io.StringIO):
            return value.tell(), hash(value.getvalue())
        with memoryview(value if isinstance(value, mmap.mmap) else value.getbuffer()) as data:
            step = max(1, len(data) // most)
            return value.tell(), len(data), zlib.crc32(bytes(data[::step]))
    except (ValueError, BufferError):
        return ()


def _checksum(array: Any) -> int:
    try:
        data = np.asarray(array).reshape(-1)
        step = max(1, data.nbytes // _MOST_BYTES)
        return zlib.crc32(np.ascontiguousarray(data[::step]).tobytes())
    except Exception:  # of a device, sparse, of objects ...
        return 0
