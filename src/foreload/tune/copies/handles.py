"""Open files, connections and iterators: what copies of a dataset would not have for themselves."""

from __future__ import annotations

import io
import socket
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["is_handle", "is_iterator", "is_open"]


def is_open(value: Any) -> bool:
    """Whether a value is an open file or connection, or an iterator that may have begun."""
    return is_iterator(value) or is_handle(value)


def is_iterator(value: Any) -> bool:
    """Whether a value gives each thing once."""
    return isinstance(value, Iterator) and not (isinstance(value, io.IOBase) or _is_of_sqlite(value))


def _is_of_sqlite(value: Any) -> bool:
    module = sys.modules.get("sqlite3")  # if nobody has imported it, there is no connection
    return module is not None and isinstance(value, (module.Connection, module.Cursor))


def is_handle(value: Any) -> bool:
    """Whether a value is an open file or connection."""
    if isinstance(value, io.IOBase):
        return not (value.closed or isinstance(value, (io.BytesIO, io.StringIO)))
    if isinstance(value, socket.socket) or _is_of_sqlite(value):
        return True
    return type(value).__module__.partition(".")[0] in ("h5py", "lmdb", "netCDF4", "tables") and bool(value)
