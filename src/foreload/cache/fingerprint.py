"""Fingerprints by which a dataset is recognised: in a later run with its files, or in another process."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any

import numpy as np
import torch

from foreload.checks import Array
from foreload.errors import DecodeError
from foreload.protocol import SampleSource

__all__ = ["check_stamp", "content_hash", "fingerprint", "stamp"]


_MAX_FILES = 100_000

# Of larger buffers, so many pieces of so many bytes are hashed; and of all, so many bytes.
_PIECES, _PIECE = 64, 1 << 14
_MAX_HASHED = 64 << 20


def fingerprint(dataset: Any) -> str:
    """Return a hash of a dataset's class, code, length, attributes and the files that these name.

    A :class:`~foreload.protocol.SampleSource` may have a fingerprint of its own.

    >>> fingerprint([1, 2]) == fingerprint([1, 2]), fingerprint([1, 2]) == fingerprint([1, 3])
    (True, False)
    """
    own = dataset.fingerprint() if isinstance(dataset, SampleSource) else None
    if own is not None:
        return own
    known = hashlib.sha256()
    kind = type(dataset)
    known.update(f"{kind.__module__}.{kind.__qualname__} {len(dataset)}".encode())
    code = getattr(getattr(kind, "__getitem__", None), "__code__", None)
    if code is not None:
        known.update(code.co_code + repr(code.co_consts).encode() + repr(code.co_names).encode())
    try:
        known.update(pickle.dumps(dataset, protocol=5))
    except Exception as error:  # whatever pickling a user's object may raise
        known.update(type(error).__name__.encode())
    for path in _files(dataset):
        known.update(stamp(path).encode())
    return known.hexdigest()


def content_hash(dataset: Any) -> str:
    """Return a hash by which processes of one run tell whether they have the same dataset.

    It is of the class and the pickled state, without files, so it takes milliseconds: of large arrays and tensors,
    samples count, and of more than 64 MiB in all, the beginning. What cannot be pickled counts by its class.

    >>> content_hash(range(3)) == content_hash(range(3)), content_hash(range(3)) == content_hash(range(1, 4))
    (True, False)
    >>> content_hash([lambda: 0, 1]) == content_hash([lambda: 0, 2])
    False
    """
    found = _Hash()
    with suppress(_Enough):
        _ContentPickler(found, protocol=5, buffer_callback=found.add_buffer).dump(dataset)
    return found.known.hexdigest()


class _Enough(Exception):
    """Enough has been hashed."""


class _Hash:
    """A file that keeps a hash of what is written to it."""

    def __init__(self) -> None:
        self.known = hashlib.sha256()
        self._left = _MAX_HASHED

    def write(self, data: Any) -> int:
        """Add bytes."""
        part = memoryview(data)[: self._left]
        self.known.update(part)
        self._left -= len(part)
        if self._left <= 0:
            raise _Enough
        return len(data)

    def add_buffer(self, buffer: pickle.PickleBuffer) -> None:
        """Add samples of what would be pickled out of band."""
        self.write(_sampled(np.frombuffer(buffer.raw(), np.uint8)))


def _sampled(data: Array) -> bytes:
    """Return the length and the bytes of a buffer, or of pieces from its beginning to its end."""
    length = len(data).to_bytes(8, "little")
    if len(data) <= _PIECES * _PIECE:
        return length + data.tobytes()
    starts = np.linspace(0, len(data) - _PIECE, _PIECES).astype(np.int64)
    return length + b"".join(data[start : start + _PIECE].tobytes() for start in starts)


class _ContentPickler(pickle.Pickler):
    """Pickles what can be pickled, and the names of all else."""

    def reducer_override(self, thing: Any) -> Any:
        """Return how a thing is to be pickled."""
        if thing is str:
            return NotImplemented
        if isinstance(thing, type):
            return str, (f"{thing.__module__}.{thing.__qualname__}",)
        if isinstance(thing, FunctionType):
            code = thing.__code__
            return str, (f"{thing.__module__}.{thing.__qualname__}", code.co_code, repr(code.co_names))
        try:
            if isinstance(thing, torch.Tensor):
                return str, (repr((thing.dtype, thing.shape, thing.stride())), _sampled(_bytes_of(thing)))
            return thing.__reduce_ex__(5)
        except Exception as error:  # whatever pickling a user's object may raise
            return str, (type(thing).__qualname__, type(error).__qualname__)


def _bytes_of(tensor: torch.Tensor) -> Array:
    """Return the memory of a tensor; nothing if it is not this process's own."""
    if tensor.device.type != "cpu":
        return np.zeros(0, np.uint8)
    return np.asarray(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()))


def stamp(path: str) -> str:
    """Return a string that changes with a file's content, as far as its size and time show that."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return "-"
    return f"{path} {about.st_size} {about.st_mtime_ns}"


def check_stamp(path: str, known: str) -> None:
    """Raise an error if a file has changed since its :func:`stamp` was taken.

    Raises:
        DecodeError: it has changed.
        OSError: it is gone.
    """
    if stamp(path) != known:
        os.stat(path)
        raise DecodeError(f"{path}: the file has changed since the dataset was made; make the dataset again")


def _files(dataset: Any) -> Iterator[str]:
    """Yield the paths that a dataset has as attributes, in lists, or first in the tuples of a list."""
    left = _MAX_FILES
    for value in list(getattr(dataset, "__dict__", {}).values()):
        for item in value if isinstance(value, (list, tuple)) else [value]:
            path = item[0] if isinstance(item, tuple) and item else item
            if isinstance(path, (str, os.PathLike)) and left > 0:
                left -= 1
                yield os.fspath(path)
