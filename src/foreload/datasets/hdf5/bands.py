"""Decoded bands of an HDF5 file's datasets, and one process's cache of them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import cachetools
import numpy as np

from foreload.cache.store import SampleStore
from foreload.checks import Array, Indices
from foreload.datasets.blocks import gather_rows
from foreload.datasets.hdf5.chunks import Chunks
from foreload.datasets.hdf5.file import HDF5File, Linked, Stamp
from foreload.machine import granted_memory

__all__ = ["Bands", "KeptBand", "Want"]

# Rows of a band and their destination: memory, positions in it, rows counted from the band's first.
Want = tuple[Array, list[int], list[int]]

# Bytes of decoded bands that are kept; of large bands two, up to a share of the memory.
_KEPT = 64 << 20
_LARGE_SHARE = 1 / 16

# The most rows that are faster to copy one by one than by one indexed call.
_MAX_COPIED_SINGLY = 4


class KeptBand(NamedTuple):
    """The rows of a band, contiguous, and where they lie in memory."""

    values: Array
    address: int


class Bands:
    """A reader of bands that keeps those used last, for the threads of the process that made it.

    Args:
        columns: the datasets.
        path: the file.
        stamp: of the file's content.
        linked: other files that it takes data from.
        store: keeps bands for all processes, numbered through all columns.
    """

    def __init__(
        self, columns: Sequence[Chunks], path: str, stamp: Stamp, linked: Linked, store: SampleStore | None
    ) -> None:
        self.file = HDF5File(path, stamp, linked)
        self._columns = columns
        self._store = store
        self._first = list(accumulate(map(len, columns), initial=0))
        largest = max(chunks.band_bytes for chunks in columns)
        self._room = max(_KEPT, min(2 * largest, int(_LARGE_SHARE * granted_memory())))
        self._kept: cachetools.LRUCache[int, KeptBand] = cachetools.LRUCache(
            self._room, getsizeof=lambda band: _size(band.values)
        )
        self._lock = threading.Lock()

    @property
    def keeps(self) -> bool:
        """Whether bands are kept in a store."""
        return self._store is not None

    def copy(self, column: int, band: int, wants: Iterable[Want]) -> None:
        """Copy rows of a band to their destinations; errors as :meth:`Chunks.read`."""
        chunks = self._columns[column]
        if chunks.band_bytes <= (self._room if self._store is None else self._store.arguments[1]):
            values = self.get(column, band)
            for want in wants:
                _copy(values, (), want)
            return
        # The band is too large to be in memory as a whole.
        for part, values in chunks.pieces(band, self.file):
            for want in wants:
                _copy(values, part, want)

    def copy_kept(self, kept: Sequence[KeptBand | None], which: Indices, want: Want) -> None:
        """Copy rows of bands that are in memory; ``which`` of these it is for each row."""
        out, positions, rows = want
        like = next(band.values for band in kept if band is not None)
        addresses = [0 if band is None else band.address for band in kept]
        if len(rows) == len(out) and like.dtype == out.dtype:
            order = np.argsort(positions)
            gather_rows(addresses, which[order], np.array(rows)[order], out)
            return
        values = np.empty((len(rows), *like.shape[1:]), like.dtype)
        gather_rows(addresses, which, np.array(rows), values)
        out[positions] = values

    def copy_alone(self, column: int, want: Want) -> None:
        """Copy rows of a dataset that ``is_direct``, counted from its first."""
        self._columns[column].copy(*want, self.file)

    def kept(self, column: int, bands: Sequence[int]) -> list[KeptBand | None]:
        """Return the bands that are in memory, and None for others."""
        numbers = [self._first[column] + band for band in bands]
        with self._lock:
            try:  # most often all are; to ask for each takes twice as long
                return [self._kept[number] for number in numbers]
            except KeyError:
                return [self._kept.get(number) for number in numbers]

    def get(self, column: int, band: int) -> Array:
        """Return a band, not to be written to; errors as :meth:`Chunks.read`."""
        number, chunks = self._first[column] + band, self._columns[column]
        with self._lock:
            kept = self._kept.get(number)
        if kept is not None:
            return kept.values
        if self._store is not None:
            return np.asarray(self._store.load(number, lambda _: chunks.read(band, self.file)))
        values = chunks.read(band, self.file)
        if chunks.is_contiguous and chunks.rows == 1:
            return values  # reading it again costs no more than a copy
        values = np.ascontiguousarray(values)
        with self._lock:
            if _size(values) <= self._room:
                self._kept[number] = KeptBand(values, values.ctypes.data)
        return values

    def close(self) -> None:
        """Close the file, and free the bands that are kept."""
        self.file.close()
        with self._lock:
            self._kept.clear()


def _copy(values: Array, part: tuple[Any, ...], want: Want) -> None:
    out, positions, rows = want
    if len(rows) > _MAX_COPIED_SINGLY:
        out[(positions, *part)] = values[rows]
        return
    for position, row in zip(positions, rows, strict=True):
        out[(position, *part)] = values[row]


def _size(values: Array) -> int:
    # nbytes does not count the objects of an array.
    return max(1, sum(map(sys.getsizeof, values.flat)) if values.dtype.hasobject else values.nbytes)
