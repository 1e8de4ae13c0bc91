"""Rows of datasets in HDF5 files, with random access."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foreload.batch.buffers import Buffers
from foreload.batch.collate import is_default_collate
from foreload.batch.collated import Collated, own_getitems
from foreload.batch.generators.keyed import keyed_rows
from foreload.cache.store import SampleStore
from foreload.checks import check_regular_file, inherits
from foreload.datasets.base import BaseDataset
from foreload.datasets.hdf5.bands import Bands
from foreload.datasets.hdf5.chunks import Chunks
from foreload.datasets.hdf5.file import HDF5File, check_linked, load_h5py, opened, stamp_of, stamps_of
from foreload.datasets.hdf5.links import linked_files
from foreload.datasets.hdf5.window import Column, Window
from foreload.datasets.stream import runs_of
from foreload.datasets.tensors import CachedDataset
from foreload.forks.per_process import PerProcess
from foreload.nested import move
from foreload.options import Keep, LoadingMode
from foreload.protocol import Assembly, BatchMemory, BatchOptions, NativeBatches
from foreload.record.progress import track, track_threads

__all__ = ["HDF5Dataset"]

# Bytes that a stream reads together.
_WORTH_A_READ = 1 << 20

# The most datasets that an error message lists.
_LISTED = 20


class HDF5Dataset(BaseDataset, NativeBatches):
    """Rows of a dataset in an HDF5 file: sample i is row i, a tensor; or (row, target).

    Numbers come as tensors of their dtype (in native byte order); strings, compounds, objects and long doubles as
    h5py gives them. A target that is one number comes as a Python int, float or bool (of uint64 and complex dtypes
    as a tensor).

    Rows share chunks, and a chunk can only be decompressed as a whole. In a :class:`foreload.DataLoader` each
    chunk is decoded once for all batches in the making, of which there are as many as fit into 128 MiB, 96 at most
    (``prefetch_factor`` x ``num_workers`` where that is given, or the sampler is the user's own); in a stock one,
    and with a ``transform``, once per batch.
    Beside them 64 MiB of decoded chunks are kept per process (two chunks, where these are larger).

    :meth:`stream` reads the rows in the order of their chunks instead, each of which is then decoded once.

    Every process opens the file for itself: it is never open across a fork, and a dataset can be pickled.

    Args:
        data_path: the file.
        dataset_name: of the dataset in it; ``"group/data"`` if it is in a group.
        loading_mode: ``LAZY`` and ``STREAMING``: read a row when it is asked for. ``EAGER``: read all at the
            start, into shared memory. ``CACHED``: read a row when it is asked for, and keep decoded chunks in
            shared memory, up to half of the memory that this process may use.
        target_name: of a dataset of as many targets.
        transform: called with each row.

    Raises:
        FileNotFoundError, OSError: there is no such file, or it is not HDF5, cut short, or open for writing.
        KeyError: it has no dataset of that name; the message lists those that it has.
        ValueError: a dataset has no rows (it is a scalar), or holds references, or rows of any length in the other
            byte order (which h5py reads wrongly), or there are not as many targets.
        MemoryError: ``EAGER`` needs more than the memory that this process may use.
        ImportError: h5py is not installed.

    Reading a chunk raises :class:`foreload.errors.DecodeError` where it is damaged, and OSError where the file has
    changed since the dataset was made, or one that it takes data from: by external links, virtual sources or
    external storage. Rows that are in memory already stay those of before.

    >>> import tempfile, h5py
    >>> path = Path(tempfile.mkdtemp()) / "digits.h5"
    >>> with h5py.File(path, "w") as file:
    ...     file["images"] = np.zeros((100, 28, 28), np.uint8)
    ...     file["labels"] = np.arange(100) % 10
    >>> digits = HDF5Dataset(path, "images", target_name="labels")
    >>> image, label = digits[12]
    >>> image.shape, image.dtype, label
    (torch.Size([28, 28]), torch.uint8, 2)
    """

    def __init__(
        self,
        data_path: str | Path,
        dataset_name: str = "data",
        loading_mode: LoadingMode = LoadingMode.LAZY,
        *,
        target_name: str | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        for name, value in (("dataset_name", dataset_name), ("target_name", target_name)):
            if not isinstance(value, str) and not (value is None and name == "target_name"):
                raise TypeError(f"{name} must be a str, got {type(value).__name__}")
        self.dataset_name = dataset_name
        self.target_name = target_name
        self._bands = PerProcess[Bands]()
        self._table: CachedDataset | None = None
        self._kept: SampleStore | None = None
        super().__init__(data_path, transform, None, loading_mode)

    def index(self) -> int:
        """Read the file's metadata: the number of rows, and where they lie."""
        path = str(self.data_path)
        check_regular_file(path)
        self._stamp = stamp_of(os.stat(path))
        file = HDF5File(path, self._stamp)
        named = {"dataset_name": self.dataset_name, "target_name": self.target_name}
        names = [name for name in named.values() if name is not None]
        try:
            with opened(path) as handle:
                linked = set().union(*(linked_files(handle, name) for name in names))
                found = [_found(handle, *each, path) for each in zip(named, names, strict=False)]
                counts = [dataset.shape[0] for dataset in found]
                if len(set(counts)) != 1:
                    raise ValueError(
                        f"target_name: {names[1]!r} has {counts[1]} rows, but {names[0]!r} has {counts[0]}; there "
                        "must be one target per row"
                    )
                self._linked = stamps_of(linked)
                chunks = [Chunks(dataset, name, path, file) for dataset, name in zip(found, names, strict=True)]
                check_linked(self._linked)
        finally:
            file.close()
        self.columns = [Column(each, is_target) for each, is_target in zip(chunks, (False, True), strict=False)]
        return int(counts[0])

    def _keep(self) -> SampleStore | None:
        needed = sum(math.prod((self._count, *column.shape)) * column.dtype.itemsize for column in self.columns)
        eager = self.loading_mode is LoadingMode.EAGER
        if eager and needed > self.memory:
            raise MemoryError(
                f"{str(self.data_path)!r} takes {needed:,} bytes, more than the {self.memory:,} that this process "
                "may use; use LoadingMode.CACHED, which keeps what fits"
            )
        if self.loading_mode in (LoadingMode.LAZY, LoadingMode.STREAMING):
            return None
        if eager and self._is_tensors:
            self._load_table()
            return None
        self._kept = store = SampleStore(sum(len(column.chunks) for column in self.columns), self.memory)
        store.native.follow_rule("all")
        if eager:
            for number, column in enumerate(self.columns):
                for band in track(range(len(column.chunks)), "reading chunks", total=len(column.chunks), after=1):
                    self._opened().get(number, band)
            if missing := len(store) - int(store.residents().sum()):
                raise MemoryError(
                    f"{missing} of {len(store)} chunks of {str(self.data_path)!r} do not fit into {self.memory:,} "
                    "bytes; use LoadingMode.CACHED, which keeps what fits"
                )
        return store

    def _load_table(self) -> None:
        """Read all rows into memory that processes share."""
        bands = self._opened()
        outs = [_shared((self._count, *column.shape), column.dtype) for column in self.columns]

        def load(place: tuple[int, int]) -> None:
            number, band = place
            chunks = self.columns[number].chunks
            for part, values in chunks.pieces(band, bands.file):
                begin = band * chunks.rows
                outs[number].numpy()[begin : begin + len(values), *part] = values

        places = [
            (number, band) for number, column in enumerate(self.columns) for band in range(len(column.chunks))
        ]
        for _ in track_threads(load, places, "reading chunks", after=1):
            pass
        self.close()
        self._table = CachedDataset(outs[0] if len(outs) == 1 else tuple(outs), pin=False, share=False)

    @property
    def _is_tensors(self) -> bool:
        return all(column.is_tensor for column in self.columns)

    def _opened(self) -> Bands:
        return self._bands.get(self._open)

    def _open(self) -> Bands:
        chunks = [column.chunks for column in self.columns]
        return Bands(chunks, str(self.data_path), self._stamp, self._linked, self._kept)

    def close(self) -> None:
        """Close this process's file, and free decoded chunks; the next sample opens it again."""
        if (bands := self._bands.pop()) is not None:
            bands.close()

    def read(self, index: int) -> Any:
        """Load row ``index``, from 0 to ``len(self) - 1``; with ``target_name`` a tuple (row, target)."""
        if self._table is not None:
            found = self._table[index]
            fields = [field.clone() for field in (found if isinstance(found, tuple) else (found,))]
            return self._sample(fields)
        values = []
        for number, column in enumerate(self.columns):
            chunks = column.chunks
            out = np.empty((1, *column.shape), chunks.dtype)
            band, row = divmod(index, chunks.rows)
            self._opened().copy(number, band, [(out, [0], [row])])
            values.append(torch.from_numpy(out)[0] if column.is_tensor else out[0])
        return self._sample(values)

    def _sample(self, fields: Sequence[Any]) -> Any:
        values = [
            field.item() if column.is_number else field for column, field in zip(self.columns, fields, strict=True)
        ]
        return values[0] if len(values) == 1 else tuple(values)

    def prepare_sample(self, index: int, keep: Keep = "auto") -> Any:
        """Load the part of a sample that is the same in each epoch, for the cache."""
        return self.read(index)

    @property
    def _is_own(self) -> bool:
        """Whether samples are tensors, and no subclass loads them itself."""
        names = ("__getitem__", "__getitems__", "prepare_sample", "finish_sample", "read")
        return self._is_tensors and inherits(self, HDF5Dataset, *names)

    @own_getitems
    def __getitems__(self) -> Callable[[Sequence[int]], Sequence[Any]] | None:
        """Load the rows of a batch, each chunk once; a stock DataLoader calls this, and has nothing to collate.

        None if rows are not tensors: samples are then loaded one by one.
        """
        return self._load_batch if self._is_own else None

    def _load_batch(self, indices: Sequence[int]) -> Sequence[Any]:
        if not len(indices):
            return []
        samples = self._rows(indices)
        if self.transform is None:
            return samples
        rows = zip(indices, keyed_rows(self._load_batch, samples), strict=True)
        return [self.finish_sample(int(index), sample) for index, sample in rows]

    def _rows(self, indices: Sequence[int]) -> Collated:
        numbers = [place for place, column in enumerate(self.columns) if column.is_number]
        if self._table is not None:
            rows: Any = self._table.__getitems__(indices)
            return Collated(rows.batch, len(indices), numbers)
        batch = self._window(Buffers()).start(indices)
        batch.job.run_here()
        return Collated(batch.take(), len(indices), numbers)

    def read_many(self, indices: Sequence[int]) -> Sequence[Any]:
        """Load several rows, each chunk once, before the transform; in place of one that fails, its exception."""
        if not self._is_own:
            return super().read_many(indices)
        try:
            # Copy each row: it would otherwise keep the memory of all.
            return [move(row, torch.Tensor.clone) for row in self._rows(indices)]
        except Exception:  # load one by one, to find out which fails
            return super().read_many(indices)

    def storage_blocks(self, size: int) -> np.ndarray[Any, Any]:
        """Return the first row of each run of whole bands that is large enough to be worth a read."""
        chunks = self.columns[0].chunks
        worth = -(-_WORTH_A_READ // max(1, chunks.row_bytes))
        bands = max(1, min(size, worth) // chunks.rows)
        return runs_of(0, len(self), bands * chunks.rows)

    def batch_assembly(self, spec: BatchOptions, key: tuple[int, int], buffers: BatchMemory) -> Assembly | None:
        """Make whole batches for foreload's DataLoader, unless a subclass loads samples itself."""
        own = self._is_own and self.transform is None and spec.cache is None
        if not own or not is_default_collate(spec.collate_fn):
            return None
        if self._table is not None:
            return self._table.batch_assembly(spec, key, buffers)
        return self._window(buffers, spec)

    def _window(self, buffers: BatchMemory, spec: BatchOptions | None = None) -> Window:
        return Window(self.columns, self._count, str(self.data_path), self._opened(), buffers, spec)


def _found(handle: Any, argument: str, name: str, path: str) -> Any:
    """Return the dataset that an argument names, if it has rows."""
    h5py = load_h5py()
    found = handle.get(name) if name else None
    if not isinstance(found, h5py.Dataset):
        there: list[str] = []

        def note(name: str, item: Any) -> bool | None:
            if isinstance(item, h5py.Dataset):
                there.append(name)
            return len(there) > _LISTED or None  # any value but None ends the visit

        handle.visititems(note)
        listed = ", ".join(map(repr, there[:_LISTED])) + (", ..." if len(there) > _LISTED else "")
        what = _missing(handle, name) if found is None else "is not a dataset"
        raise KeyError(f"{argument}: {name!r} {what} in {path!r}; its datasets are: {listed or 'none'}")
    if not found.shape:
        what = "empty" if found.shape is None else "a scalar"
        raise ValueError(f"{argument}: {name!r} in {path!r} is {what}; give a dataset with a row per sample")
    if problem := _problem(found.dtype):
        raise ValueError(f"{argument}: {name!r} in {path!r} holds {problem}")
    return found


def _missing(handle: Any, name: str) -> str:
    """Say what is not there: a dataset, or the file that a link to it names."""
    gone = next((file for file in sorted(linked_files(handle, name)) if not os.path.exists(file)), None)
    return "is not there" if gone is None else f"is a link to {gone!r}, which does not exist, and so not there"


def _problem(dtype: np.dtype[Any]) -> str:
    """Say why values of a dtype cannot be read, and what to do; empty if they can."""
    h5py = load_h5py()
    if dtype.subdtype is not None:
        return _problem(dtype.subdtype[0])
    if dtype.names is not None:
        return next(filter(None, (_problem(dtype[name]) for name in dtype.names)), "")
    inner = h5py.check_vlen_dtype(dtype)
    if isinstance(inner, np.dtype):
        swapped = (
            "rows of any length in the other byte order, whose bytes h5py does not swap; store them in this one"
        )
        return _problem(inner) if inner.isnative else swapped
    is_reference = h5py.check_ref_dtype(dtype) is not None
    return "references, which mean nothing outside of the open file; store what they refer to" * is_reference


def _shared(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    rows = torch.empty(shape, dtype=dtype, device="cpu")
    try:
        return rows.share_memory_()  # type: ignore[no-untyped-call,no-any-return]
    except (RuntimeError, OSError) as error:
        warnings.warn(
            f"HDF5Dataset: no shared memory for {rows.nbytes:,} bytes ({error}); using private memory, which "
            "worker processes started by 'spawn' copy. A larger /dev/shm (docker run --shm-size) avoids this.",
            stacklevel=6,
        )
        return rows
