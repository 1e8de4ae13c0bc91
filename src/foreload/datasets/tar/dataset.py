"""Samples in tar shards, with random access."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from foreload import _native
from foreload.batch.assembly import note_sample
from foreload.batch.collated import own_getitems
from foreload.batch.failure import remaining_positions
from foreload.batch.generators.keyed import keyed_rows
from foreload.batch.read import read_samples
from foreload.cache.fingerprint import fingerprint_with
from foreload.checks import Array, check_bool, inherits
from foreload.datasets.base import BaseDataset
from foreload.datasets.direct import DirectReads
from foreload.datasets.stream import runs_of
from foreload.datasets.tar.headers import Headers
from foreload.datasets.tar.index import index_of
from foreload.datasets.tar.manifests import named_labels, read_manifests
from foreload.datasets.tar.members import members_of
from foreload.datasets.tar.remote import RemoteSamples, list_remote, remote_indexes
from foreload.datasets.tar.shards import ShardIndex, list_shards
from foreload.options import Keep, LoadingMode
from foreload.order.index import positions_of
from foreload.protocol import SampleSource, TwoStageBatches
from foreload.record.progress import track
from foreload.remote.fetch import Fetch, Version
from foreload.remote.url import is_remote, warn_of_no_urls, without_secrets

__all__ = ["Shards", "TarDataset"]

# Attributes that change no sample, or are in the stamps of the shards.
_NOT_IN_SAMPLES = (
    *("data_path", "shards", "_remotely", "_extents", "_files", "_members", "_remote", "_direct_io"),
    *("loading_mode", "decisions", "_pressure", "_kept"),
)


class Shards:
    """The samples of several shards under one numbering.

    Attributes:
        paths: of the shards.
        shown: the same for messages, without what may be secret.
        indexes: one per shard.
        starts: the number of each shard's first sample, then the count of all (int64).
    """

    def __init__(
        self,
        shards: str | Path | Sequence[str | Path],
        storage: dict[str, Any] | None = None,
        index_folder: str | Path | None = None,
        *,
        direct: bool = False,
    ) -> None:
        self.paths = list_shards(shards)
        self.fetch: Fetch | None = None
        self.indexes: list[ShardIndex]
        if any(map(is_remote, self.paths)):
            if not all(map(is_remote, self.paths)):
                raise ValueError("shards: some are local and some are remote; give two datasets, or copy them")
            self.fetch = Fetch(storage)
            self.paths = list_remote(self.fetch, self.paths)
            folder = None if index_folder is None else Path(index_folder)
            self.indexes, self._versions = remote_indexes(self.fetch, self.paths, folder)
        else:
            paths = self.paths
            with closing(track(paths, "indexing shards", total=len(paths), after=1)) as indexing:
                self.indexes = [index_of(path, direct=direct) for path in indexing]
            self._versions = [Version(index.size, str(index.modified)) for index in self.indexes]
            warn_of_no_urls(storage=storage, index_folder=index_folder)
        self.shown = list(map(without_secrets, self.paths))
        self._manifests = read_manifests(self.paths, self.fetch)
        firsts = {manifest.folder: manifest.shard for manifest in self._manifests if not manifest.is_whole}
        for shard in firsts.values():
            warnings.warn(
                f"{shard!r} belongs to a pack that was not finished; run `foreload pack` again", stacklevel=4
            )
        self.starts = np.cumsum([0, *map(len, self.indexes)], dtype=np.int64)

    def __len__(self) -> int:
        """Count the samples."""
        return int(self.starts[-1])

    def find(self, sample: int) -> tuple[int, int]:
        """Return the shard of a sample, and its number there."""
        shard = int(np.searchsorted(self.starts, sample, "right")) - 1
        return shard, sample - int(self.starts[shard])

    def key(self, sample: int) -> str:
        """Return a sample's key."""
        shard, number = self.find(sample)
        return self.indexes[shard].keys[number]

    def name(self, sample: int) -> str:
        """Return ``shard:key`` of a sample, for messages."""
        return f"{self.shown[self.find(sample)[0]]}:{self.key(sample)}"

    @property
    def labels(self) -> Array:
        """The number of each sample's class, by its ``cls`` member; -1 if it has none (int64)."""
        return self._named_labels()[0]

    @property
    def classes(self) -> list[str]:
        """The name of each class, from the ``pack.json`` beside the shards; otherwise numbers as text."""
        return self._named_labels()[1]

    def _named_labels(self) -> tuple[Array, list[str]]:
        return named_labels(self._manifests, [index.labels for index in self.indexes])

    def stamps(self) -> list[str]:
        """Return for each shard a stamp that changes with its content."""
        known = zip(self.paths, self._versions, strict=True)
        return [f"{path} {version.size} {version.tag}" for path, version in known]

    def remote(self, extents: Array, keep: int = 0) -> RemoteSamples | None:
        """Open remote shards to read these extents."""
        if self.fetch is None:
            return None
        return RemoteSamples(self.fetch, self.paths, self._versions, extents, Headers(self.indexes), keep)

    def blocks(self, size: int) -> Array:
        """Return the first of each run of up to ``size`` samples of one shard (int64)."""
        return np.concatenate([runs_of(begin, end, size) for begin, end in pairwise(self.starts.tolist())])

    def files(self, extents: Array, *, direct: bool = False, kind: Any = _native.Files, keep: int = 0) -> Any:
        """Open the shards to read these extents: rows of (shard, offset, length), one per sample."""
        stamps = np.array([(index.size, index.modified) for index in self.indexes], np.int64)
        return kind([os.fsencode(path) for path in self.paths], keep, extents, stamps, direct)

    def extents(self) -> Array:
        """Return for each sample the piece of its shard from its first member to its last."""
        rows = []
        for shard, index in enumerate(self.indexes):
            begin = index.offsets[index.first[:-1]]
            last = index.first[1:] - 1
            end = index.offsets[last] + index.lengths[last]
            rows.append(np.stack([np.full(len(index), shard), begin, end - begin], axis=1))
        return np.ascontiguousarray(np.concatenate(rows), np.int64)

    def members(self, names: Sequence[str]) -> Array:
        """Return each sample's first member of one of these fields: rows of (shard, offset, length).

        Raises:
            ValueError: a sample has none of them.
        """
        rows = []
        for shard, index in enumerate(self.indexes):
            wanted = np.isin(np.array(index.names), list(names))
            at = np.flatnonzero(wanted)
            places = np.searchsorted(at, index.first[:-1])
            chosen = at[np.minimum(places, len(at) - 1)] if len(at) else np.zeros(len(index), np.int64)
            missing = (places >= len(at)) | (chosen >= index.first[1:])
            if missing.any():
                key = index.keys[int(np.argmax(missing))]
                raise ValueError(f"{self.shown[shard]}: sample {key!r} has no {' or '.join(names)}")
            rows.append(
                np.stack([np.full(len(index), shard), index.offsets[chosen], index.lengths[chosen]], axis=1)
            )
        return np.ascontiguousarray(np.concatenate(rows), np.int64)


class TarDataset(DirectReads, BaseDataset, TwoStageBatches, SampleSource):
    """Samples in tar shards (WebDataset's layout), with random access: full shuffle, cache, exact resume.

    Members whose names are the same up to the first dot make a sample: a dict of ``"__key__"`` and, for each
    member, its field (what follows the dot, in lower case) and its bytes. Where they lie is read from
    ``SHARD.tar.idx``, which ``foreload pack`` writes, or which is made on first use.

    Args:
        shards: a folder of ``*.tar``, a file, ``"train-{000..099}.tar"``, or several of these; or URLs
            (``s3://``, ``gs://``, ``az://``, ``http://``, ``https://``), which stand for all below where they
            end with ``/``.
        transform: called with each dict, for instance to decode what is in it.
        loading_mode: as for :class:`~foreload.BaseDataset`.
        direct_io: as for :class:`~foreload.FileDataset`.
        storage: options of the storage behind URLs, as :class:`foreload.remote.fetch.Fetch` takes them.
        index_folder: where indexes of remote shards that have none beside them are kept; without it they are
            made each time, for which the shards are read.

    Raises:
        OSError: a shard cannot be read.
        DecodeError: a shard is not a tar, is cut short, or holds a member whose name leads out of it. A sample
            raises it if its shard was replaced after the dataset was made.

    >>> import io, tarfile, tempfile
    >>> shard = Path(tempfile.mkdtemp()) / "train.tar"
    >>> with tarfile.open(shard, "w") as tar:
    ...     for name, content in (("0001.txt", b"hello"), ("0001.cls", b"7")):
    ...         member = tarfile.TarInfo(name); member.size = len(content)
    ...         tar.addfile(member, io.BytesIO(content))
    >>> TarDataset(shard)[0]
    {'__key__': '0001', 'txt': b'hello', 'cls': b'7'}
    """

    def __init__(
        self,
        shards: str | Path | Sequence[str | Path],
        transform: Callable[[dict[str, Any]], Any] | None = None,
        loading_mode: LoadingMode = LoadingMode.LAZY,
        *,
        direct_io: bool = False,
        storage: dict[str, Any] | None = None,
        index_folder: str | Path | None = None,
    ) -> None:
        self._direct_io = check_bool("direct_io", direct_io)
        self._remotely = (storage, index_folder)
        super().__init__(shards, transform, None, loading_mode)  # type: ignore[arg-type]
        self.direct_io = direct_io  # which warns if that is not possible

    def _locate(self, data_path: Any) -> Any:
        self.shards = Shards(data_path, *self._remotely, direct=self.direct_io)
        self._extents = self.shards.extents()
        self._open()
        return data_path

    def _open(self) -> None:
        self._files = self.shards.files(self._extents, direct=self.direct_io)
        self._members = members_of(self.shards.indexes)
        self._remote = self.shards.remote(self._extents)

    def index(self) -> int:
        """Count the samples."""
        return len(self.shards)

    def read(self, index: int) -> dict[str, Any]:
        """Read a sample's members."""
        return self._samples([index])[0]

    def _samples(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Read several samples, before the transform."""
        where = np.asarray(indices, np.int64) % len(self.shards)
        numbers = where.tolist()
        if self._remote is None:
            samples = self._members.read(self._files, where)
            if samples is not None:
                return samples
            memory, starts = read_samples(self._files, numbers, self._extents[where, 2])  # which tells the error
            pieces = [memory[begin:end] for begin, end in pairwise(starts.tolist())]
        else:
            pieces, failures = self._remote.read(numbers)
            remaining_positions(sorted(failures.items()), numbers, "raise", [], self.shards.name)
        return [self._members.split(number, piece) for number, piece in zip(numbers, pieces, strict=True)]

    @own_getitems
    def __getitems__(self) -> Callable[[Sequence[int]], list[Any]] | None:
        """Read the samples of a batch, many at a time; None if they are kept in memory one by one."""
        own = inherits(self, TarDataset, "__getitem__", "read", "prepare_sample")
        return self._load_batch if own and self._kept is None else None

    def _load_batch(self, indices: Sequence[int]) -> list[Any]:
        numbers = positions_of(indices, self._count).tolist()
        found = self._samples(numbers)
        if (
            self.transform is None
            and self.target_transform is None
            and inherits(self, BaseDataset, "finish_sample")
        ):
            return found
        samples = []
        for position, (index, prepared) in enumerate(
            zip(numbers, keyed_rows(self._load_batch, found), strict=True)
        ):
            try:
                samples.append(self.finish_sample(index, prepared))
            except Exception as error:
                note_sample(error, index, position)
                raise
        return samples

    def read_many(self, indices: Sequence[int]) -> Sequence[Any]:
        """Load several samples, before the transform; in place of one that fails, its exception."""
        if self._kept is None and inherits(self, TarDataset, "read", "prepare_sample"):
            try:
                return self._samples(indices)
            except Exception:  # load one by one, to find out which fails
                pass
        return super().read_many(indices)

    def storage_blocks(self, size: int) -> Array:
        """Return the first of each run of samples that lie side by side in a shard."""
        return self.shards.blocks(size)

    def prepare_samples(self, indices: Sequence[int], keep: Keep = "auto") -> list[Any]:
        """Load several samples for the cache."""
        return self._samples(indices)

    @property
    def is_remote(self) -> bool:
        """Whether samples come from a server."""
        return self._remote is not None

    def fingerprint(self) -> str:
        """Return a name of what a loader's cache keeps: of shards, and what subclasses add."""
        own = ("__getitem__", "prepare_sample", "prepare_samples", "read")
        after = ["transform", "target_transform"] if inherits(self, TarDataset, *own) else []
        return fingerprint_with(self, self.shards.stamps(), without=[*_NOT_IN_SAMPLES, *after])

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the index; the shards are opened again."""
        return {**self.__dict__, "_files": None, "_remote": None, "_members": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the shards."""
        self.__dict__.update(state)
        self._open()
