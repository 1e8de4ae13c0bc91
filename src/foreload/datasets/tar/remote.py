"""Tar shards in object storage and on web servers: their indexes, and their samples by ranges."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from foreload.checks import Array
from foreload.datasets.tar.headers import HeaderEntry, Headers, agrees
from foreload.datasets.tar.shards import ShardIndex, scan
from foreload.errors import DecodeError
from foreload.record.progress import track_threads
from foreload.remote.fetch import Fetch, Range, Version, is_refused
from foreload.remote.url import without_secrets

__all__ = ["RemoteFile", "RemoteSamples", "list_below", "list_remote", "remote_indexes"]

_STEP = 1 << 20  # bytes read at a time to make an index
_AT_A_TIME = 16
_LARGE_INDEX = 1 << 20  # bytes
_NUM_COMPARED = 4  # samples by which a shard is recognised; each is compared when it is read


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
                f"shards: {without_secrets(url)!r} is an address with a query, as signed ones are; "
                "use s3:// and the like"
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


def remote_indexes(
    fetch: Fetch, urls: Sequence[str], folder: Path | None
) -> tuple[list[ShardIndex], list[Version]]:
    """Return the indexes of shards: from beside them, from ``folder``, or made by reading the shards.

    With the version of each, which its index is of.

    Raises:
        OSError: a shard cannot be read.
        DecodeError: it is not a tar file, or damaged.
    """
    found = list(
        track_threads(lambda url: _index(fetch, url, folder), urls, "indexing shards", threads=_AT_A_TIME, after=1)
    )
    useless = [url for url, (_, _, is_useless) in zip(urls, found, strict=True) if is_useless]
    if useless:
        warnings.warn(
            f"{len(useless)} of {len(urls)} shards were read to index them, since the .idx files beside them are "
            "damaged, refused, or of other shards or an earlier release; upload new ones: "
            f"{without_secrets(useless[0])}.idx",
            stacklevel=5,
        )
    return [index for index, _, _ in found], [version for _, version, _ in found]


def _index(fetch: Fetch, url: str, folder: Path | None) -> tuple[ShardIndex, Version, bool]:
    version = fetch.head(url)
    kept = None
    if folder is not None:
        kept = folder / f"{hashlib.sha256(f'{url} {version.tag}'.encode()).hexdigest()[:32]}.idx"
        known = ShardIndex.load(kept)
        # A weak tag, or none, need not change with the shard.
        if known is not None and (version.is_strong or _describes(known, fetch, url, version)):
            return known, version, False
    is_beside, index = _beside(fetch, url, version)
    is_useless = is_beside and index is None
    if index is None:
        file = io.BufferedReader(RemoteFile(fetch, url, version), _STEP)
        index = scan(file, without_secrets(url), version.size)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        index.save(kept)
    return index, version, is_useless


def _beside(fetch: Fetch, url: str, version: Version) -> tuple[bool, ShardIndex | None]:
    """Return whether there is an index beside a shard, and the index if it is that of the shard."""
    try:
        own = fetch.head(f"{url}.idx")
        if own.size > max(version.size, _LARGE_INDEX):
            return True, None  # of another shard: each member has a header, longer than what is known of it
        memory, _, failures = fetch.read([Range(f"{url}.idx", 0, own.size, own)])
        for failure in failures.values():
            raise failure
    except (FileNotFoundError, PermissionError):
        return False, None
    except OSError as error:
        # Some web servers send a page instead of a 404, perhaps another one each time, or one without ranges.
        if isinstance(error, DecodeError) or is_refused(error):
            return True, None
        raise
    index = ShardIndex.load(io.BytesIO(memory[: own.size].tobytes()))
    return True, index if index is not None and _describes(index, fetch, url, version) else None


def _describes(index: ShardIndex, fetch: Fetch, url: str, version: Version) -> bool:
    """Whether an index is that of a shard. Tars are padded, so that many have the same size."""

    def read(places: Sequence[HeaderEntry]) -> list[bytes]:
        ranges = [Range(url, place.start, place.length, version) for place in places]
        memory, starts, failures = fetch.read(ranges)
        for failure in failures.values():
            raise failure
        return [memory[begin:end].tobytes() for begin, end in pairwise(starts.tolist())]

    return index.size == version.size and agrees(index, _NUM_COMPARED, read)


class RemoteFile(io.RawIOBase):
    """A version of a remote file, read like a local one."""

    def __init__(self, fetch: Fetch, url: str, version: Version) -> None:
        self._fetch, self._url, self._version, self._size, self._at = fetch, url, version, version.size, 0

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
            memory, _, failures = self._fetch.read([Range(self._url, self._at, length, self._version)])
            if failures:
                raise failures[0]
            buffer[:length] = memory[:length].data
            self._at += length
        return length


class RemoteSamples:
    """Extents of remote shards, as :class:`foreload._native.Files` are of local ones.

    Each range is of the version of the shard that was opened. With each extent the headers of its members are read
    and the sample's label, which must be those that the index has: a shard that was replaced is an error, never
    another sample, and so is an index of another shard.

    Args:
        fetch: reads ranges.
        urls, versions: of the shards.
        extents: rows of (shard, offset, length), one per sample, each beginning with a member's content.
        headers: of all members.
        keep: how many samples, from the first on, stay in memory once read.
    """

    def __init__(
        self,
        fetch: Fetch,
        urls: Sequence[str],
        versions: Sequence[Version],
        extents: Array,
        headers: Headers,
        keep: int = 0,
    ) -> None:
        self._fetch = fetch
        self._urls = urls
        self._versions = versions
        self._extents = extents
        self._headers = headers
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
        wanted = []
        for extent, places in zip(self._extents[samples].tolist(), self._headers.of(samples), strict=True):
            shard, offset, length = extent
            wanted.append(_Wanted(shard, offset, length, places))
        ranges = [self._range(one.shard, one.start, one.stop - one.start) for one in wanted]
        apart = [(position, place) for position, one in enumerate(wanted) for place in one.apart]
        ranges += [self._range(place.shard, place.start, place.length) for _, place in apart]
        memory, starts, failed = self._fetch.read(ranges)
        pieces = [memory[begin:end] for begin, end in pairwise(starts.tolist())]
        count = len(samples)
        failures = {position: failed[position] for position in range(count) if position in failed}
        for number, (position, _) in enumerate(apart, count):
            if number in failed:
                failures.setdefault(position, failed[number])
        alike = [one.is_in(piece) for one, piece in zip(wanted, pieces, strict=False)]
        for number, (position, place) in enumerate(apart, count):
            alike[position] &= place.is_in(pieces[number])
        for position, one in enumerate(wanted):
            if position not in failures and not alike[position]:
                failures[position] = DecodeError(
                    f"{without_secrets(self._urls[one.shard])}: the shard is not the one that was indexed; open "
                    "the dataset again, and remove its .idx file if that is older than the shard"
                )
        found = [pieces[at][one.offset - one.start :] for at, one in enumerate(wanted)]
        return [piece[:0] if at in failures else piece for at, piece in enumerate(found)], failures

    def _range(self, shard: int, start: int, length: int) -> Range:
        return Range(self._urls[shard], start, length, self._versions[shard])


class _Wanted:
    """The bytes of a shard to read for one sample, and those of them to compare with the index.

    Attributes:
        shard, offset: where the extent begins.
        start, stop: of what is read in one piece, from the header of the extent's first member on.
        apart: the sample's label, if it does not lie there.
    """

    def __init__(self, shard: int, offset: int, length: int, places: list[HeaderEntry]) -> None:
        self.shard, self.offset, self.stop = shard, offset, offset + length
        self.start = next(place.start for place in places if place.start + place.header == offset)
        self._inside = [place for place in places if self.start <= place.start < self.stop]
        self.apart = [place for place in places if place.content and place not in self._inside]

    def is_in(self, piece: Array) -> bool:
        """Whether the headers and the label that were read with the extent are those of the index."""
        begins = [place.start - self.start for place in self._inside]
        return all(
            place.is_in(piece[begin : begin + place.length])
            for place, begin in zip(self._inside, begins, strict=True)
        )
