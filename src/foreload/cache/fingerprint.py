"""Fingerprints by which a dataset and its files are recognised in a later run."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Iterator
from typing import Any

from foreload.errors import DecodeError
from foreload.protocol import SampleSource

__all__ = ["check_stamp", "fingerprint", "stamp"]


_MAX_FILES = 100_000


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
