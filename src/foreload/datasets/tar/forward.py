"""Files that are read from the beginning to the end, as tarfile reads them, or natively many members at a time."""

from __future__ import annotations

import io
import tarfile
from typing import Any

from foreload import _native

__all__ = ["BlockReader", "Forward"]

_STEP = 128 << 10
_MOST = 16 << 20  # of a member at once: a damaged header may claim any size
_BLOCK = 256 << 10  # about what the second-level cache of a core holds


class Forward:
    """A file for tarfile that is only read forwards, with a count of the bytes read."""

    def __init__(self, file: Any) -> None:
        self._read = file.read
        self._at = 0

    def tell(self) -> int:
        """Return the number of bytes read."""
        return self._at

    def seek(self, place: int) -> None:
        """Read on up to there, or to the end."""
        if place < self._at:
            raise tarfile.StreamError("seeking backwards is not allowed")
        while self._at < place and self.read(min(place - self._at, _STEP)):
            pass

    def read(self, size: int) -> bytes:
        """Read so many bytes, fewer only at the end."""
        data: bytes = self._read(min(size, _MOST))
        if 0 < len(data) < size:
            pieces, left = [data], size - len(data)
            while left and (piece := self._read(min(left, _MOST))):
                pieces.append(piece)
                left -= len(piece)
            data = b"".join(pieces)
        self._at += len(data)
        return data


class BlockReader(Forward):
    """The same through a block of memory, from which usual members are parsed natively.

    >>> header = tarfile.TarInfo("0001.jpg")
    >>> header.size = 5
    >>> content = header.tobuf(tarfile.USTAR_FORMAT) + b"hello".ljust(512, b"-")
    >>> file = BlockReader(io.BufferedReader(io.BytesIO(content)))
    >>> file.parse({})
    ([], {}, None)
    >>> file.fetch(), file.parse({}), file.fetch()
    (True, ([], {'__key__': '0001', 'jpg': b'hello'}, '0001.jpg'), False)
    """

    def __init__(self, file: io.BufferedReader) -> None:
        super().__init__(file)
        self._read_some = file.readinto1
        self._block = bytearray(_BLOCK)
        self._memory = memoryview(self._block)
        self._begin = self._end = 0  # of what was read of the file, but not from here
        self._need = 0  # the bytes of the next member, 0 if it must be left to tarfile

    def read(self, size: int) -> bytes:
        """Read so many bytes, fewer only at the end."""
        if size <= _BLOCK:
            self._require(size)
        stop = min(self._end, self._begin + size)
        data = bytes(self._memory[self._begin : stop])
        self._begin = stop
        self._at += len(data)
        return data if size <= _BLOCK else data + super().read(size - len(data))

    def parse(self, sample: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any], str | None]:
        """Parse the usual members that are in memory; ``sample`` is the unfinished one, or empty.

        Returns:
            The whole samples, the unfinished one, and the name of the last member.
        """
        whole, sample, begin, self._need, last = _native.tar_samples(self._block, self._begin, self._end, sample)
        self._at += begin - self._begin
        self._begin = begin
        return whole, sample, last

    def fetch(self) -> bool:
        """Read on up to the end of the next member; False if it is not usual, too large, or not there."""
        return 0 < self._need <= _BLOCK and self._require(self._need)

    def _require(self, size: int) -> bool:
        """Have at least so many bytes in memory, and whatever else the file has at hand."""
        if self._end - self._begin >= size:
            return True
        held = self._end - self._begin
        self._memory[:held] = self._memory[self._begin : self._end]
        self._begin, self._end = 0, held
        while self._end < size:
            # Once for what is at hand: a pipe may have no more for long.
            count = self._read_some(self._memory[self._end :])
            if not count:
                return False
            self._end += count
        return True
