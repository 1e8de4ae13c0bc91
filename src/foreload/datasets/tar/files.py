"""Sequential reading of tar shards: files, URLs, standard input, compressed or not."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import multiprocessing
import os
import sys
import tarfile
import warnings
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, BinaryIO, cast

from foreload import _native
from foreload.datasets.folders import absolute
from foreload.datasets.tar.forward import BlockReader, Forward
from foreload.datasets.tar.info import Info
from foreload.datasets.tar.remote import RemoteFile, list_below
from foreload.datasets.tar.shards import leads_out, list_shards, split_name, tars_in
from foreload.datasets.tar.warn import warn_of_link, warn_of_more
from foreload.errors import DecodeError
from foreload.record.spans import Stage
from foreload.remote.fetch import Fetch
from foreload.remote.url import is_remote, without_secrets
from foreload.remote.webfile import WebFile

__all__ = ["Shard", "is_stored", "list_stored", "list_streams", "name_of", "sample_runs"]

Shard = str | Callable[[], BinaryIO]

_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
_STANDARD_INPUT = "-"
# Its annotations lack the errors that it raises for headers.
_headers: Any = tarfile

_STEP = 128 << 10
_REMOTE_STEP = 8 << 20


def list_streams(shards: Any) -> list[Shard]:
    """List shards: files, folders of them, URLs, ``"-"``, and functions that open a file.

    Raises:
        FileNotFoundError, ValueError, TypeError: there are no shards, or an entry is of another kind.

    >>> list_streams(["s3://bucket/{0..1}.tar.gz", "-"])
    ['s3://bucket/0.tar.gz', 's3://bucket/1.tar.gz', '-']
    """
    if callable(shards):
        return [shards]
    if isinstance(shards, (str, os.PathLike)):
        text = os.fspath(shards)
        if text.startswith("pipe:"):
            raise ValueError(
                f"shards: {text!r} is a command, and none is run; give a function that opens its output, such as "
                "lambda: subprocess.Popen(command, stdout=subprocess.PIPE).stdout"
            )
        if text == _STANDARD_INPUT:
            return [text]
        if os.path.isdir(text):
            found = tars_in(absolute(text), _SUFFIXES)
            if not found:
                raise FileNotFoundError(f"shards: no tar files, compressed or not, in {text!r}")
            return list(found)
        return list(list_shards(text))
    if hasattr(shards, "read"):
        raise TypeError("shards: an open file can be read once only; give a function that opens it")
    if not isinstance(shards, Sequence):
        raise TypeError(
            f"shards must be files, URLs, '-' or functions that open a file, got {type(shards).__name__}"
        )
    listed = [each for one in shards for each in list_streams(one)]
    if not listed:
        raise ValueError("shards is an empty list; give at least one")
    return listed


def is_stored(shard: Shard) -> bool:
    """Whether a shard is in object storage."""
    return is_remote(shard) and not str(shard).startswith(("http://", "https://"))


def list_stored(fetch: Fetch, shards: Sequence[Shard]) -> list[Shard]:
    """Replace each URL of object storage that ends with ``/`` by the shards below it, compressed or not.

    Raises:
        FileNotFoundError: there are none.
    """
    listed: list[Shard] = []
    for shard in shards:
        if is_stored(shard) and str(shard).endswith("/"):
            listed += list_below(fetch, str(shard), _SUFFIXES)
        else:
            listed.append(shard)
    return listed


def name_of(shard: Shard, number: int) -> str:
    """Return the name of a shard, for messages."""
    if isinstance(shard, str):
        return "standard input" if shard == _STANDARD_INPUT else without_secrets(shard)
    return f"shard {number} ({getattr(shard, '__qualname__', repr(shard))})"


def sample_runs(shard: Shard, name: str, fetch: Fetch | None = None) -> Iterator[list[dict[str, Any]]]:
    """Read the samples of a shard, as :class:`foreload.TarDataset` has them, some at a time.

    Raises:
        OSError: the shard cannot be read.
        DecodeError: it is not a tar file, damaged, cut short, or holds a member whose name leads out of it.
    """
    with closing(_open(shard, fetch)) as file:
        place = _ShardPosition(name)
        try:
            with closing(_unpacked(file)) as content, _Tar(fileobj=cast(Any, _forward(content))) as tar:
                yield from _runs(tar, place)
                if content is not file:
                    while content.read(_STEP):
                        pass  # as far as the checksum at the end
        except _damages() as error:
            # A library reports damage as an OSError without a number; one with a number is a failure to read.
            if isinstance(error, DecodeError) or getattr(error, "errno", None) is not None:
                raise
            raise DecodeError(f"{place}: {_said(error)}") from error


class _ShardPosition:
    """The current position in a shard, for messages."""

    def __init__(self, shard: str) -> None:
        self.shard = shard
        self.member: str | None = None
        self.samples = 0

    def __str__(self) -> str:
        if self.member is None:
            return f"{self.shard}: not a tar file, or damaged before its first member"
        samples = f"after {self.samples} whole samples"
        return f"{self.shard}: damaged or cut short at member {self.member!r} or after it, {samples}"


class _Tar(tarfile.TarFile):
    """A tar, and whether its end marker was found."""

    has_end = False
    members: list[tarfile.TarInfo]


class _Member(Info):
    """A member whose damaged header is an error; tarfile would take it for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tarfile_: Any) -> Any:
        try:
            return super().fromtarfile(tarfile_)
        except _headers.EOFHeaderError:
            tarfile_.has_end = True
            raise
        except (_headers.InvalidHeaderError, _headers.TruncatedHeaderError) as error:
            raise tarfile.ReadError(str(error)) from None

    @classmethod
    def of_plain(cls, header: bytes, encoding: str, errors: str) -> Any:
        # Part of a block of zeros is no header that is cut short: the archive ends, as TarDataset has it.
        if len(header) < tarfile.BLOCKSIZE and not header.strip(b"\0"):
            raise _headers.EmptyHeaderError("empty header")
        return super().of_plain(header, encoding, errors)


_Tar.tarinfo = _Member


def _forward(content: Any) -> Forward:
    # What is decompressed in large steps is lost as a whole where it is damaged.
    return BlockReader(content) if type(content) is io.BufferedReader else Forward(content)


def _runs(tar: _Tar, place: _ShardPosition) -> Iterator[list[dict[str, Any]]]:
    sample: dict[str, Any] = {}
    linked = False
    while (member := tar.next()) is not None:
        tar.members.clear()  # which otherwise grows with the archive
        place.member = member.name
        if leads_out(member.name):
            raise DecodeError(
                f"{place.shard}: member {member.name!r} leads out of the archive; write the shard again without it"
            )
        found = split_name(member.name)
        if found is None or not member.isfile():
            if found is not None and not linked and (member.islnk() or member.issym()):
                linked = True
                warn_of_link(place.shard, member.name)
            continue
        key, field = found
        if sample and sample["__key__"] != key:
            yield [sample]
            place.samples += 1
            sample = {}
        sample = sample or {"__key__": key}
        if field in sample:
            raise DecodeError(f"{place.shard}: sample {key!r} has two members {field!r}; write the shard again")
        if member.issparse():
            raise DecodeError(
                f"{place.shard}: member {member.name!r} is stored with holes; write the shard without --sparse"
            )
        sample[field] = _content(tar.fileobj, member)
        # (A global header may rename every member.)
        if isinstance(tar.fileobj, BlockReader) and not tar.pax_headers:
            sample = yield from _usual(tar, tar.fileobj, place, sample)
    if not sample:
        raise DecodeError(
            f"{place.shard}: the shard has no samples; members are named KEY.FIELD, such as 0001.jpg"
        )
    _check_end(tar, place)
    yield [sample]


def _usual(
    tar: _Tar, file: BlockReader, place: _ShardPosition, sample: dict[str, Any]
) -> Generator[Any, None, dict[str, Any]]:
    """Yield samples up to the first member that is left to tarfile; return the unfinished one."""
    if file.tell() != tar.offset:  # in the padding, of which tarfile asks for the last byte
        file.seek(tar.offset - 1)
        if not file.read(1):
            raise tarfile.ReadError("unexpected end of data")
    while True:
        whole, sample, last = file.parse(sample)
        if last is not None:
            place.member = last
        if count := len(whole):
            yield whole  # which is the caller's from here on
            place.samples += count
        if not file.fetch():
            break
    tar.offset = file.tell()
    return sample


def _content(file: Any, member: tarfile.TarInfo) -> bytes:
    """Read a member, behind whose header the file stands."""
    content: bytes = file.read(member.size)
    if len(content) < member.size:
        raise tarfile.ReadError("unexpected end of data")
    return content


def _check_end(tar: Any, place: _ShardPosition) -> None:
    """Warn of a tar without an end marker (two blocks of zeros), and of what comes after it."""
    block = tar.fileobj.read(tarfile.BLOCKSIZE) if tar.has_end else b""
    if block.strip(b"\0"):
        raise tarfile.ReadError("a header is missing")
    if len(block) < tarfile.BLOCKSIZE:
        warnings.warn(f"{place.shard}: the tar has no end marker; it may have been cut short", stacklevel=3)
    while data := tar.fileobj.read(_STEP):
        if data.strip(b"\0"):
            warn_of_more(place.shard)
            return


def _open(shard: Shard, fetch: Fetch | None) -> Any:
    if callable(shard):
        file = shard()
        if not callable(getattr(file, "read", None)):
            raise TypeError(f"shards: a function must give a file open for reading, got {type(file).__name__}")
        return file
    if shard == _STANDARD_INPUT:
        if multiprocessing.parent_process() is not None:
            raise ValueError(
                "shards: worker processes have no standard input; use num_workers=0, or threads "
                "(foreload.DataLoader(workers='threads'))"
            )
        return io.BufferedReader(_Joined(b"", sys.stdin.buffer))  # standard input stays open
    if shard.startswith(("http://", "https://")):
        return io.BufferedReader(WebFile(shard), _STEP)
    if is_remote(shard):
        assert fetch is not None
        return io.BufferedReader(RemoteFile(fetch, shard, fetch.head(shard)), _REMOTE_STEP)
    return open(shard, "rb")


class _Joined(io.RawIOBase):
    """The bytes already read of a file, followed by the rest."""

    def __init__(self, head: bytes, file: Any) -> None:
        self._head = head
        self._read = getattr(file, "read1", file.read)  # without waiting for all of it
        self._read_into = file.readinto1 if type(file) is io.BufferedReader else None
        self._counts = not isinstance(
            getattr(file, "raw", None), (RemoteFile, _Joined)
        )  # these count their own bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _native.Measure(Stage.read, 0) as measure:
            if self._read_into is not None and not self._head:
                count = self._read_into(buffer)
            else:
                data = self._head or self._read(len(buffer))
                self._head = data[len(buffer) :]
                count = min(len(data), len(buffer))
                buffer[:count] = data[:count]
            if self._counts:
                measure.bytes = count
        return count


def _unpacked(file: Any) -> Any:
    """Return a file decompressed, by what its first bytes show."""
    head = b""
    while len(head) < 6 and (more := file.read(6 - len(head))):
        head += more
    if not head:
        raise tarfile.ReadError("the shard is empty, it has 0 bytes")
    whole = io.BufferedReader(_Joined(head, file), _STEP)
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=whole)
    if head.startswith(b"BZh"):
        return bz2.BZ2File(whole)
    if head.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(whole)
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstandard().ZstdDecompressor().stream_reader(whole, read_across_frames=True)
    return whole


def _zstandard() -> Any:
    try:
        import zstandard  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise ImportError("reading a tar.zst needs zstandard: pip install zstandard") from error
    return zstandard


def _damages() -> tuple[type[Exception], ...]:
    damages = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError)
    # It was imported if anything was read with it.
    zstandard = sys.modules.get("zstandard")
    return damages if zstandard is None else (*damages, zstandard.ZstdError)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
