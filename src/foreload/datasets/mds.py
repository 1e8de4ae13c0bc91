"""Samples in MosaicML's MDS shards, with random access."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foreload.cache.fingerprint import check_stamp, stamp
from foreload.datasets.base import BaseDataset
from foreload.errors import DecodeError
from foreload.options import LoadingMode
from foreload.record.progress import track

__all__ = ["MDSDataset"]

Sample = dict[str, Any]

_INDEX = "index.json"


class MDSDataset(BaseDataset):
    """Samples in MDS shards on a local disk, with random access: full shuffle, cache, exact resume.

    A sample is the dict that MosaicML's reader returns, as ``streaming.LocalDataset`` has it. For shards that
    lie in a bucket and come while they are needed, use ``streaming.StreamingDataset``, which a
    :class:`foreload.DataLoader` takes as it is; what it has put on the local disk can be read here.

    Args:
        data_path: a folder with ``index.json`` and its shards, or a list of them. Shards that are there in
            compressed form only are decompressed beside it, once, as ``StreamingDataset`` does.
        transform: called with each dict.
        loading_mode: as for :class:`~foreload.BaseDataset`.
        allow_unsafe_types: read pickled columns, too, which may run any code.

    Attributes:
        folders: with the indexes.

    Raises:
        FileNotFoundError: an index or a shard is missing.
        DecodeError: an index is damaged or makes no sense, or a shard is not of the size that it says; later: a
            shard is damaged, or has changed.
        ValueError: a column is pickled.
        ImportError: mosaicml-streaming is not installed.

    When the first sample of a shard is loaded, in whichever worker, the places of all its samples are checked. If
    the index lists hashes (``MDSWriter(hashes=["sha1"])``), the whole shard is read and compared with them then,
    which takes about a second per gigabyte, once for all workers and epochs.
    """

    def __init__(
        self,
        data_path: str | Path | Sequence[str | Path],
        transform: Callable[[Sample], Any] | None = None,
        loading_mode: LoadingMode = LoadingMode.LAZY,
        *,
        allow_unsafe_types: bool = False,
    ) -> None:
        self.allow_unsafe_types = allow_unsafe_types
        super().__init__(data_path, transform, None, loading_mode)  # type: ignore[arg-type]

    def _locate(self, data_path: Any) -> Any:
        self.folders = _list_folders(data_path)
        return data_path

    def index(self) -> int:
        """Read the indexes, and check that the shards are there."""
        self._shards = [
            reader for folder in self.folders for reader in _readers(folder, unsafe=self.allow_unsafe_types)
        ]
        self._files: list[list[str]] = []
        for reader in track(self._shards, "looking at shards", total=len(self._shards), after=1):
            pairs = [_paths(reader, *pair) for pair in reader.file_pairs]
            for (raw, _), (path, packed) in zip(reader.file_pairs, pairs, strict=True):
                _make_there(path, packed, raw, reader.compression)
            self._files.append([path for path, _ in pairs])
        self._stamps = [[stamp(path) for path in paths] for paths in self._files]
        self._starts = np.cumsum([0, *(reader.samples for reader in self._shards)], dtype=np.int64)
        self._verified = _shared_flags(len(self._shards))
        return int(self._starts[-1])

    def read(self, index: int) -> Sample:
        """Load sample ``index``, from 0 to ``len(self) - 1``."""
        shard = int(np.searchsorted(self._starts, index, "right")) - 1
        self._check(shard)
        number = index - int(self._starts[shard])
        reader = self._shards[shard]
        if not self._verified[shard]:
            _verify(reader, self._files[shard])
            self._verified[shard] = True
        try:
            sample = _decoded(reader, number)
        except OSError:
            raise
        except Exception as error:  # a decoder may raise anything for damaged bytes
            raise DecodeError(
                f"{self._files[shard][0]}: sample {number} of the shard cannot be decoded: {error!r}"
            ) from error
        self._check(shard)  # it may have been overwritten during the read
        return sample

    def _check(self, shard: int) -> None:
        for path, known in zip(self._files[shard], self._stamps[shard], strict=True):
            check_stamp(path, known)

    def __getstate__(self) -> dict[str, Any]:
        """Share with a process that is being spawned which shards are verified; any other copy starts anew."""
        return {**self.__dict__, "_verified": None if get_spawning_popen() is None else self._verified}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """See :meth:`__getstate__`."""
        self.__dict__.update(state)
        if self._verified is None:
            self._verified = _shared_flags(len(self._shards))


def _shared_flags(count: int) -> torch.Tensor:
    flags = torch.zeros(count, dtype=torch.bool)
    try:
        return flags.share_memory_()  # type: ignore[no-untyped-call,no-any-return]
    except (RuntimeError, OSError):  # no shared memory: each process verifies for itself
        return flags


def _list_folders(data_path: Any) -> list[str]:
    if isinstance(data_path, (str, os.PathLike)):
        if not os.path.isfile(os.path.join(data_path, _INDEX)):
            raise FileNotFoundError(f"data_path: there is no {_INDEX} in {os.fspath(data_path)!r}")
        return [os.fspath(data_path)]
    if not isinstance(data_path, Iterable):
        raise TypeError(f"data_path must be a folder or a list of them, got {type(data_path).__name__}")
    folders = [folder for part in data_path for folder in _list_folders(part)]
    if not folders:
        raise ValueError("data_path is an empty list; give at least one folder")
    return folders


def _readers(folder: str, *, unsafe: bool) -> list[Any]:
    """Return MosaicML's readers of a folder's shards."""
    try:
        from streaming.base.format import reader_from_json
    except ImportError as error:
        raise ImportError(f"MDS shards need a package ({error}): pip install mosaicml-streaming") from error
    path = os.path.join(folder, _INDEX)
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
        raise DecodeError(f"{path}: no index of MDS shards, or damaged: {error!r:.300}") from error
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
            return f"has hashes of no known kind: {file.hashes!r:.100}"
    if isinstance(reader, _mds_reader()):
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


def _mds_reader() -> Any:
    from streaming.base.format.mds import MDSReader

    return MDSReader


def _verify(reader: Any, paths: Sequence[str]) -> None:
    """Check a shard's files against the hashes in the index, if there are any, and the places of its samples.

    Raises:
        DecodeError: they are not right.
    """
    for (raw, _), path in zip(reader.file_pairs, paths, strict=True):
        with open(path, "rb") as file:
            _check_hashes(raw, file, path)
    if not isinstance(reader, _mds_reader()):
        return
    (path,), count = paths, reader.samples
    head = np.fromfile(path, "<u4", count + 2).astype(np.int64)
    if head[0] != count:
        raise DecodeError(f"{path}: the shard has {head[0]} samples, but {_INDEX} says {count}; copy it again")
    places = head[1:]
    wrong = np.diff(places) < 0
    wrong |= (places[:-1] < 4 * (count + 2)) | (places[1:] > reader.raw_data.bytes)
    if wrong.any():
        number = int(np.argmax(wrong))
        raise DecodeError(
            f"{path}: sample {number} of the shard cannot be from byte {places[number]} to {places[number + 1]}; "
            "the shard is damaged, copy it again"
        )


def _check_hashes(about: Any, file: Any, path: str) -> None:
    for name, known in (about.hashes or {}).items():
        if name in hashlib.algorithms_available:
            found = hashlib.file_digest(file, name)
        else:
            import xxhash

            found = hashlib.file_digest(file, getattr(xxhash, name))
        if found.hexdigest() != known:
            raise DecodeError(f"{path}: its {name} is not what {_INDEX} says; the shard is damaged, copy it again")
        file.seek(0)


def _decoded(reader: Any, number: int) -> Sample:
    """Load a sample, whose parts must be as long as it is."""
    sample: Sample
    if not isinstance(reader, _mds_reader()):
        sample = reader.get_item(number)
        return sample
    data = reader.get_sample_data(number)
    variable = sum(not size for size in reader.column_sizes)
    length = 4 * variable + sum(size or 0 for size in reader.column_sizes)
    length += int(np.frombuffer(data, "<u4", variable).sum(dtype=np.int64))
    if length != len(data):
        raise ValueError(f"its columns take {length} bytes, but it has {len(data)}")
    sample = reader.decode_sample(data)
    return sample


def _paths(reader: Any, raw: Any, packed: Any) -> tuple[str, str | None]:
    """Return the paths of a shard's file, plain and compressed."""
    folder = os.path.join(reader.dirname, reader.split)
    return os.path.join(folder, raw.basename), packed and os.path.join(folder, packed.basename)


def _make_there(path: str, packed: str | None, about: Any, compression: str | None) -> None:
    """Make sure that a shard's file exists, by decompressing it if need be."""
    if not os.path.exists(path) and packed is not None and os.path.exists(packed):
        from streaming.base.compression import decompress

        try:
            content = decompress(compression, Path(packed).read_bytes())
        except Exception as error:  # each library has errors of its own
            raise DecodeError(f"{packed}: the shard cannot be decompressed: {error!r}") from error
        if len(content) != about.bytes:
            raise DecodeError(
                f"{packed}: the shard has {len(content):,} bytes when decompressed, but {_INDEX} says "
                f"{about.bytes:,}"
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
            f"{path}: the shard has {there:,} bytes, but {_INDEX} says {about.bytes:,}; copy it again"
        )
