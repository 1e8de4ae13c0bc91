"""Files that a process may not change while it loads samples ahead of the loop, or only to measure."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from foreload import _native
from foreload._torch import FILE_WRITER

__all__ = ["CHANGES_FILE", "REPLACED", "ReadOnlyFiles"]

# Why only the loop's own process may load.
CHANGES_FILE = "loading changes a file ({!r}), so samples cannot be loaded before the loop asks for them"

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# What auditors are told before it happens (PEP 578): the places of the paths that are changed, and of the open
# folders (or -1) in which they are, if they may be in one.
_Places = Sequence[tuple[int, int | None]]
_CHANGES: dict[str, _Places] = {
    "os.remove": [(0, 1)],
    "os.rmdir": [(0, 1)],
    "os.rename": [(0, 2), (1, 3)],
    "os.link": [(0, 2)],
    "os.truncate": [(0, None)],
    "os.chmod": [(0, 2)],
    "os.chown": [(0, 3)],
    "os.utime": [(0, 3)],
    "os.setxattr": [(0, None)],
    "os.removexattr": [(0, None)],
}
_MAKES: dict[str, _Places] = {
    "os.mkdir": [(0, 2)],
    "os.symlink": [(1, 2)],
    "os.link": [(1, 3)],
    "os.rename": [(1, 3)],
}
_TEMPORARY = ("tempfile.mkstemp", "tempfile.mkdtemp")
_CONNECTS = "sqlite3.connect"

# Functions and a class, by their modules, that do what auditors are not told.
REPLACED = (
    ("tempfile", "mktemp"),
    *((module, "connect") for module in ("sqlite3", "sqlite3.dbapi2", "_sqlite3")),
    FILE_WRITER,
)

# SQLite's names of databases that are in no file, or in one that nobody else sees.
_IN_MEMORY = (":memory:", "", b":memory:", b"")

# Action codes of SQLite: those that create, drop, insert, delete, update or alter what is not temporary.
_STATEMENTS = frozenset({1, 2, 7, 8, 9, 10, 11, 16, 17, 18, 23, 26, 29, 30})

# The most bytes of a file's name.
_MOST_NAMED = 4096

# Python's own cache of compiled modules, which every program that imports writes, and the ends of names of locks.
_COMPILED, _LOCKS = "__pycache__", (".lock", "-lock")

_WATCHED = frozenset({"open", _CONNECTS, *_TEMPORARY, *_CHANGES, *_MAKES})


class ReadOnlyFiles:
    """Refuses what would change files while samples are loaded, in forks too, as a read-only file system does.

    A sample that is loaded to see what it takes, or ahead of others, is loaded once more by the loop: what it had
    kept in a file by then, it, or a sample before it, would find there. What ``tempfile`` names in the folder for
    temporary files is the sample's own. Of SQLite's databases, statements are refused that create, write or
    remove, and to open one where these cannot be seen. What is open already is not seen, nor what other compiled
    code opens.
    """

    def __init__(self) -> None:
        self._is_on = False
        self._own: set[str] = set()  # what tempfile has named
        self._recent: set[str] = set()  # of that, what belongs to samples whose batch is not made yet
        self._connecting = threading.local()
        self._temporary = ""
        with suppress(OSError):  # there is none
            self._temporary = os.path.realpath(tempfile.gettempdir())  # which is found by trying
        # (What is shared by another name would be made private in forks that measure.)
        with open(os.memfd_create("foreload-refused"), "w+b") as file:
            file.truncate(_MOST_NAMED)
            self._refused = mmap.mmap(file.fileno(), _MOST_NAMED)
        _native.add_auditor(sorted(_WATCHED), self._audit)
        others: dict[str, Callable[..., Any]]
        others = {"mktemp": self._named, "connect": self._connect, FILE_WRITER[1]: self._written}
        for module, name in REPLACED:
            own: dict[str, Any] = getattr(sys.modules.get(module), "__dict__", {})
            own.update({name: partial(others[name], own[name])} if name in own else {})

    @property
    def refused(self) -> str | None:
        """The first file that was to be changed; None if there was none."""
        return os.fsdecode(self._refused[:].rstrip(b"\0")) or None

    def begin(self) -> None:
        """Refuse changes from now on, until the end."""
        self._is_on = True

    def end(self, *, keeps: bool) -> None:
        """Refuse nothing more; remove what is left of temporary files, unless the samples are not loaded again."""
        self._is_on = False
        for path in self._recent:
            if not keeps:
                with suppress(OSError):
                    shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
            if not os.path.lexists(path):
                self._own.discard(path)
        self._recent.clear()

    def _refuse(self, path: str) -> None:
        logging.raiseExceptions = False  # nothing of this is seen, but a log's handler would print it
        if self.refused is None:
            name = os.fsencode(path)[:_MOST_NAMED]
            self._refused[: len(name)] = name

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_on:
            return
        if event == "open":
            path, _, flags = arguments
            is_write = flags & _WRITES and not hasattr(path, "__index__")  # a number is open already
            # (What may exist only once says who was first.)
            if is_write and (flags & os.O_EXCL or not os.fsdecode(path).endswith(_LOCKS)):
                self._check_written(path)
        elif event in _TEMPORARY:
            self._note(arguments[0])
        elif event == _CONNECTS:
            if arguments[0] not in _IN_MEMORY:
                is_seen = getattr(self._connecting, "now", False)
                is_there = os.fsdecode(arguments[0]).startswith("file:") or os.path.lexists(arguments[0])
                self._check(arguments[0], None, lambda path: not (is_seen and is_there))
        else:
            self._check_all(_CHANGES.get(event, ()), arguments, os.path.lexists)
            self._check_all(_MAKES.get(event, ()), arguments, _may_be_made)

    def _check_all(self, places: _Places, arguments: tuple[Any, ...], would_change: Callable[[str], bool]) -> None:
        for of_path, of_folder in places:
            self._check(arguments[of_path], None if of_folder is None else arguments[of_folder], would_change)

    def _check_written(self, given: Any) -> None:
        path = os.path.abspath(os.fsdecode(given))
        if not _is_special(path):
            self._check(os.path.realpath(path), None, lambda path: True)

    def _check(self, given: Any, folder: int | None, would_change: Callable[[str], bool]) -> None:
        """Raise an error if a path is one that would be changed."""
        if hasattr(given, "__index__"):
            return
        path = _resolved(given, folder)
        if not self._is_own(path) and would_change(path):
            self._refuse(path)
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    def _is_own(self, path: str) -> bool:
        parts = path.split(os.sep)
        above = (os.sep.join(parts[:end]) for end in range(1, len(parts) + 1))
        # (Samples add the ends of names, such as ".wav", themselves.)
        return _COMPILED in parts or not self._own.isdisjoint(above) or path.startswith(tuple(self._recent))

    def _note(self, given: Any) -> None:
        path = _resolved(given, None)
        if os.path.dirname(path) == self._temporary:  # others see what is elsewhere
            self._own.add(path)
            self._recent.add(path)

    def _named(self, name: Callable[..., str], *given: Any, **options: Any) -> str:
        path = name(*given, **options)
        self._note(path) if self._is_on else None
        return path

    def _written(self, write: Callable[..., Any], path: Any, *given: Any) -> Any:
        if self._is_on:
            self._check_written(path)
        return write(path, *given)

    def _connect(self, connect: Callable[..., Any], database: Any, *given: Any, **options: Any) -> Any:
        self._connecting.now = True
        try:
            connection = connect(database, *given, **options)
        finally:
            self._connecting.now = False
        connection.set_authorizer(partial(self._authorize, os.fsdecode(database), database not in _IN_MEMORY))
        return connection

    def _authorize(self, path: str, is_file: bool, action: int, *about: Any) -> int:
        """Answer SQLite, which asks about each statement's parts."""
        is_kept = about[2] != "temp" and (is_file or about[2] not in ("main", None))
        if self._is_on and action in _STATEMENTS and is_kept:
            self._refuse(path)
            return 1  # SQLITE_DENY
        return 0


def _resolved(given: Any, folder: int | None) -> str:
    """Return a path, which may be in an open folder, as an absolute one whose folders are not links."""
    path = os.fsdecode(given)
    if folder is not None and folder >= 0:
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
    above, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(above), name)


def _may_be_made(path: str) -> bool:
    """Whether nothing is there yet, and there is a folder to make it in."""
    return not os.path.lexists(path) and os.path.isdir(os.path.dirname(path))


def _is_special(path: str) -> bool:
    """Whether a path is that of a device or a pipe, or one where no file can be made."""
    with suppress(OSError):
        return not stat.S_ISREG(os.stat(path).st_mode)
    return not os.path.isdir(os.path.dirname(path))
