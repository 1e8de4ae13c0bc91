"""Indexes of tar shards: where the members of samples lie."""

from __future__ import annotations

import os
import re
import secrets
import tarfile
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any

import numpy as np

from foreload.checks import Array, fits_int64
from foreload.datasets.folders import absolute, check_listable, is_special
from foreload.datasets.tar.arrays import read_arrays
from foreload.datasets.tar.info import Info
from foreload.datasets.tar.patterns import expand
from foreload.datasets.tar.warn import warn_of_apart, warn_of_link, warn_of_more
from foreload.errors import DecodeError
from foreload.remote.url import is_remote, local_path

__all__ = [
    "LABEL_BYTES",
    "ShardIndex",
    "are_shards",
    "leads_out",
    "list_shards",
    "read_label",
    "scan",
    "split_name",
    "tars_in",
]

LABEL_BYTES = 64  # of a cls member, at most; the rest is not read

_VERSION = 2  # the first one had no headers
_UNPACK = "unpack it if it is compressed, or read it in order by TarStream"
_BLOCK = 512
_STEP = 1 << 20
# WebDataset's rule for members that describe others.
_META = re.compile(r"__[^/]*__($|/)")


def split_name(name: str) -> tuple[str, str] | None:
    """Split a member's name into the key of its sample and the field; None if it belongs to no sample.

    As WebDataset has it: the key ends at the first dot of the last part; members that begin with ``__NAME__`` and
    hidden files belong to no sample.

    >>> split_name("train/cat.0001.JPG"), split_name("train/README"), split_name("__meta__.json/a.b")
    (('train/cat', '0001.jpg'), None, ('__meta__.json/a', 'b'))
    >>> split_name("__meta__/a.json"), split_name("train/.hidden")
    (None, None)
    """
    if _META.match(name):
        return None
    folder, slash, base = name.rpartition("/")
    stem, dot, field = base.partition(".")
    return (f"{folder}{slash}{stem}", field.lower()) if stem and dot else None


def leads_out(name: str) -> bool:
    """Whether a member's name leads out of its archive.

    >>> leads_out("a/../b.jpg"), leads_out("/etc/a.conf"), leads_out("a..b/c.jpg")
    (True, True, False)
    """
    return name.startswith("/") or ".." in name.split("/")


@dataclass(frozen=True)
class ShardIndex:
    """The index of a tar.

    Attributes:
        size: of the shard when it was indexed, in bytes.
        modified: when the shard was changed last, in nanoseconds.
        keys: of the samples, in the order of the shard.
        first: the first member of each sample, then the count of members (int64).
        names: the field of each member, such as ``"jpg"``.
        offsets, lengths: where each member's bytes lie (int64).
        header_lengths: of the headers before each member's bytes, the records that belong to it included (int64).
        header_checks: the CRC-32 of each of them (uint32), by which the shard is recognised.
        labels: the number in each sample's ``cls`` member (int64), -1 if there is none.
    """

    size: int
    modified: int
    keys: list[str]
    first: Array
    names: list[str]
    offsets: Array
    lengths: Array
    header_lengths: Array
    header_checks: Array
    labels: Array

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.keys)

    def save(self, path: str | Path) -> None:
        """Write it to a file; a reader sees all of it or none."""
        temporary = Path(f"{path}.{secrets.token_hex(8)}.part")
        values = {field.name: _flat(getattr(self, field.name)) for field in fields(self)}
        try:
            with temporary.open("xb") as file:  # not through a link that somebody has put there
                np.savez(file, version=_VERSION, **values)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | Path | IO[bytes]) -> ShardIndex | None:
        """Read it from a file; None if that is missing, damaged, or of another version."""
        try:
            values: dict[str, Any] = read_arrays(path, ["version", *(field.name for field in fields(cls))])
            if int(values.pop("version")) != _VERSION:
                return None
            index = cls(
                **values
                | {name: int(values[name]) for name in ("size", "modified")}
                | {name: _text(values[name]).split("\0") for name in ("keys", "names")}
            )
            return index if index._is_sound() else None
        except Exception:  # a damaged file may raise anything
            return None

    def _is_sound(self) -> bool:
        """Whether its parts belong together, and lie within the shard, one after the other."""
        members, samples = (len(self.names),), (len(self.keys),)
        per_member = (self.offsets, self.lengths, self.header_lengths)
        if any(values.shape != members or values.dtype != np.int64 for values in per_member):
            return False
        if self.header_checks.shape != members or self.header_checks.dtype != np.uint32:
            return False
        if self.labels.shape != samples or self.first.shape != (len(self.keys) + 1,):
            return False
        if self.labels.dtype != np.int64 or self.first.dtype != np.int64:
            return False
        is_split = self.first[0] == 0 and self.first[-1] == len(self.names) and (np.diff(self.first) > 0).all()
        # Compared without adding: the sum of two large numbers is negative.
        is_within = (self.header_lengths >= _BLOCK).all() and (self.header_lengths <= self.offsets).all()
        is_within &= (self.offsets <= self.size).all()
        is_within &= (self.lengths >= 0).all() and (self.lengths <= self.size - self.offsets).all()
        is_rising = (self.offsets[1:] - self.lengths[:-1] - self.offsets[:-1] >= _BLOCK).all()
        return bool(is_split and is_within and is_rising)


def _flat(value: Any) -> Any:
    return np.frombuffer(os.fsencode("\0".join(value)), np.uint8) if isinstance(value, list) else value


def _text(value: Array) -> str:
    return os.fsdecode(value.tobytes())


def scan(file: Any, source: str, size: int, modified: int = 0) -> ShardIndex:
    """Make the index of a tar by reading its headers.

    Raises:
        DecodeError: it is not a tar file, is cut short, or holds a member whose name leads out of it.
    """
    if size == 0:
        raise DecodeError(f"{source}: the shard is empty, it has 0 bytes")
    keys: list[str] = []
    first: list[int] = []
    names: list[str] = []
    places: list[tuple[int, int, int, int]] = []
    labels: list[int] = []
    linked = False
    try:
        with tarfile.open(fileobj=file, mode="r:", tarinfo=Info) as tar:
            for member in tar:
                _check_member(member, source, size)
                found = split_name(member.name)
                if found is None or not member.isfile():
                    if found is not None and not linked and (member.islnk() or member.issym()):
                        linked = True
                        warn_of_link(source, member.name)
                    continue
                key, name = found
                if not keys or keys[-1] != key:
                    fields_of_sample = {"__key__"}
                    keys.append(key)
                    first.append(len(names))
                    labels.append(-1)
                if name in fields_of_sample:
                    raise DecodeError(f"{source}: sample {key!r} has two members {name!r}; write the shard again")
                fields_of_sample.add(name)
                if name == "cls":
                    labels[-1] = _label(tar.extractfile(member), member.name, source)
                names.append(name)
                places.append((member.offset_data, member.size, *_header_of(member, file)))
            _check_end(tar, file, source, size)
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise DecodeError(f"{source}: not a tar file, or damaged: {error}; {_UNPACK}") from error
    if not keys:
        raise DecodeError(f"{source}: the shard has no samples; members are named KEY.FIELD, such as 0001.jpg")
    warn_of_apart(source, keys)
    where = np.array(places, np.int64).reshape(-1, 4)
    return ShardIndex(
        size,
        modified,
        keys,
        np.array([*first, len(names)], np.int64),
        names,
        np.ascontiguousarray(where[:, 0]),
        np.ascontiguousarray(where[:, 1]),
        np.ascontiguousarray(where[:, 2]),
        where[:, 3].astype(np.uint32),
        np.array(labels, np.int64),
    )


def _check_member(member: tarfile.TarInfo, source: str, size: int) -> None:
    name = member.name
    if member.isfile() and member.offset_data + member.size > size and not member.issparse():
        raise DecodeError(f"{source}: the shard is cut short in member {name!r}")
    if leads_out(name):
        raise DecodeError(f"{source}: member {name!r} leads out of the archive; write the shard again without it")
    if member.issparse():
        raise DecodeError(f"{source}: member {name!r} is stored with holes; write the shard without --sparse")


def _check_end(tar: tarfile.TarFile, file: IO[bytes], source: str, size: int) -> None:
    # tarfile takes a damaged header for the end of the archive.
    file.seek(tar.offset)
    rest = file.read(2 * _BLOCK)
    if rest.strip(b"\0"):
        raise DecodeError(f"{source}: the shard is damaged, or cut short, at byte {tar.offset:,} of {size:,}")
    if len(rest) < 2 * _BLOCK:
        warnings.warn(f"{source}: the tar has no end marker; it may have been cut short", stacklevel=5)
    while rest := file.read(_STEP):
        if rest.strip(b"\0"):
            warn_of_more(source)
            return


def _header_of(member: tarfile.TarInfo, file: IO[bytes]) -> tuple[int, int]:
    """Return the length and the CRC-32 of a member's header, with the records that belong to it alone."""
    length = member.offset_data - member.offset
    file.seek(member.offset)
    return length, zlib.crc32(file.read(length))


def _label(content: IO[bytes] | None, name: str, source: str) -> int:
    text = b"" if content is None else content.read(LABEL_BYTES)
    label = read_label(text)
    if label is None:
        raise DecodeError(
            f"{source}: member {name!r} must hold a number that fits into int64, got {text[:20]!r}; give other "
            "data another field than .cls, or read the shard with TarStream, where it is bytes"
        )
    return label


def read_label(text: bytes) -> int | None:
    """Read the number in a ``cls`` member; None if it is none, or int64 does not hold it.

    >>> read_label(b"7"), read_label(b"cat")
    (7, None)
    """
    try:
        label = int(text)
    except ValueError:
        return None
    return label if fits_int64(label) else None


def are_shards(data_path: Any) -> bool:
    """Whether a path, or list of paths, means tar shards.

    >>> are_shards("train-{000..099}.tar"), are_shards(["a.jpg", "b.jpg"])
    (True, False)
    """
    if not isinstance(data_path, (str, os.PathLike)):
        return isinstance(data_path, Sequence) and len(data_path) > 0 and are_shards(data_path[0])
    text = local_path(os.fspath(data_path))
    return is_remote(text) or text.endswith(".tar") or (os.path.isdir(text) and bool(tars_in(text, (".tar",))))


def tars_in(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    """List the files in a folder with one of these suffixes, sorted; hidden ones do not count."""
    names = (entry.name for entry in os.scandir(folder) if not is_special(entry))
    return sorted(os.path.join(folder, name) for name in names if name.endswith(suffixes) and name[0] != ".")


def list_shards(shards: str | Path | Sequence[str | Path]) -> list[str]:
    """List shards: of a folder, or a file or URL, or a pattern (:func:`expand`), or several of these.

    Raises:
        FileNotFoundError: there are none.

    >>> list_shards("s3://bucket/train-{08..10}.tar")
    ['s3://bucket/train-08.tar', 's3://bucket/train-09.tar', 's3://bucket/train-10.tar']
    """
    if not isinstance(shards, (str, os.PathLike)):
        check_listable("shards", shards)
        if not isinstance(shards, Sequence):
            raise TypeError(f"shards must be a path or a list of them, got {type(shards).__name__}")
        listed = [name for one in shards for name in list_shards(one)]
        if not listed:
            raise ValueError("shards is an empty list; give at least one")
        return listed
    text = local_path(os.fspath(shards))
    if not text:
        raise FileNotFoundError("shards is an empty path; give a file, a folder or a pattern")
    if "{" in text and (is_remote(text) or not os.path.exists(text)):
        try:
            names = expand(text)
        except ValueError as error:
            raise ValueError(f"{error}, in {text!r}") from None
        if names != [text]:
            return [name for one in names for name in list_shards(one)]
    if is_remote(text):
        return [text]
    if not os.path.isdir(text):
        if not os.path.exists(text) and any(wild in text for wild in "*?["):
            raise FileNotFoundError(
                f"shards: there is no file {text!r}; give sorted(glob.glob({text!r})), their folder, or "
                "numbers as in 'train-{000..099}.tar'"
            )
        return [absolute(text)]
    found = tars_in(absolute(text), (".tar",))
    if not found:
        raise FileNotFoundError(f"shards: no *.tar in {text!r}")
    return found
