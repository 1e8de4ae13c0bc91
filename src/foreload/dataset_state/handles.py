"""Open files, connections and iterators, of which copies would share the position or the state."""

from __future__ import annotations

import io
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
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

    >>> is_written(open(__file__)), is_written(open(os.devnull, "w"))
    (False, False)
    """
    if not handle_kind(value):
        return False
    if isinstance(value, io.IOBase):
        with suppress(Exception):  # of a class of the user's
            return value.writable() and _is_on_disk(value)
        return True
    mode = optional(value, "mode")
    return isinstance(mode, str) and not _MODES_TO_READ.issuperset(mode)


def _is_on_disk(file: Any) -> bool:
    """Whether a file is one that keeps what is written to it: no pipe, device or stream of the program."""
    try:
        number = file.fileno()
    except OSError:  # it is elsewhere: on a server, say
        return True
    return number > 2 and stat.S_ISREG(os.fstat(number).st_mode)


def _is_of_sqlite(value: Any) -> bool:
    module = sys.modules.get("sqlite3")  # if nobody has imported it, there is no connection
    return module is not None and isinstance(value, (module.Connection, module.Cursor))
