"""Samples in MosaicML's MDS shards, with random access."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
        DecodeError: an index is damaged, or a shard is not of the size that it says; later: a shard is damaged, or
            has changed.
        ValueError: a column is pickled.
        ImportError: mosaicml-streaming is not installed.
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
                _make_there(path, packed, raw.bytes, reader.compression)
            self._files.append([path for path, _ in pairs])
        self._stamps = [[stamp(path) for path in paths] for paths in self._files]
        self._starts = np.cumsum([0, *(reader.samples for reader in self._shards)], dtype=np.int64)
        return int(self._starts[-1])

    def read(self, index: int) -> Sample:
        """Load sample ``index``, from 0 to ``len(self) - 1``."""
        shard = int(np.searchsorted(self._starts, index, "right")) - 1
        self._check(shard)
        number = index - int(self._starts[shard])
        try:
            sample: Sample = self._shards[shard].get_item(number)
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
        raise ImportError(f"MDS shards need mosaicml-streaming ({error}): pip install 'foreload[mds]'") from error
    path = os.path.join(folder, _INDEX)
    try:
        about = json.loads(Path(path).read_bytes())
        version = about["version"]
        if version != 2:
            raise DecodeError(f"{path}: version {version!r} of MDS is not known, only 2")
        readers = [reader_from_json(folder, None, shard) for shard in about["shards"]]
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise DecodeError(f"{path}: no index of MDS shards, or damaged: {error!r}") from error
    for reader in readers:
        reader.validate(unsafe)
    return readers


def _paths(reader: Any, raw: Any, packed: Any) -> tuple[str, str | None]:
    """Return the paths of a shard's file, plain and compressed."""
    folder = os.path.join(reader.dirname, reader.split)
    return os.path.join(folder, raw.basename), packed and os.path.join(folder, packed.basename)


def _make_there(path: str, packed: str | None, size: int, compression: str | None) -> None:
    """Make sure that a shard's file exists, by decompressing it if need be."""
    if not os.path.exists(path) and packed is not None and os.path.exists(packed):
        from streaming.base.compression import decompress

        try:
            content = decompress(compression, Path(packed).read_bytes())
        except Exception as error:  # each library has errors of its own
            raise DecodeError(f"{packed}: the shard cannot be decompressed: {error!r}") from error
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
    if there != size:
        raise DecodeError(f"{path}: the shard has {there:,} bytes, but {_INDEX} says {size:,}; copy it again")
