"""Tar shards in object storage and on web servers: their indexes, and their samples by ranges."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foreload.checks import Array
from foreload.datasets.tar.shards import ShardIndex, scan
from foreload.errors import DecodeError
from foreload.record.progress import track_threads
from foreload.remote.fetch import Fetch, Range

__all__ = ["RemoteFile", "RemoteSamples", "list_below", "list_remote", "remote_indexes"]

_HEADER = 512  # bytes before a member's content
_STEP = 1 << 20  # bytes read at a time to make an index
_AT_A_TIME = 16


def list_remote(fetch: Fetch, urls: Sequence[str]) -> list[str]:
    """Replace each URL that ends with ``/`` by the shards below it.

    Raises:
        FileNotFoundError: there are none.
        OSError: the server does not list its files, as web servers do not.
    """
    listed = []
    for url in urls:
        if url.startswith(("http://", "https://")) and ("?" in url or "#" in url):
            raise ValueError(
                f"shards: {url!r} is an address with a query, as signed ones are; use s3:// and the like"
            )
        if not url.endswith("/"):
            listed.append(url)
            continue
        if url.startswith(("http://", "https://")):
            raise OSError(f"shards: a web server does not list its files; name them: {url}train-{{000..099}}.tar")
        listed += list_below(fetch, url, (".tar",))
    return listed


def list_below(fetch: Fetch, url: str, suffixes: tuple[str, ...]) -> list[str]:
    """List the shards below a URL of object storage that ends with ``/``.

    Raises:
        FileNotFoundError: there are none.
    """
    found = [name for name in fetch.list(url) if name.endswith(suffixes)]
    if not found:
        raise FileNotFoundError(f"shards: no {', '.join(f'*{suffix}' for suffix in suffixes)} below {url!r}")
    return found


def remote_indexes(fetch: Fetch, urls: Sequence[str], folder: Path | None) -> tuple[list[ShardIndex], list[str]]:
    """Return the indexes of shards: from beside them, from ``folder``, or made by reading the shards.

    With a tag of each, which changes with its content.

    Raises:
        OSError: a shard cannot be read.
        DecodeError: it is no tar, or damaged.
    """
    looking = track_threads(
        lambda url: _index(fetch, url, folder), urls, "indexing shards", threads=_AT_A_TIME, after=1
    )
    found = list(looking)
    return [index for index, _ in found], [tag for _, tag in found]


def _index(fetch: Fetch, url: str, folder: Path | None) -> tuple[ShardIndex, str]:
    size, tag = fetch.head(url)
    kept = None
    if folder is not None:
        kept = folder / f"{hashlib.sha256(f'{url} {tag}'.encode()).hexdigest()[:32]}.idx"
        known = ShardIndex.load(kept)
        if known is not None and known.size == size:
            return known, tag
    index = _beside(fetch, url, size) or scan(io.BufferedReader(RemoteFile(fetch, url, size), _STEP), url, size)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        index.save(kept)
    return index, tag


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
    """A remote file of ``size`` bytes, read like a local one."""

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
    shard that was replaced is an error, never another sample.

    Args:
        fetch: reads ranges.
        urls: of the shards.
        extents: rows of (shard, offset, length), one per sample, each beginning with a member's content.
        first: the length of each extent's first member.
        key_of: returns a sample's key.
        keep: how many samples, from the first on, stay in memory once read.
    """

    def __init__(
        self,
        fetch: Fetch,
        urls: Sequence[str],
        extents: Array,
        first: Array,
        key_of: Callable[[int], str],
        keep: int = 0,
    ) -> None:
        self._fetch = fetch
        self._urls = urls
        self._extents = extents
        self._first = first
        self._key_of = key_of
        self._keep = keep
        self._kept: dict[int, Array] = {}

    def read(self, samples: Sequence[int]) -> tuple[list[Array], dict[int, Exception]]:
        """Read samples; return them, and failures by position, whose samples are empty."""
        where = np.asarray(samples, np.int64)
        wanted: list[int] = np.where(where < 0, where + len(self._extents), where).tolist()
        missing = [position for position, sample in enumerate(wanted) if sample not in self._kept]
        read, failed = self._read([wanted[position] for position in missing]) if missing else ([], {})
        new = dict(zip(missing, read, strict=True))
        failures = {missing[number]: error for number, error in failed.items()}
        for position, piece in new.items():
            if position not in failures and wanted[position] < self._keep:
                self._kept[wanted[position]] = piece.copy()  # the piece would keep all that was read with it
        pieces = [new[at] if at in new else self._kept[sample] for at, sample in enumerate(wanted)]
        return pieces, failures

    def _read(self, samples: Sequence[int]) -> tuple[list[Array], dict[int, Exception]]:
        ranges = []
        for shard, offset, length in self._extents[samples].tolist():
            ranges.append(Range(self._urls[shard], offset - _HEADER, length + _HEADER))
        memory, starts, failures = self._fetch.read(ranges)
        found: list[Array] = []
        for position, sample in enumerate(samples):
            piece = memory[starts[position] : starts[position + 1]]
            if position not in failures and not self._is_of(piece[:_HEADER].tobytes(), sample):
                failures[position] = DecodeError(
                    f"{ranges[position].url}: the shard is not the one that was indexed; open the dataset "
                    "again, and remove its .idx file if that is older than the shard"
                )
            found.append(piece[:0] if position in failures else piece[_HEADER:])
        return found, failures

    def _is_of(self, header: bytes, sample: int) -> bool:
        """Whether a header is that of this sample's first member."""
        if _size_in(header) != self._first[sample]:
            return False
        key = self._key_of(sample)
        if header.startswith(key.encode("utf-8", "surrogateescape") + b"."):
            return True
        name = header[:100].rstrip(b"\0")
        # Long names, and those in other alphabets, are stored elsewhere.
        if len(name) == 100 or not key.isascii():
            return True
        prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
        return (prefix + b"/" + name if prefix else name).startswith(key.encode() + b".")


def _size_in(header: bytes) -> int:
    """Read a member's size from its header (POSIX ustar; large ones are binary, as GNU has it)."""
    field = header[124:136]
    try:
        if field[0] & 0x80:
            return int.from_bytes(field[1:], "big")
        return int(field.rstrip(b" \0") or b"0", 8)
    except ValueError:
        return -1
