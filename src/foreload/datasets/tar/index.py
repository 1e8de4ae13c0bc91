"""The index beside a local shard."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from foreload.checks import check_regular_file
from foreload.datasets.direct import open_direct
from foreload.datasets.tar.headers import HeaderEntry, agrees
from foreload.datasets.tar.shards import ShardIndex, scan

__all__ = ["index_of"]

_SUFFIX = ".idx"

# Samples by which a shard is recognised; and if it was put there after its index.
_NUM_COMPARED = 8
_NUM_COMPARED_IF_LATER = 256


def index_of(shard: str | Path, *, save: bool = True, direct: bool = False) -> ShardIndex:
    """Return the index of a shard: the one beside it if it is up to date, otherwise a new one.

    Args:
        shard: a tar, not compressed.
        save: write a new index beside the shard, as ``shard.tar.idx``, if possible.
        direct: read the shard past the page cache, if possible.

    Raises:
        OSError: the shard cannot be read; a FileNotFoundError if there is none.
        DecodeError: it is not a tar file, is cut short, or holds a member whose name leads out of it.
    """
    if not os.path.exists(shard):
        raise FileNotFoundError(errno.ENOENT, "shards: there is no such file or folder", str(shard))
    check_regular_file(str(shard), "; read it in order by TarStream")
    path = f"{shard}{_SUFFIX}"
    known = ShardIndex.load(path)
    with open_direct(shard) if direct else open(shard, "rb") as file:
        status = os.fstat(file.fileno())
        if (
            known is not None
            and (known.size, known.modified) == (status.st_size, status.st_mtime_ns)
            and _describes(known, path, status.st_ctime_ns, file)
        ):
            return known
        file.seek(0)
        index = scan(file, str(shard), status.st_size, status.st_mtime_ns)
    if save:
        with suppress(OSError):  # no permission, or no room
            index.save(path)
    return index


def _describes(index: ShardIndex, path: str, changed: int, shard: IO[bytes]) -> bool:
    """Whether an index is that of a shard; copies have the size and the times that they are given."""

    def read(places: Sequence[HeaderEntry]) -> list[bytes]:
        return [_part(shard, place) for place in places]

    was_there_before = os.stat(path).st_ctime_ns >= changed
    return agrees(index, _NUM_COMPARED if was_there_before else _NUM_COMPARED_IF_LATER, read)


def _part(shard: IO[bytes], place: HeaderEntry) -> bytes:
    shard.seek(place.start)
    return shard.read(place.length)
