"""Tar shards, and an index of each: where the members of its samples lie."""

from __future__ import annotations

import os
import re
import tarfile
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any

import numpy as np

from foreload.errors import DecodeError
from foreload.stages.fetch import is_remote, local_path

__all__ = ["ShardIndex", "are_shards", "index_of", "list_shards", "split_name"]

Array = np.ndarray[Any, Any]

_VERSION = 1
_SUFFIX = ".idx"
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
_BLOCK = 512


def split_name(name: str) -> tuple[str, str] | None:
    """Split a member's name into the key of its sample and the field; None for what belongs to no sample.

    As WebDataset has it: the key ends at the first dot of the last part.

    >>> split_name("train/cat.0001.JPG"), split_name("train/README"), split_name("__meta.json")
    (('train/cat', '0001.jpg'), None, None)
    """
    folder, _, base = name.rpartition("/")
    stem, dot, field = base.partition(".")
    if not stem or not dot or not field or stem.startswith("__"):
        return None
    return (f"{folder}/{stem}" if folder else stem), field.lower()


@dataclass(frozen=True)
class ShardIndex:
    """What lies where in a tar.

    Attributes:
        size: of the shard when it was indexed, in bytes.
        modified: when the shard was changed last, in nanoseconds.
        keys: of the samples, in the order of the shard.
        first: the first member of each sample, and behind the last one the count of members (int64).
        names: the field of each member, such as ``"jpg"``.
        offsets, lengths: where each member's bytes lie (int64).
        labels: the number in each sample's ``cls`` member (int64), -1 where there is none.
    """

    size: int
    modified: int
    keys: list[str]
    first: Array
    names: list[str]
    offsets: Array
    lengths: Array
    labels: Array

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.keys)

    def save(self, path: str | Path) -> None:
        """Write it to a file; a reader sees either all of it or nothing."""
        temporary = Path(f"{path}.{os.getpid()}.part")
        with temporary.open("wb") as file:
            np.savez(
                file, version=_VERSION, **{field.name: _flat(getattr(self, field.name)) for field in fields(self)}
            )
        temporary.replace(path)

    @classmethod
    def load(cls, path: str | Path | IO[bytes]) -> ShardIndex | None:
        """Read it from a file; None where that is none, damaged, or of another version."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                if int(stored["version"]) != _VERSION:
                    return None
                values = {field.name: stored[field.name] for field in fields(cls)}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
            return None
        index = cls(
            **values
            | {name: int(values[name]) for name in ("size", "modified")}
            | {name: bytes(values[name]).decode().split("\0") for name in ("keys", "names")}
        )
        whole = (
            len(index.first) == len(index.keys) + 1 and len(index.names) == len(index.offsets) == index.first[-1]
        )
        return index if whole else None


def _flat(value: Any) -> Any:
    return np.frombuffer("\0".join(value).encode(), np.uint8) if isinstance(value, list) else value


def index_of(shard: str | Path, *, save: bool = True) -> ShardIndex:
    """Give the index of a shard: the one beside it if it is of this very file, otherwise a new one.

    Args:
        shard: a tar, not compressed.
        save: keep a new index beside the shard, as ``shard.tar.idx``, where that can be written.

    Raises:
        OSError: it cannot be read.
        DecodeError: it is no tar, is cut short, or holds a member whose name leads out of it.
    """
    status = os.stat(shard)
    path = f"{shard}{_SUFFIX}"
    known = ShardIndex.load(path)
    if known is not None and (known.size, known.modified) == (status.st_size, status.st_mtime_ns):
        return known
    with open(shard, "rb") as file:
        index = scan(file, str(shard), status.st_size, status.st_mtime_ns)
    if save and os.access(os.path.dirname(os.path.abspath(shard)), os.W_OK):
        index.save(path)
    return index


def scan(file: Any, source: str, size: int, modified: int = 0) -> ShardIndex:
    """Make the index of a tar by going through it.

    Raises:
        DecodeError: as :func:`index_of`.
    """
    if size == 0:
        raise DecodeError(f"{source}: the shard is empty, it has 0 bytes")
    keys: list[str] = []
    first: list[int] = []
    names: list[str] = []
    places: list[tuple[int, int]] = []
    labels: list[int] = []
    end = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
                if member.offset_data + member.size > size:
                    raise DecodeError(f"{source}: the shard is cut short in member {member.name!r}")
                _check_name(member.name, source)
                found = split_name(member.name) if member.isfile() else None
                if found is None:
                    continue
                key, name = found
                if not keys or keys[-1] != key:
                    keys.append(key)
                    first.append(len(names))
                    labels.append(-1)
                if name == "cls":
                    labels[-1] = _label(tar.extractfile(member), member.name, source)
                names.append(name)
                places.append((member.offset_data, member.size))
    except tarfile.TarError as error:
        raise DecodeError(f"{source}: no tar, or damaged: {error}; unpack it if it is compressed") from error
    if not keys:
        raise DecodeError(f"{source}: the shard has no samples; members are named KEY.FIELD, such as 0001.jpg")
    if end + 2 * _BLOCK > size:
        warnings.warn(f"{source}: the tar has no end marker; it may have been cut short", stacklevel=3)
    where = np.array(places, np.int64).reshape(-1, 2)
    return ShardIndex(
        size,
        modified,
        keys,
        np.array([*first, len(names)], np.int64),
        names,
        np.ascontiguousarray(where[:, 0]),
        np.ascontiguousarray(where[:, 1]),
        np.array(labels, np.int64),
    )


def _check_name(name: str, source: str) -> None:
    if name.startswith("/") or ".." in name.split("/"):
        raise DecodeError(f"{source}: member {name!r} leads out of the archive; make the shard anew without it")


def _label(content: IO[bytes] | None, name: str, source: str) -> int:
    text = b"" if content is None else content.read(64)
    try:
        return int(text)
    except ValueError:
        raise DecodeError(f"{source}: member {name!r} must hold a number, got {text[:20]!r}") from None


def are_shards(data_path: Any) -> bool:
    """Whether a path, or list of paths, means tar shards.

    >>> are_shards("train-{000..099}.tar"), are_shards(["a.jpg", "b.jpg"])
    (True, False)
    """
    if not isinstance(data_path, (str, os.PathLike)):
        return isinstance(data_path, Sequence) and len(data_path) > 0 and are_shards(data_path[0])
    text = local_path(os.fspath(data_path))
    return is_remote(text) or text.endswith(".tar") or (os.path.isdir(text) and any(Path(text).glob("*.tar")))


def list_shards(shards: str | Path | Sequence[str | Path]) -> list[str]:
    """List shards: of a folder, or a file or URL, or ``"train-{000..099}.tar"``, or several of these.

    Raises:
        FileNotFoundError: there are none.

    >>> list_shards("s3://bucket/train-{08..10}.tar")
    ['s3://bucket/train-08.tar', 's3://bucket/train-09.tar', 's3://bucket/train-10.tar']
    """
    if not isinstance(shards, (str, os.PathLike)):
        listed = [name for one in shards for name in list_shards(one)]
        if not listed:
            raise ValueError("shards is an empty list; give at least one")
        return listed
    text = local_path(os.fspath(shards))
    if braces := _BRACES.search(text):
        low, high = braces.groups()
        numbers = range(int(low), int(high) + 1)
        return [
            name
            for number in numbers
            for name in list_shards(f"{text[: braces.start()]}{number:0{len(low)}}{text[braces.end() :]}")
        ]
    if is_remote(text) or not os.path.isdir(text):
        return [text]
    found = sorted(str(path) for path in Path(text).glob("*.tar"))
    if not found:
        raise FileNotFoundError(f"shards: no *.tar in {text!r}")
    return found
