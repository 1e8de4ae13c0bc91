"""HDF5 files, opened by each process for itself: never across a fork, and only while in use."""

from __future__ import annotations

import errno
import functools
import os
import resource
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from foreload import _native
from foreload.record.spans import Stage

__all__ = ["HDF5File", "Linked", "Stamp", "check_linked", "load_h5py", "opened", "stamp_of", "stamps_of"]

Stamp = tuple[int, int, int, int]

# Files that a dataset takes data from, beside its own; None for one that does not exist.
Linked = dict[str, Stamp | None]

_WRITING = "this HDF5 file is open for writing; close it there first"

# HDF5 has one lock for everything, so one here costs nothing; it is held during a fork.
_LOCK = threading.RLock()
_OPEN: weakref.WeakSet[HDF5File] = weakref.WeakSet()


@functools.cache
def load_h5py() -> Any:
    """Import h5py.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import h5py
    except ImportError as error:
        raise ImportError("HDF5Dataset needs h5py: pip install h5py") from error
    # h5py, too, takes its lock before a fork. The last to register is the first to be called, so that no thread
    # can hold our lock while it waits for theirs.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before_fork, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)
    return h5py


def _before_fork() -> None:
    # A child that opens a file which it inherited open would get the parent's state of it.
    _LOCK.acquire()
    for file in list(_OPEN):
        file.close_handle()


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """Open a file with h5py for reading, for the block; no fork can happen meanwhile.

    Raises:
        OSError: it cannot be opened; ``filename`` is its path, and the message says what to do about it.
    """
    with _LOCK, _open_h5py(path) as handle:
        yield handle


def _open_h5py(path: str) -> Any:
    h5py = load_h5py()
    try:
        handle = h5py.File(path, "r")
    except OSError as error:
        raise _explained(error, path) from error
    if handle.mode != "r":
        # HDF5 shares a file that is open already, with data that is not written yet.
        handle.close()
        raise OSError(errno.EBUSY, _WRITING, path)
    return handle


def _explained(error: OSError, path: str) -> OSError:
    text, number = str(error), error.errno or errno.EINVAL
    if os.path.isdir(path):
        text = "this is a folder; give the HDF5 file itself"
    elif "signature" in text:
        text = "this is not an HDF5 file; give one that h5py or a similar library wrote"
    elif "truncated" in text:
        text = f"this HDF5 file is cut short; copy or write it again ({text})"
    elif "already open for" in text:
        text = f"{_WRITING} ({text})"  # or its writer has died: h5clear helps
    elif "lock" in text:
        text = _WRITING
    return OSError(number, text, path)


def stamp_of(about: os.stat_result) -> Stamp:
    """Return a stamp of a file's content: its identity, size and time."""
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def stamps_of(paths: Iterable[str]) -> Linked:
    """Return the stamps of files, of which some may not exist."""
    return {path: _stamp_at(path) for path in paths}


def check_linked(linked: Linked) -> None:
    """Check that no file has changed, appeared or gone since its stamp was taken.

    Raises:
        OSError: one has; ``filename`` is its path.
    """
    for path, known in linked.items():
        if _stamp_at(path) != known:
            raise _changed(path)


def _stamp_at(path: str) -> Stamp | None:
    try:
        return stamp_of(os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _changed(path: str) -> OSError:
    message = "this file has changed since the HDF5Dataset was made; make the dataset again"
    return OSError(errno.ESTALE, message, path)


def _may_stay_open(number: int) -> bool:
    # Half of the files that the process may have open are left to the rest of it; a descriptor is the lowest free
    # number, so it says how many are open.
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit == resource.RLIM_INFINITY or number < limit / 2


class _Descriptor:
    """An open file, closed after its last reader: its number could then become another file's."""

    __slots__ = ("number",)

    def __init__(self, path: str) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:
            close(self.number)


class HDF5File:
    """An HDF5 file for any number of threads of one process, opened when it is first read.

    Args:
        path: the file.
        stamp: of the content when the dataset was made.
        linked: other files that it takes data from, with their stamps.
    """

    def __init__(self, path: str, stamp: Stamp, linked: Linked | None = None) -> None:
        self._path = path
        self._stamp = stamp
        self._linked = linked or {}
        self._file: _Descriptor | None = None
        self._handle: Any = None

    def read_bytes(self, size: int, offset: int) -> bytes:
        """Read bytes, without h5py and its lock.

        Raises:
            OSError: the file is gone, or has changed since the dataset was made.
        """
        file = self._file or self._open()
        with _native.Measure(Stage.read) as measure:
            measure.bytes = size
            found = os.pread(file.number, size, offset)
        self._compare(file)
        return found

    def read_into(self, memory: memoryview, offset: int) -> int:
        """Read into ``memory``; return the number of bytes read. To be followed by :meth:`check`."""
        file = self._file or self._open()
        return os.preadv(file.number, [memory], offset)

    def check(self) -> None:
        """Check that the file has not changed during a read; nothing keeps others from writing to it.

        Raises:
            OSError: as :meth:`read_bytes`.
        """
        self._compare(self._file or self._open())

    def read_rows(self, name: str, rows: Any) -> Any:
        """Read rows of a dataset with h5py.

        Raises:
            OSError: as :meth:`read_bytes`, or the rows are damaged, or h5py lacks a filter.
        """
        with _LOCK:
            if self._handle is None:
                self._open()
                self._handle = _open_h5py(self._path)
                _OPEN.add(self)
                if stamp_of(os.stat(self._path)) != self._stamp:  # it may be another file than the open one
                    self.close_handle()
                    raise _changed(self._path)
            with _native.Measure(Stage.read) as measure:
                try:
                    found = self._handle[name][rows]
                except Exception:
                    self.check()  # that a file has changed says more
                    raise
                measure.bytes = getattr(found, "nbytes", 0)
            self.check()
            return found

    def _open(self) -> _Descriptor:
        with _LOCK:
            if self._file is None:
                file = _Descriptor(self._path)
                self._compare(file)
                if not _may_stay_open(file.number):
                    return file
                self._file = file
            return self._file

    def _compare(self, file: _Descriptor) -> None:
        about = os.fstat(file.number)
        if stamp_of(about) != self._stamp or about.st_nlink == 0:
            raise _changed(self._path)
        check_linked(self._linked)

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        with _LOCK:
            self.close_handle()
            self._file = None

    def close_handle(self) -> None:
        """Close h5py's handle."""
        with _LOCK:
            if self._handle is not None:
                self._handle.close()
            self._handle = None
            _OPEN.discard(self)
