"""The open files of a fork: regular ones with positions of their own, and no connections of its parent."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from foreload._libraries import tracker_descriptor

__all__ = ["READS_ON", "Positions", "cut_connections", "own_positions"]

# Why copies of a dataset might load other samples.
READS_ON = "samples are read from {!r}, whose position processes forked from this one would share"

_FOLDER = Path("/proc/self/fd")

# What an epoll descriptor, of an event loop, is a link to.
_EVENTS = "anon_inode:[eventpoll]"


def _open_files() -> Iterator[tuple[int, os.stat_result]]:
    if not _FOLDER.exists():
        return
    for number in map(int, os.listdir(_FOLDER)):
        with suppress(OSError):  # it has been closed
            yield number, os.fstat(number)


def own_positions(*, with_output: bool) -> None:
    """Open files and folders again: a fork shares their positions with its parent, which would read on elsewhere.

    Args:
        with_output: whether files that are open for writing only, such as logs, are replaced by nothing; otherwise
            they stay as they are, so that what several processes write comes one after the other.
    """
    import fcntl  # which systems without forks do not have

    for number, about in list(_open_files()):
        with suppress(OSError):  # it may not be opened
            if not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
                continue
            how = fcntl.fcntl(number, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)
            is_output = how & os.O_ACCMODE == os.O_WRONLY
            if is_output and not with_output:
                continue
            again = os.open(os.devnull if is_output else _FOLDER / str(number), how | os.O_CLOEXEC)
            os.lseek(again, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(again, number, inheritable=os.get_inheritable(number))
            os.close(again)


def cut_connections(*kept: int) -> None:
    """Let it be an error to use sockets, pipes and event loops that are open, but for those ``kept``.

    What a fork reads from a connection is lost for its parent, and what it writes confuses the other side.
    """
    # Many processes tell a tracker what they make.
    kept = (*kept, tracker_descriptor() or -1)
    if not _FOLDER.exists():
        return
    nothing = os.open(_FOLDER, os.O_PATH | os.O_CLOEXEC)
    for number, about in list(_open_files()):
        is_shared = stat.S_ISSOCK(about.st_mode) or stat.S_ISFIFO(about.st_mode)
        with suppress(OSError):
            if number not in kept and (is_shared or os.readlink(_FOLDER / str(number)) == _EVENTS):
                os.dup2(nothing, number, inheritable=os.get_inheritable(number))
    os.close(nothing)


class Positions:
    """The positions of the files that are open for reading now.

    >>> file = os.open(__file__, os.O_RDONLY)
    >>> positions = Positions()
    >>> positions.moved(), os.read(file, 1) and positions.moved() == __file__
    (None, True)
    >>> os.close(file)
    """

    def __init__(self) -> None:
        import fcntl

        self._at = {}
        for number, about in _open_files():
            with suppress(OSError):
                how = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
                # Those of the system, and memory, are as long as nothing.
                if stat.S_ISREG(about.st_mode) and how != os.O_WRONLY and about.st_size:
                    self._at[number] = os.lseek(number, 0, os.SEEK_CUR), (about.st_dev, about.st_ino)

    def moved(self) -> str | None:
        """Return the name of a file that has been read on, in whatever way; None if there is none."""
        for number, (at, file) in self._at.items():
            with suppress(OSError):  # it has been closed
                if os.lseek(number, 0, os.SEEK_CUR) != at:
                    about = os.fstat(number)
                    if (about.st_dev, about.st_ino) == file:
                        return os.readlink(_FOLDER / str(number))
        return None
