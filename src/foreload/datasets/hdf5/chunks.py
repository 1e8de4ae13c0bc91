"""Chunks of an HDF5 dataset: where they lie in the file, and which rows they hold."""

from __future__ import annotations

import itertools
import math
import os
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from foreload import _native
from foreload.checks import Array
from foreload.datasets.hdf5.file import HDF5File, load_h5py
from foreload.errors import DecodeError
from foreload.record.spans import Stage

__all__ = ["Chunks", "Piece"]

# A part of a band: slices of a row's dimensions, and the values there, rows first.
Piece = tuple[tuple[slice, ...], Array]

# Bytes of rows to read together if the file has no chunks: a smaller read would hardly cost less.
_TOGETHER = 16 << 10

# The fewest bytes of a row that is worth a read of its own.
_ALONE = 4 << 10

# HDF5's numbers of filters (H5Zpublic.h), and the sequences of them that are decoded here.
_GZIP, _SHUFFLE = 1, 2
_KNOWN = ((), (_SHUFFLE,), (_GZIP,), (_SHUFFLE, _GZIP))


class Chunks:
    """The layout of a dataset in its file, by *bands*: rows that share chunks, and so are decoded together.

    Bands of numbers that are stored as they are, or by gzip and shuffle, are read without h5py: its lock lets one
    thread at a time decompress. Everything else (lzf, fletcher32, szip, plug-ins, strings, compounds, virtual and
    external data, chunks that HDF5 may list wrongly) is left to it. One chunk is read both ways at the start, to
    make sure that the two agree.

    It holds no open file and can be pickled. 20 bytes of memory per chunk.

    Args:
        dataset: an open ``h5py.Dataset`` with at least one dimension.
        name: its name in the file (it may be a link to another file).
        path: the file.
        file: the same file, opened.

    Attributes:
        shape, dtype: of the dataset; in native byte order.
        rows: of a band.
        row_bytes: of a row.
        is_tensor: whether torch has the dtype.

    See the HDF5 file format specification, version 3.0, IV.A.2.i and IV.A.2.l.
    """

    def __init__(self, dataset: Any, name: str, path: str, file: HDF5File) -> None:
        self._path = path
        self.name = name
        # An array as the type of each element is read as more dimensions.
        self._stored, inner = dataset.dtype.subdtype or (dataset.dtype, ())
        self._dimensions = len(dataset.shape)
        self.shape: tuple[int, ...] = (*dataset.shape, *inner)
        self.dtype = self._stored.newbyteorder("=") if self._stored.kind in "biufc" else self._stored
        self.is_tensor = _is_tensor(self.dtype)
        self.row_bytes: int = self.dtype.itemsize * math.prod(self.shape[1:])
        together = min(max(1, _TOGETHER // max(1, self.row_bytes)), max(1, self.shape[0]))
        self.chunk: tuple[int, ...] = (*(dataset.chunks or (together, *dataset.shape[1:])), *inner)
        self.rows = self.chunk[0]
        self._grid: tuple[int, ...] = tuple(
            -(-size // max(1, part)) for size, part in zip(self.shape, self.chunk, strict=True)
        )
        self._across = math.prod(self._grid[1:])
        self._fill: Any = None
        self._places: Array | None = None  # of each chunk: where it begins, its bytes, its filter mask
        self._offset: int | None = None
        self._filters: list[tuple[int, tuple[int, ...]]] = []
        if self._is_plain(dataset):
            self._locate(dataset)
            if not self._agrees(dataset, file):
                self._places = self._offset = None

    def _is_plain(self, dataset: Any) -> bool:
        h5py = load_h5py()
        created = dataset.id.get_create_plist()
        return (
            self.is_tensor
            and len(self.shape) == self._dimensions
            and math.prod(self.shape) > 0
            and not dataset.is_virtual
            and created.get_external_count() == 0
            and os.path.samefile(dataset.file.filename, self._path)
            and dataset.id.get_type().equal(h5py.h5t.py_create(dataset.dtype, logical=True))
        )

    def _locate(self, dataset: Any) -> None:
        if dataset.chunks is None:
            self._offset = dataset.id.get_offset()
            return
        created = dataset.id.get_create_plist()
        filters = [created.get_filter(number) for number in range(created.get_nfilters())]
        self._filters = [(code, values) for code, _, values, _ in filters]
        if tuple(code for code, _ in self._filters) not in _KNOWN or not hasattr(dataset.id, "chunk_iter"):
            return
        if _may_be_listed_wrongly(dataset.maxshape):
            return
        self._fill = dataset.fillvalue
        places = np.full((math.prod(self._grid), 3), -1, np.int64)

        def note(chunk: Any) -> None:
            at = 0
            for offset, part, count in zip(chunk.chunk_offset, self.chunk, self._grid, strict=True):
                at = at * count + offset // part
            places[at] = chunk.byte_offset, chunk.size, chunk.filter_mask

        dataset.id.chunk_iter(note)
        self._places = places

    def _agrees(self, dataset: Any, file: HDF5File) -> bool:
        """Compare the last chunk, which may extend beyond the dataset, with what h5py reads."""
        try:
            if self._offset is not None:
                spans: tuple[slice, ...] = (self._span(0, len(self) - 1),)
                own = self._plain(len(self) - 1, self._offset, file)
            elif self._places is None:
                return False
            else:
                there = np.flatnonzero(self._places[:, 0] >= 0)
                last = int(there[-1]) if len(there) else len(self._places) - 1
                place = np.unravel_index(last, self._grid)
                spans = tuple(self._span(dimension, int(index)) for dimension, index in enumerate(place))
                own = self._chunk(last, spans, file)
            return bool(own.tobytes() == np.asarray(dataset[spans]).astype(self.dtype).tobytes())
        except OSError:
            return False  # damaged: reading it raises the error later

    def __len__(self) -> int:
        """Count the bands."""
        return self._grid[0]

    @property
    def band_bytes(self) -> int:
        """The memory that the rows of a band take."""
        return int(self.row_bytes * min(self.rows, self.shape[0]))

    @property
    def is_direct(self) -> bool:
        """Whether :meth:`copy` can read single rows, straight to their destination."""
        bare = self._places is not None and not self._filters and self.chunk[1:] == self.shape[1:]
        return (self.is_contiguous or bare) and self.row_bytes >= _ALONE and self._stored == self.dtype

    def copy(self, out: Array, positions: list[int], rows: list[int], file: HDF5File) -> None:
        """Read rows to their positions in ``out``, contiguous memory; errors as :meth:`read`."""
        size = self.row_bytes
        memory = out.reshape(-1).view(np.uint8).data
        with _native.Measure(Stage.read, len(rows)) as measure:
            measure.bytes = size * len(rows)
            for position, row in zip(positions, rows, strict=True):
                at = self._begin(row)
                if at < 0 or file.read_into(memory[position * size : (position + 1) * size], at) < size:
                    out[position] = self._by_h5py((slice(row, row + 1),), file)[0]
        file.check()

    def _begin(self, row: int) -> int:
        if self._offset is not None:
            return self._offset + row * self.row_bytes
        assert self._places is not None
        band, number = divmod(row, self.rows)
        begin = int(self._places[band, 0])
        return begin if begin < 0 else begin + number * self.row_bytes

    @property
    def is_contiguous(self) -> bool:
        """Whether rows are stored one after the other, without chunks."""
        return self._offset is not None

    def read(self, band: int, file: HDF5File) -> Array:
        """Return the rows of a band; not to be written to.

        Raises:
            DecodeError: they are damaged, or their filter is not there.
            OSError: the file cannot be read.
        """
        pieces = list(self.pieces(band, file))
        if len(pieces) == 1:
            return pieces[0][1]
        rows = np.empty((len(pieces[0][1]), *self.shape[1:]), self.dtype)
        for part, values in pieces:
            rows[:, *part] = values
        return rows

    def pieces(self, band: int, file: HDF5File) -> Iterator[Piece]:
        """Return the rows of a band in parts, as its chunks hold them; errors as :meth:`read`."""
        if self._offset is not None:
            yield tuple(slice(0, size) for size in self.shape[1:]), self._plain(band, self._offset, file)
        elif self._places is None:
            part = tuple(slice(0, size) for size in self.shape[1:])
            yield part, self._by_h5py((self._span(0, band), *part), file)
        else:
            first = band * self._across
            for number, place in enumerate(itertools.product(*map(range, self._grid[1:]))):
                part = tuple(self._span(dimension, index) for dimension, index in enumerate(place, start=1))
                yield part, self._chunk(first + number, (self._span(0, band), *part), file)

    def _span(self, dimension: int, place: int) -> slice:
        part = self.chunk[dimension]
        return slice(place * part, min((place + 1) * part, self.shape[dimension]))

    def _plain(self, band: int, offset: int, file: HDF5File) -> Array:
        span = self._span(0, band)
        shape = (span.stop - span.start, *self.shape[1:])
        size = shape[0] * self.row_bytes
        raw = file.read_bytes(size, offset + span.start * self.row_bytes)
        if len(raw) < size:
            return self._by_h5py((span,), file)
        return np.frombuffer(raw, self._stored).reshape(shape).astype(self.dtype, copy=False)

    def _chunk(self, number: int, spans: tuple[slice, ...], file: HDF5File) -> Array:
        assert self._places is not None
        shape = tuple(span.stop - span.start for span in spans)
        begin, size, mask = self._places[number].tolist()
        if begin < 0:
            return np.full(shape, self._fill, self.dtype)
        try:
            raw = self._unfiltered(file.read_bytes(size, begin), mask)
            values = np.frombuffer(raw, self._stored).reshape(self.chunk)
        except (zlib.error, ValueError):
            return self._by_h5py(spans, file)  # for its own result, or its own error
        if shape != self.chunk:
            values = values[tuple(map(slice, shape))]
        return values.astype(self.dtype, copy=False)

    def _unfiltered(self, raw: bytes, mask: int) -> Any:
        out: Any = raw
        for number, (code, values) in reversed(list(enumerate(self._filters))):
            if mask >> number & 1:
                continue
            if code == _GZIP:
                out = zlib.decompress(out, bufsize=math.prod(self.chunk) * self._stored.itemsize)
            else:
                out = _unshuffled(out, values[0])
        return out

    def _by_h5py(self, spans: tuple[slice, ...], file: HDF5File) -> Array:
        try:
            rows = file.read_rows(self.name, spans[: self._dimensions])
        except OSError as error:
            if error.filename is not None:
                raise
            raise DecodeError(
                f"rows {spans[0].start} to {spans[0].stop - 1} of dataset {self.name!r} in {self._path!r} cannot "
                f"be decoded: {error}. If their filter is missing, import hdf5plugin first; if they are damaged, "
                "write them again"
            ) from error
        values = np.asarray(rows).astype(self.dtype, copy=False)
        expected = (*(span.stop - span.start for span in spans), *self.shape[len(spans) :])
        if values.shape != expected:  # though the file has the same size and time
            raise DecodeError(
                f"dataset {self.name!r} in {self._path!r} has changed since the HDF5Dataset was made: of rows "
                f"{spans[0].start} to {spans[0].stop - 1} the shape is {values.shape}, not {expected}; make the "
                "dataset again"
            )
        return values


def _may_be_listed_wrongly(most: tuple[int | None, ...]) -> bool:
    """Whether HDF5 may list the chunks of a dataset, of at most this shape, at the places of others.

    If one dimension only has no limit, files of ``libver="latest"`` have a table of chunks in which that dimension
    comes first (an extensible array). HDF5, 2.0 too, lists them as if the dimensions were in their own order.
    """
    unlimited = [dimension for dimension, size in enumerate(most) if size is None]
    return len(unlimited) == 1 and unlimited[0] > 0


def _unshuffled(raw: bytes | Array, size: int) -> Array:
    planes = np.frombuffer(raw, np.uint8).reshape(size, -1)
    out = np.empty(planes.shape[::-1], np.uint8)
    for byte, plane in enumerate(planes):
        out[:, byte] = plane
    return out.reshape(-1)


def _is_tensor(dtype: np.dtype[Any]) -> bool:
    if dtype.subdtype is not None:
        return False
    try:
        torch.from_numpy(np.empty(0, dtype))
    except TypeError:
        return False
    return True
