"""A process whose Python code can change no file, such as a fork that only measures."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

__all__ = ["ReadOnlyFiles"]

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
    "os.utime": [(0, 3)],
}
_MAKES: dict[str, _Places] = {
    "os.mkdir": [(0, 2)],
    "os.symlink": [(1, 2)],
    "os.link": [(1, 3)],
    "os.rename": [(1, 3)],
}
_TEMPORARY = ("tempfile.mkstemp", "tempfile.mkdtemp")

# Action codes of SQLite: those that create, drop, insert, delete, update or alter what is not temporary.
_STATEMENTS = frozenset({1, 2, 7, 8, 9, 10, 11, 16, 17, 18, 23, 26, 29, 30})

# Python's own cache of compiled modules, which every program that imports writes, and the ends of names of locks.
_COMPILED, _LOCKS = "__pycache__", (".lock", "-lock")

_WATCHED = frozenset({"open", *_TEMPORARY, *_CHANGES, *_MAKES})


class ReadOnlyFiles:
    """Refuses, from now on and in all forks, what would change files, as a read-only file system does.

    A sample that is loaded to see what it takes is loaded once more by the loop: what it had kept in a file by
    then, it might find there. Files that ``tempfile`` names are its own, and so is what it makes and removes again
    in the folder for these. Of SQLite's databases, statements are refused. What is open already is not seen, nor
    what other compiled code opens, or what a path means in a folder that is open.

    Attributes:
        refused: the first file that was to be changed; None if there was none.
    """

    def __init__(self) -> None:
        self.refused: str | None = None
        self._own: set[str] = set()
        self._made: set[str] = set()  # by other names, in the folder for temporary files
        self._temporary = ""
        with suppress(OSError):  # there is none
            self._temporary = os.path.abspath(tempfile.gettempdir())  # which is found by trying
        sys.addaudithook(self._audit)
        _put_in_place(tempfile.mktemp, partial(self._name, tempfile.mktemp))
        if (sqlite := sys.modules.get("sqlite3")) is not None:
            _put_in_place(sqlite.connect, partial(self._connect, sqlite.connect))

    def end(self) -> None:
        """Remove what has been made beside temporary files and is still there, which counts as a change."""
        for path in self._made:
            if os.path.lexists(path):
                self.refused = self.refused or path
                with suppress(OSError):
                    os.remove(path)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _WATCHED:
            return
        if event == "open":
            path, _, flags = arguments
            if flags & _WRITES and not isinstance(path, int):  # a number is open already
                self._check(path, None, lambda path: not _is_special(path))
        elif event in _TEMPORARY:
            self._own.add(os.path.abspath(os.fsdecode(arguments[0])))
        else:
            self._check_all(_CHANGES.get(event, ()), arguments, os.path.lexists)
            self._check_all(_MAKES.get(event, ()), arguments, _may_be_made)

    def _check_all(self, places: _Places, arguments: tuple[Any, ...], would_change: Callable[[str], bool]) -> None:
        for of_path, of_folder in places:
            folder = None if of_folder is None else arguments[of_folder]
            self._check(arguments[of_path], folder, would_change)

    def _check(self, given: Any, folder: int | None, would_change: Callable[[str], bool]) -> None:
        """Raise an error if a path is one that would be changed."""
        if isinstance(given, int):
            return
        path = os.fsdecode(given)
        if folder is not None and folder >= 0:
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
        path = os.path.abspath(path)
        if not self._is_own(path) and would_change(path):
            self.refused = self.refused or path
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    def _is_own(self, path: str) -> bool:
        if _COMPILED in path.split(os.sep) or path.endswith(_LOCKS):
            return True
        above = [os.sep.join(path.split(os.sep)[:end]) for end in range(1, path.count(os.sep) + 2)]
        if not self._own.isdisjoint(above):
            return True
        # (What is there already may be somebody else's.)
        if os.path.dirname(path) == self._temporary and not os.path.lexists(path):
            self._made.add(path)
        return path in self._made

    def _name(self, name: Callable[..., str], *given: Any, **options: Any) -> str:
        path = name(*given, **options)
        self._own.add(os.path.abspath(os.fsdecode(path)))
        return path

    def _connect(self, connect: Callable[..., Any], database: Any, *given: Any, **options: Any) -> Any:
        connection = connect(database, *given, **options)
        is_file = database not in ("", ":memory:")
        connection.set_authorizer(partial(self._authorize, os.fsdecode(database), is_file))
        return connection

    def _authorize(self, path: str, is_file: bool, action: int, *about: Any) -> int:
        """Answer SQLite, which asks about each statement's parts."""
        if action in _STATEMENTS and about[2] != "temp" and (is_file or about[2] not in ("main", None)):
            self.refused = self.refused or path
            return 1  # SQLITE_DENY
        return 0


def _put_in_place(function: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Put another function in the place of one that nobody is told of, in whichever modules have it."""
    for module in list(sys.modules.values()):
        own = getattr(module, "__dict__", None)
        if type(own) is dict:
            own.update(dict.fromkeys([name for name, value in own.items() if value is function], other))


def _may_be_made(path: str) -> bool:
    """Whether nothing is there yet, and there is a folder to make it in."""
    return not os.path.lexists(path) and os.path.isdir(os.path.dirname(path))


def _is_special(path: str) -> bool:
    """Whether a path is that of a device or a pipe, or one where no file can be made."""
    with suppress(OSError):
        return not stat.S_ISREG(os.stat(path).st_mode)
    return not os.path.isdir(os.path.dirname(path))
