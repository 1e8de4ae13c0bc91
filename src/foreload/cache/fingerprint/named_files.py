"""The files and folders that strings of a dataset name, and stamps by which changes of them show."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from foreload.errors import DecodeError

__all__ = ["NamedFiles", "TooManyFiles", "check_stamp", "stamp"]

# The most files in folders that are named. (Listing takes about three microseconds for each.)
_MAX_LISTED = 1 << 22

_MAX_PATH = 4096  # bytes, that the system takes


class TooManyFiles(Exception):
    """The named folders hold too many files to look at them all."""


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


class NamedFiles:
    """Collects strings, and stamps the files among them, and all files in the folders among them.

    Hidden folders, and what Python compiles, are left out of folders, unless they are named themselves.

    Args:
        without: a folder that is left out, whatever its names are.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> (folder / "a.txt").write_text("hello")
    5
    >>> named = NamedFiles()
    >>> for string in ("hello", str(folder), str(folder / "a.txt")): named.note(string)
    >>> len(list(named.stamps()))  # the folder, and the file in it
    2
    """

    def __init__(self, without: str | None = None) -> None:
        self._known: dict[str, None] = {}
        self._listed: set[str] = set()
        self._seen: set[tuple[int, int]] = set()
        self._left = _MAX_LISTED
        # Most strings name nothing, which the first part of them shows without asking the system for each.
        self._first = {"/": _names_in("/"), "": _names_in(os.curdir) | {os.curdir, os.pardir}}
        with suppress(OSError, TypeError):
            about = os.stat(without)  # type: ignore[arg-type]
            self._seen.add((about.st_dev, about.st_ino))

    def note(self, string: str, is_path: bool = False) -> None:
        """Add a string, which may name a file or a folder.

        Args:
            string: the string.
            is_path: whether ``.`` and ``..`` are folders here, where other strings may be mere words.
        """
        if string in (os.curdir, os.pardir) and not is_path:
            return
        if string.startswith("/"):
            first, known = string.lstrip("/").partition("/")[0], self._first["/"]
        else:
            first, known = string.partition("/")[0], self._first[""]
        if first in known and len(string) <= _MAX_PATH:
            self._known[string] = None

    def stamps(self) -> Iterator[str]:
        """Yield the stamps, in an order that depends on the names alone.

        Raises:
            TooManyFiles: there are too many in the folders.
        """
        for path in sorted(self._known):  # a folder comes before what is in it
            folder, _, name = path.rpartition("/")
            if folder in self._listed and not _is_left_out(name):
                continue
            try:
                about = os.stat(path)
            except (OSError, ValueError):
                continue
            if stat.S_ISDIR(about.st_mode):
                yield from self._in_folder(path.rstrip("/"), about)
            else:
                yield f"{path} {about.st_size} {about.st_mtime_ns}"

    def _in_folder(self, top: str, about: os.stat_result) -> Iterator[str]:
        waiting = [(top, about)]
        while waiting:
            folder, about = waiting.pop()
            if (about.st_dev, about.st_ino) in self._seen:
                continue  # links may lead back
            self._seen.add((about.st_dev, about.st_ino))
            self._listed.add(folder)
            yield folder
            for name in sorted(_names_in(folder)):
                self._left -= 1
                if self._left < 0:
                    raise TooManyFiles(f"the folders that it names hold more than {_MAX_LISTED:,} files")
                path = f"{folder}/{name}"
                try:
                    about = os.stat(path)
                except OSError:
                    continue
                if not stat.S_ISDIR(about.st_mode):
                    yield f"{path} {about.st_size} {about.st_mtime_ns}"
                elif not _is_left_out(name):
                    waiting.append((path, about))


def _is_left_out(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _names_in(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()
