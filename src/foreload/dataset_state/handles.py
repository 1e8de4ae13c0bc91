"""Open files, connections and iterators, of which copies would share the position or the state."""

from __future__ import annotations

import io
import socket
import sys
from collections.abc import Iterator
from typing import Any

from foreload.checks import optional, package_of

__all__ = ["handle_kind", "is_iterator", "is_open", "is_written"]

# Libraries whose objects are parts of open files or connections, and the beginnings of the classes' names.
_LIBRARIES = {
    "h5py": "",
    "lmdb": "",
    "netCDF4": "",
    "tables": "",
    "cv2": "VideoCapture",
    "decord": "VideoReader",
    "av": "",
}

# The letters of modes in which files are only read.
_MODES_TO_READ = frozenset("rbtU")


def is_open(value: Any) -> bool:
    """Whether a value is an open file or connection, or an iterator that has begun."""
    return is_iterator(value) or handle_kind(value) != ""


def is_iterator(value: Any) -> bool:
    """Whether a value is an iterator, and nothing else besides."""
    return isinstance(value, Iterator) and not (isinstance(value, io.IOBase) or _is_of_sqlite(value))


def handle_kind(value: Any) -> str:
    """Return what kind of open file or connection a value is; "": it is none, or is closed.

    Returns:
        "file", "SQLite", "socket", or the package that the object is of.

    >>> handle_kind(io.BytesIO(b"in memory")), handle_kind(open(__file__))
    ('', 'file')
    """
    if isinstance(value, io.IOBase):
        return "" if value.closed or isinstance(value, (io.BytesIO, io.StringIO)) else "file"
    if _is_of_sqlite(value):
        return "SQLite"
    if isinstance(value, socket.socket):
        return "socket"
    package = package_of(type(value))
    beginning = _LIBRARIES.get(package)
    is_handle = beginning is not None and type(value).__name__.startswith(beginning) and bool(value)
    return package if is_handle else ""


def is_written(value: Any) -> bool:
    """Whether a value is an open file that may be written to; one that is only read gives the same to all.

    >>> is_written(open(__file__))
    False
    """
    mode = optional(value, "mode") if handle_kind(value) else None
    return isinstance(mode, str) and not _MODES_TO_READ.issuperset(mode)


def _is_of_sqlite(value: Any) -> bool:
    module = sys.modules.get("sqlite3")  # if nobody has imported it, there is no connection
    return module is not None and isinstance(value, (module.Connection, module.Cursor))
