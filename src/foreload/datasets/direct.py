"""Reads past the page cache: the option ``direct_io`` of datasets, and files that are opened for such reads."""

from __future__ import annotations

import errno
import fcntl
import io
import mmap
import os
from pathlib import Path
from typing import IO, Any

from foreload import _native
from foreload.cache.wrappers import has_remote_samples, parts_of
from foreload.checks import check_bool
from foreload.errors import warn_user

__all__ = ["DirectReads", "direct_problem", "open_direct"]

# O_DIRECT wants offsets, lengths and memory to be multiples of this, or less, on any disk.
_BLOCK = 4096
_STEP = 64 << 10


class DirectReads:
    """A dataset whose files can be read past the page cache: the attribute ``direct_io``."""

    _files: _native.Files
    _direct_io = False
    _direct_problem: str | None = None

    @property
    def direct_io(self) -> bool:
        """Whether files are read past the page cache.

        Setting it to True warns, once, if they cannot be: a file system without O_DIRECT, or files on a server.
        """
        return self._direct_io

    @direct_io.setter
    def direct_io(self, direct: bool) -> None:
        check_bool("direct_io", direct)
        self._direct_io = self._files.direct = direct
        self._direct_problem = self._find_problem() if direct else None
        if self._direct_problem is not None:
            warn_user(f"direct_io=True: {self._direct_problem}")

    @property
    def direct_problem(self) -> str | None:
        """A file that is read through the page cache in spite of ``direct_io``, and why; None if there is none.

        One file is tried of each file system that the files' folders lie on.
        """
        return self._direct_problem

    def _find_problem(self) -> str | None:
        if has_remote_samples(self):
            return "has no effect on URLs, whose bytes come from a server and not through the page cache"
        found = self._files.direct_problem()
        if found is None:
            return None
        path, why = found
        return (
            f"{os.fsdecode(path)!r} is read through the page cache all the same: {why}; put the files on a disk "
            "whose file system has O_DIRECT, such as ext4 or XFS"
        )


def direct_problem(dataset: Any) -> str | None:
    """Return the :attr:`DirectReads.direct_problem` of a dataset, or of one that it wraps."""
    known = (part.direct_problem for part in parts_of(dataset) if isinstance(part, DirectReads))
    return next((problem for problem in known if problem is not None), None)


def open_direct(path: str | Path) -> IO[bytes]:
    """Open a file for reads past the page cache, as far as its file system can.

    Raises:
        OSError: it cannot be opened.
    """
    try:
        return io.BufferedReader(_Blocks(path), _STEP)
    except OSError:  # maybe of O_DIRECT only
        return open(path, "rb")


class _Blocks(io.RawIOBase):
    """A file that is read in whole blocks."""

    def __init__(self, path: str | Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        self._memory = mmap.mmap(-1, _STEP + _BLOCK)  # which is aligned
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}
        base = bases[whence] if whence in bases else os.fstat(self._descriptor).st_size
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        begin = self._at // _BLOCK * _BLOCK
        skipped = self._at - begin
        wanted = min(len(buffer), _STEP)
        length = -(-(skipped + wanted) // _BLOCK) * _BLOCK
        with memoryview(self._memory) as memory, memory[:length] as blocks:
            got = self._read(blocks, begin)
            given = max(0, min(got - skipped, wanted))
            buffer[:given] = blocks[skipped : skipped + given]
        self._at += given
        return given

    def _read(self, blocks: memoryview, begin: int) -> int:
        try:
            return os.preadv(self._descriptor, [blocks], begin)
        except OSError as error:
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
                raise
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)  # refused only now
            return os.preadv(self._descriptor, [blocks], begin)

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
            self._memory.close()
        super().close()
