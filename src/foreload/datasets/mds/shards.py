"""MDS shards: MosaicML's readers of them, and checks of their files."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foreload.checks import Indices
from foreload.errors import DecodeError

__all__ = ["INDEX", "is_mds", "make_there", "paths_of", "readers_of", "sample_offsets", "verify"]

# The file that lists the shards of a folder.
INDEX = "index.json"


def readers_of(folder: str, *, unsafe: bool) -> list[Any]:
    """Return MosaicML's readers of a folder's shards."""
    try:
        from streaming.base.format import reader_from_json
    except ImportError as error:
        raise ImportError(f"MDS shards need a package ({error}): pip install mosaicml-streaming") from error
    path = os.path.join(folder, INDEX)
    try:
        about = json.loads(Path(path).read_bytes())
        version = about["version"]
        if version != 2:
            raise DecodeError(f"{path}: version {version!r} of MDS is not known, only 2")
        readers = [reader_from_json(folder, None, shard) for shard in about["shards"]]
        for number, reader in enumerate(readers):
            if problem := _problem(reader):
                raise DecodeError(f"{path}: shard {number} {problem}")
    except (OSError, DecodeError):
        raise
    except Exception as error:  # the library looks at hardly anything before it uses it
        raise DecodeError(f"{path}: not an index of MDS shards, or damaged: {error!r:.300}") from error
    for reader in readers:
        reader.validate(unsafe)
    return readers


def _problem(reader: Any) -> str:
    """Return what makes no sense in the index's entry of a shard; empty if nothing."""
    if type(reader.samples) is not int or reader.samples < 0:
        return f"has samples={reader.samples!r}"
    if any(raw is None for raw, _ in reader.file_pairs):
        return "has no file"
    for file in (file for pair in reader.file_pairs for file in pair if file is not None):
        if type(file.bytes) is not int or file.bytes < 0:
            return f"has bytes={file.bytes!r}"
        if not isinstance(file.basename, str) or os.path.normpath(file.basename).startswith(("/", "..", "\0")):
            return f"is not in its folder: {file.basename!r}"
        hashes = file.hashes or {}
        if not isinstance(hashes, dict) or not all(map(_is_known, hashes)):
            return f"has hashes of an unknown kind: {file.hashes!r:.100}"
    if is_mds(reader):
        names, sizes = reader.column_names, reader.column_sizes
        if not len(names) == len(set(names)) == len(sizes) == len(reader.column_encodings):
            return "has columns that do not fit together, or two of one name"
        if not all(size is None or (type(size) is int and size >= 0) for size in sizes):
            return f"has column_sizes={sizes!r:.100}"
        if 4 * (reader.samples + 2) > reader.raw_data.bytes:
            return f"cannot have {reader.samples} samples in {reader.raw_data.bytes} bytes"
    return ""


def _is_known(algorithm: Any) -> bool:
    from streaming.base.hashing import is_hash

    known: bool = is_hash(algorithm)
    return known


def is_mds(reader: Any) -> bool:
    """Whether a reader is one of MDS shards: the library knows other formats too."""
    from streaming.base.format.mds import MDSReader

    return isinstance(reader, MDSReader)


def verify(reader: Any, paths: Sequence[str]) -> None:
    """Check a shard's files against the hashes in the index, if there are any, and the places of its samples.

    Raises:
        DecodeError: they are not right.
    """
    for (raw, _), path in zip(reader.file_pairs, paths, strict=True):
        with open(path, "rb") as file:
            _check_hashes(raw, file, path)
    if is_mds(reader):
        sample_offsets(reader, paths[0])


def sample_offsets(reader: Any, path: str) -> Indices:
    """Return where the samples of an MDS shard begin in its file, and where the last one ends.

    Raises:
        DecodeError: they do not make sense.
    """
    count = reader.samples
    head = np.fromfile(path, "<u4", count + 2).astype(np.int64)
    if head[0] != count:
        raise DecodeError(f"{path}: the shard has {head[0]} samples, but {INDEX} says {count}; copy it again")
    places = head[1:]
    wrong = np.diff(places) < 0
    wrong |= (places[:-1] < 4 * (count + 2)) | (places[1:] > reader.raw_data.bytes)
    if wrong.any():
        number = int(np.argmax(wrong))
        raise DecodeError(
            f"{path}: sample {number} of the shard cannot be from byte {places[number]} to {places[number + 1]}; "
            "the shard is damaged, copy it again"
        )
    return places


def _check_hashes(about: Any, file: Any, path: str) -> None:
    for name, known in (about.hashes or {}).items():
        if name in hashlib.algorithms_available:
            found = hashlib.file_digest(file, name)
        else:
            import xxhash

            found = hashlib.file_digest(file, getattr(xxhash, name))
        if found.hexdigest() != known:
            raise DecodeError(f"{path}: its {name} is not what {INDEX} says; the shard is damaged, copy it again")
        file.seek(0)


def paths_of(reader: Any, raw: Any, packed: Any) -> tuple[str, str | None]:
    """Return the paths of a shard's file, plain and compressed."""
    folder = os.path.join(reader.dirname, reader.split)
    return os.path.join(folder, raw.basename), packed and os.path.join(folder, packed.basename)


def make_there(path: str, packed: str | None, about: Any, compression: str | None) -> None:
    """Make sure that a shard's file exists, by decompressing it if need be."""
    if not os.path.exists(path) and packed is not None and os.path.exists(packed):
        from streaming.base.compression import decompress

        try:
            content = decompress(compression, Path(packed).read_bytes())
        except Exception as error:  # each library has errors of its own
            raise DecodeError(f"{packed}: the shard cannot be decompressed: {error!r}") from error
        if len(content) != about.bytes:
            raise DecodeError(
                f"{packed}: the shard has {len(content):,} bytes when decompressed, but {INDEX} says "
                f"{about.bytes:,}; copy it again"
            )
        _check_hashes(about, io.BytesIO(content), packed)
        # Another process may do the same; the last one replaces the file by an equal one.
        file, temporary = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".part")
        try:
            with open(file, "wb") as part:
                part.write(content)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    there = os.stat(path).st_size
    if there != about.bytes:
        raise DecodeError(
            f"{path}: the shard has {there:,} bytes, but {INDEX} says {about.bytes:,}; copy it again"
        )
