"""Samples in MosaicML's MDS shards, with random access."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from foreload import _native
from foreload.batch.assembly import note_sample
from foreload.batch.collate import is_default_collate
from foreload.batch.collated import Collated, own_getitems
from foreload.batch.columns import ColumnAssembly
from foreload.batch.generators.keyed import keyed_rows
from foreload.cache.fingerprint import check_stamp, stamp
from foreload.checks import Array, Indices, inherits
from foreload.datasets.base import BaseDataset
from foreload.datasets.folders import absolute, check_listable
from foreload.datasets.mds.columns import Columns, Sample
from foreload.datasets.mds.shards import INDEX, is_mds, make_there, paths_of, readers_of, sample_offsets, verify
from foreload.errors import DecodeError
from foreload.options import LoadingMode
from foreload.order.index import positions_of
from foreload.protocol import BatchMemory, BatchOptions, NativeBatches
from foreload.record.progress import track

__all__ = ["MDSDataset"]


class _Opened(NamedTuple):
    """A shard of which samples have been loaded in this process."""

    files: _native.Files
    lengths: Indices
    columns: Columns


class MDSDataset(BaseDataset, NativeBatches):
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

    >>> import tempfile; from streaming import MDSWriter  # doctest: +SKIP
    >>> folder = tempfile.mkdtemp()  # doctest: +SKIP
    >>> with MDSWriter(out=folder, columns={"text": "str", "label": "int"}) as writer:  # doctest: +SKIP
    ...     for number in range(3):
    ...         writer.write({"text": f"text {number}", "label": number})
    >>> texts = MDSDataset(folder)  # doctest: +SKIP
    >>> len(texts), texts[2]["text"]  # doctest: +SKIP
    (3, 'text 2')
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
            reader for folder in self.folders for reader in readers_of(folder, unsafe=self.allow_unsafe_types)
        ]
        self._files: list[list[str]] = []
        for reader in track(self._shards, "looking at shards", total=len(self._shards), after=1):
            pairs = [paths_of(reader, *pair) for pair in reader.file_pairs]
            for (raw, _), (path, packed) in zip(reader.file_pairs, pairs, strict=True):
                make_there(path, packed, raw, reader.compression)
            self._files.append([path for path, _ in pairs])
        self._stamps = [[stamp(path) for path in paths] for paths in self._files]
        self._starts = np.cumsum([0, *(reader.samples for reader in self._shards)], dtype=np.int64)
        self._verified = _shared_flags(len(self._shards))
        self._opened: list[_Opened | None] = [None] * len(self._shards)
        return int(self._starts[-1])

    def read(self, index: int) -> Sample:
        """Load sample ``index``, from 0 to ``len(self) - 1``."""
        shard = int(np.searchsorted(self._starts, index, "right")) - 1
        self._verify(shard)
        number = index - int(self._starts[shard])
        try:
            sample = _decoded(self._shards[shard], number)
        except OSError:
            raise
        except Exception as error:  # a decoder may raise anything for damaged bytes
            raise DecodeError(
                f"{self._files[shard][0]}: sample {number} of the shard cannot be decoded: {error!r}"
            ) from error
        self._check(shard)  # it may have been overwritten during the read
        return sample

    def _verify(self, shard: int) -> None:
        self._check(shard)
        if not self._verified[shard]:
            verify(self._shards[shard], self._files[shard])
            self._verified[shard] = True

    @own_getitems
    def __getitems__(self) -> Callable[[Sequence[int]], Sequence[Any]] | None:
        """Load the samples of a batch, many at a time; None if a subclass loads them, or memory keeps them."""
        own = inherits(self, MDSDataset, "__getitem__", "prepare_sample", "read")
        return self._load_batch if own and self._kept is None else None

    def _load_batch(self, indices: Sequence[int]) -> list[Any]:
        numbers = positions_of(indices, self._count).tolist()
        try:
            read: Sequence[Sample] | None = self._read_samples(numbers)
        except Exception:  # load one by one, to find out which fails, and why
            read = None
        samples = []
        for position, number in enumerate(keyed_rows(self._load_batch, numbers)):
            try:
                sample = self.read(number) if read is None else read[position]
                samples.append(self.finish_sample(number, sample))
            except Exception as error:
                note_sample(error, number, position)
                raise
        return samples

    def _read_samples(self, numbers: Sequence[int]) -> list[Sample] | None:
        """Read samples, shard by shard; None if one of them is not in an MDS shard."""
        found: dict[int, Sample] = {}
        for positions, shard, inside in self._by_shard(numbers):
            if not is_mds(self._shards[shard]):
                return None
            opened = self._open(shard)
            starts = _starts(opened.lengths[inside])
            memory = np.empty(starts[-1], np.uint8)
            _read(opened.files, inside, starts, memory)
            found |= zip(positions, opened.columns.samples(memory, starts), strict=True)
        return [found[position] for position in range(len(numbers))]

    def _collated(self, numbers: Sequence[int]) -> dict[str, torch.Tensor] | None:
        """Return a batch as ``default_collate`` makes it; None if samples have other columns than numbers.

        Raises:
            Exception: a sample cannot be loaded; loading it alone tells which and why.
        """
        runs = list(self._by_shard(numbers))
        if not all(is_mds(self._shards[shard]) for _, shard, _ in runs):
            return None
        shards = [self._open(shard) for _, shard, _ in runs]
        columns = shards[0].columns
        width = columns.width
        if width is None or any(opened.columns is not columns for opened in shards):
            return None
        rows = np.empty((len(numbers), width), np.uint8)
        begin = 0
        for (_, _, inside), opened in zip(runs, shards, strict=True):
            if (opened.lengths[inside] != width).any():
                return None
            end = begin + len(inside)
            starts = np.arange(0, (len(inside) + 1) * width, width, dtype=np.int64)
            _read(opened.files, inside, starts, rows[begin:end].reshape(-1))
            begin = end
        places = np.empty(len(numbers), np.int64)
        places[np.concatenate([positions for positions, _, _ in runs])] = np.arange(len(numbers))
        return columns.batch(rows[places])

    def _by_shard(self, numbers: Sequence[int]) -> Iterator[tuple[Indices, int, Indices]]:
        """Yield for each shard that samples lie in: their positions, the shard, and their numbers in it."""
        wanted = np.asarray(numbers, np.int64)
        shards = np.searchsorted(self._starts, wanted, "right") - 1
        order = np.argsort(shards, kind="stable")
        ends = np.flatnonzero(np.diff(shards[order], append=-1)) + 1
        for begin, end in pairwise([0, *ends.tolist()]):
            positions = order[begin:end]
            shard = int(shards[positions[0]])
            yield positions, shard, wanted[positions] - self._starts[shard]

    def _open(self, shard: int) -> _Opened:
        opened = self._opened[shard]
        if opened is None:
            self._verify(shard)
            reader, (path,), (known,) = self._shards[shard], self._files[shard], self._stamps[shard]
            places = sample_offsets(reader, path)
            extents = np.stack([np.zeros(reader.samples, np.int64), places[:-1], np.diff(places)], axis=1)
            stamps = np.array([[int(part) for part in known.split()[-2:]]], np.int64)
            files = _native.Files([os.fsencode(path)], 0, extents, stamps, False)
            layout = reader.column_names, reader.column_encodings, reader.column_sizes
            opened = _Opened(files, np.diff(places), Columns.of(*map(tuple, layout)))
            self._opened[shard] = opened
        return opened

    def batch_assembly(
        self, spec: BatchOptions, key: tuple[int, int], buffers: BatchMemory
    ) -> ColumnAssembly | None:
        """Make whole batches of columns for foreload's DataLoader, unless a subclass loads samples itself."""
        own = inherits(self, MDSDataset, "__getitems__", "finish_sample") and self.__getitems__ is not None
        if (
            not own
            or self.transform is not None
            or spec.cache is not None
            or not is_default_collate(spec.collate_fn)
        ):
            return None
        return ColumnAssembly(spec, _Batches(self), buffers)

    def _check(self, shard: int) -> None:
        for path, known in zip(self._files[shard], self._stamps[shard], strict=True):
            check_stamp(path, known)

    def __getstate__(self) -> dict[str, Any]:
        """Share with a process that is being spawned which shards are verified; any other copy starts anew."""
        verified = None if get_spawning_popen() is None else self._verified
        return {**self.__dict__, "_verified": verified, "_opened": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """See :meth:`__getstate__`."""
        self.__dict__.update(state)
        self._opened = [None] * len(self._shards)
        if self._verified is None:
            self._verified = _shared_flags(len(self._shards))


class _Batches:
    """A view of an MDS dataset whose batches are made of columns, if possible."""

    def __init__(self, dataset: MDSDataset) -> None:
        self._dataset = dataset

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        numbers = positions_of(indices, int(self._dataset._starts[-1])).tolist()
        try:
            batch = self._dataset._collated(numbers) if numbers else None
        except Exception:  # which the sample that it is about raises again
            batch = None
        return self._dataset._load_batch(numbers) if batch is None else Collated(batch, len(numbers))


def _starts(lengths: Indices) -> Indices:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _read(files: _native.Files, samples: Indices, starts: Indices, memory: Array) -> None:
    job = _native.ReadJob(files, samples, starts, memory)
    job.run_here()
    for _, error in job.failures():
        raise error


def _shared_flags(count: int) -> torch.Tensor:
    flags = torch.zeros(count, dtype=torch.bool, device="cpu")
    try:
        return flags.share_memory_()  # type: ignore[no-untyped-call,no-any-return]
    except (RuntimeError, OSError):  # no shared memory: each process verifies for itself
        return flags


def _list_folders(data_path: Any) -> list[str]:
    if isinstance(data_path, (str, os.PathLike)):
        if not os.path.isfile(os.path.join(data_path, INDEX)):
            raise FileNotFoundError(f"data_path: there is no {INDEX} in {os.fspath(data_path)!r}")
        return [absolute(data_path)]
    check_listable("data_path", data_path)
    if not isinstance(data_path, Iterable):
        raise TypeError(f"data_path must be a folder or a list of them, got {type(data_path).__name__}")
    folders = [folder for part in data_path for folder in _list_folders(part)]
    if not folders:
        raise ValueError("data_path is an empty list; give at least one folder")
    return folders


def _decoded(reader: Any, number: int) -> Sample:
    """Load a sample, whose parts must be as long as it is."""
    sample: Sample
    if not is_mds(reader):
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
