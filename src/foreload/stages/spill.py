"""A folder on a local disk for samples that memory does not hold, and for the next run with the same dataset."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from foreload.errors import DecodeError, warn_user

__all__ = ["SpillFolder", "check_stamp", "fingerprint", "stamp"]

_VERSION = 1
_META = "foreload.json"
_MOST_FILES = 100_000


class SpillFolder:
    """Prepares the folder: one run at a time, and nothing in it that belongs to another dataset.

    Args:
        path: is created if it is not there.
        dataset: what the samples are of.

    Raises:
        OSError: the folder cannot be made or written.

    Attributes:
        usable: False where another run uses the folder at this moment.
    """

    def __init__(self, path: str | Path, dataset: Any) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        # Held until the last process that has it ends, however it ends.
        self._lock: IO[bytes] = (self.path / "lock").open("ab")
        self.usable = _locked(self._lock)
        if not self.usable:
            warn_user(f"the spill folder {str(path)!r} is in use by another run; going on without one")
            return
        meta = {"version": _VERSION, "fingerprint": fingerprint(dataset), "dataset": type(dataset).__qualname__}
        if self._found() != meta:
            self.clear()
            part = self.path / f"{_META}.part"
            part.write_text(json.dumps(meta))
            part.replace(self.path / _META)

    def _found(self) -> Any:
        try:
            return json.loads((self.path / _META).read_text())
        except (OSError, ValueError):
            return None

    def clear(self) -> None:
        """Delete the samples, and nothing else."""
        for file in self.path.glob("[0-9][0-9][0-9][0-9][0-9].spill"):
            file.unlink(missing_ok=True)


def _locked(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:  # not a system with such locks
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def fingerprint(dataset: Any) -> str:
    """Tell datasets apart: by class, code, length, what they hold, and the files that they name.

    A dataset may have a ``__fingerprint__()`` of its own, which returns a str.

    >>> fingerprint([1, 2]) == fingerprint([1, 2]), fingerprint([1, 2]) == fingerprint([1, 3])
    (True, False)
    """
    own = getattr(dataset, "__fingerprint__", None)
    if own is not None:
        return str(own())
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
    """Name a file's present content, as far as its size and time tell."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return "-"
    return f"{path} {about.st_size} {about.st_mtime_ns}"


def check_stamp(path: str, known: str) -> None:
    """See whether a file is still what it was.

    Raises:
        DecodeError: it is not.
        OSError: it is gone.
    """
    if stamp(path) != known:
        os.stat(path)
        raise DecodeError(f"{path}: the file has changed since the dataset was made; make the dataset again")


def _files(dataset: Any) -> Iterator[str]:
    """Find the paths that a dataset holds: as attributes, in lists, first in the tuples of lists."""
    left = _MOST_FILES
    for value in list(getattr(dataset, "__dict__", {}).values()):
        for item in value if isinstance(value, (list, tuple)) else [value]:
            path = item[0] if isinstance(item, tuple) and item else item
            if isinstance(path, (str, os.PathLike)) and left > 0:
                left -= 1
                yield os.fspath(path)
