"""Shards in object storage and on web servers: their indexes, and their samples by ranges."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from foreload.datasets.shards import ShardIndex, scan
from foreload.errors import DecodeError
from foreload.stages.fetch import Fetch, Range

__all__ = ["RemoteFile", "RemoteSamples", "list_remote", "remote_indexes"]

Array = np.ndarray[Any, Any]

_HEADER = 512  # bytes before a member's content
_STEP = 1 << 20  # what is read at a time to make an index
_AT_A_TIME = 16


def list_remote(fetch: Fetch, urls: Sequence[str]) -> list[str]:
    """Replace each URL that ends with ``/`` by the shards below it.

    Raises:
        FileNotFoundError: there are none.
        OSError: the server does not list its files, as web servers do not.
    """
    listed = []
    for url in urls:
        if not url.endswith("/"):
            listed.append(url)
            continue
        if url.startswith(("http://", "https://")):
            raise OSError(f"shards: a web server does not list its files; name them: {url}train-{{000..099}}.tar")
        found = [name for name in fetch.list(url) if name.endswith(".tar")]
        if not found:
            raise FileNotFoundError(f"shards: no *.tar below {url!r}")
        listed += found
    return listed


def remote_indexes(fetch: Fetch, urls: Sequence[str], folder: Path | None) -> list[ShardIndex]:
    """Give the indexes of shards: those that lie beside them, or in ``folder``, or made by reading the shards.

    Raises:
        OSError: a shard cannot be read.
        DecodeError: it is no tar, or damaged.
    """
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        return list(threads.map(lambda url: _index(fetch, url, folder), urls))


def _index(fetch: Fetch, url: str, folder: Path | None) -> ShardIndex:
    size, tag = fetch.head(url)
    kept = None
    if folder is not None:
        kept = folder / f"{hashlib.sha256(f'{url} {tag}'.encode()).hexdigest()[:32]}.idx"
        known = ShardIndex.load(kept)
        if known is not None and known.size == size:
            return known
    index = _beside(fetch, url, size) or scan(io.BufferedReader(RemoteFile(fetch, url, size), _STEP), url, size)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        index.save(kept)
    return index


def _beside(fetch: Fetch, url: str, size: int) -> ShardIndex | None:
    try:
        length, _ = fetch.head(f"{url}.idx")
    except (FileNotFoundError, PermissionError):
        return None
    memory, _, failures = fetch.read([Range(f"{url}.idx", 0, length)])
    if failures:
        raise failures[0]
    index = ShardIndex.load(io.BytesIO(memory[:length].tobytes()))
    return index if index is not None and index.size == size else None


class RemoteFile(io.RawIOBase):
    """A remote file of so many bytes, to be read as a local one is."""

    def __init__(self, fetch: Fetch, url: str, size: int) -> None:
        self._fetch, self._url, self._size, self._at = fetch, url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._size - self._at))
        if length:
            memory, _, failures = self._fetch.read([Range(self._url, self._at, length)])
            if failures:
                raise failures[0]
            buffer[:length] = memory[:length].data
            self._at += length
        return length


class RemoteSamples:
    """Extents of remote shards, as :class:`foreload._native.Files` are of local ones.

    With each extent the header before it is read, which must be that of the member that the index has there: a
    shard that was exchanged is an error, never another sample.

    Args:
        fetch: what reads.
        urls: of the shards.
        extents: rows of (shard, offset, length), one per sample, each beginning with a member's content.
        first: the length of each extent's first member.
    """

    def __init__(self, fetch: Fetch, urls: Sequence[str], extents: Array, first: Array) -> None:
        self._fetch = fetch
        self._urls = urls
        self._extents = extents
        self._first = first

    def read(self, samples: Sequence[int]) -> tuple[list[Array], dict[int, Exception]]:
        """Read samples; what failed is given by its position, and is empty in the list."""
        ranges = []
        for shard, offset, length in self._extents[np.asarray(samples, np.int64)].tolist():
            ranges.append(Range(self._urls[shard], offset - _HEADER, length + _HEADER))
        memory, starts, failures = self._fetch.read(ranges)
        found: list[Array] = []
        for position, sample in enumerate(samples):
            piece = memory[starts[position] : starts[position + 1]]
            if position not in failures and _size_in(piece) != self._first[sample]:
                failures[position] = DecodeError(
                    f"{ranges[position].url}: the shard is not the one that was indexed; open the dataset "
                    "again, and remove its .idx file if that is older than the shard"
                )
            found.append(piece[:0] if position in failures else piece[_HEADER:])
        return found, failures


def _size_in(header: Array) -> int:
    """Read a member's size from its header (POSIX ustar; large ones are binary, as GNU has it)."""
    field = header[124:136].tobytes()
    try:
        if field[0] & 0x80:
            return int.from_bytes(field[1:], "big")
        return int(field.rstrip(b" \0") or b"0", 8)
    except ValueError:
        return -1
