"""A window of batches in the making, which share decoded chunks."""

from __future__ import annotations

import copy
import math
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from foreload import _native
from foreload.batch.assembly import note_sample
from foreload.batch.collate import pinned
from foreload.batch.failure import EmptyBatch, SampleError, replacement_positions
from foreload.checks import Array
from foreload.datasets.hdf5.bands import Bands, Want
from foreload.datasets.hdf5.chunks import Chunks
from foreload.options import OnError
from foreload.order.index import positions_of, require_nonempty
from foreload.protocol import Batch, BatchMemory, BatchOptions
from foreload.record.spans import Stage

__all__ = ["Column", "Window"]

# The most bytes and the most batches in the making: the first batch has to wait for all of them.
_BYTES = 128 << 20
_MOST = 96

# Without a window, about as many are in the making.
_WORTHWHILE = 8

# Rows read without bands that are one unit of work.
_ALONE = 16

# The units of work that the bands of a batch are split into.
_RUNS = 16

_Key = tuple[int, int]  # column, band
# A batch, and which of its rows, sorted by band. Weak: an epoch that is left early frees its batches at once.
_Span = tuple[int, int]
_Entry = tuple["weakref.ref[_Rows]", _Span]


class Column:
    """A dataset of the file as one part of samples.

    Attributes:
        chunks: how it lies in the file.
        is_tensor: whether a row comes as a tensor.
        is_number: whether it comes as a Python number.
        shape, dtype: of a row in a batch, as ``default_collate`` makes it.
    """

    def __init__(self, chunks: Chunks, is_target: bool) -> None:
        self.chunks = chunks
        self.shape = chunks.shape[1:]
        self.is_tensor = chunks.is_tensor
        self.is_number = (
            is_target
            and self.is_tensor
            and not self.shape
            and chunks.dtype.kind in "biuf"
            and chunks.dtype != "u8"
        )
        self.dtype = torch.uint8
        if self.is_tensor:
            self.dtype = torch.from_numpy(np.empty(0, chunks.dtype)).dtype
        if self.is_number and chunks.dtype.kind != "b":
            self.dtype = torch.int64 if chunks.dtype.kind in "iu" else torch.float64


class Window:
    """Batches whose rows are filled in as bands are decoded; see :class:`foreload.protocol.Assembly`.

    The thread that decodes a band fills in its rows in every batch in the making, so that each band is decoded
    once for all of them. With rows in random order, batches of W rows together, and bands of R rows out of N, that
    is once for 1 + W * R / N rows. A batch leaves the window when it is given to the loop, and the next one
    enters.

    Args:
        columns: the parts of a sample.
        count: the number of samples.
        path: the file.
        bands: where rows come from.
        buffers: where they go.
        spec: what the loader does about failures; None: they are raised.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        count: int,
        path: str,
        bands: Bands,
        buffers: BatchMemory,
        spec: BatchOptions | None = None,
    ) -> None:
        self.columns = columns
        self.count = count
        self.path = path
        self.bands = bands
        self.buffers = buffers
        self.on_error: OnError = "raise" if spec is None else spec.on_error
        self.errors = [] if spec is None else spec.errors
        self.pin_device = None if spec is None else spec.pin_device
        self.depth = None if spec is None else self._depth(spec)
        self.lock = threading.Lock()
        # Bands that no thread has begun to decode, and the batches that need them.
        self.wanted: dict[_Key, list[_Entry]] = {}

    def _depth(self, spec: BatchOptions) -> int | None:
        if not spec.lookahead or spec.batch_size is None:
            return None
        row_bytes = sum(math.prod(column.shape) * column.dtype.itemsize for column in self.columns)
        depth = min(_MOST, _BYTES // max(1, spec.batch_size * row_bytes))
        shared = any(column.chunks.rows > 1 and not self.is_direct(column) for column in self.columns)
        return depth if depth >= _WORTHWHILE and shared else None

    def is_direct(self, column: Column) -> bool:
        """Whether rows of a dataset are read by themselves, without bands."""
        return column.chunks.is_direct and not self.bands.keeps

    def start(self, indices: Any) -> Batch:
        """See :class:`~foreload.protocol.Assembly`."""
        batch = _Rows(self, require_nonempty(positions_of(indices, self.count)))
        count = len(batch.keys)
        return Batch(_native.PythonJob(count, -(-count // _RUNS), batch.run, batch.finished.wait), batch.take)


class _Rows:
    """One batch in the window."""

    def __init__(self, window: Window, indices: Array) -> None:
        self._window = window
        self._indices = indices
        self._outs = [window.buffers.take((len(indices), *c.shape), c.dtype) for c in window.columns]
        self._arrays = [out.numpy() for out in self._outs]
        self._failures: dict[int, BaseException] = {}
        # Per column: positions, and rows (in their bands, or of the file): those copied alone, then band by band.
        self._sorted: list[tuple[list[int], list[int]]] = []
        self.finished = threading.Event()
        # Rows for this batch only, which are read without bands or copied from bands in memory: where in _sorted.
        self._alone: dict[_Key, tuple[_Span, Callable[[], None]]] = {}
        entries: dict[_Key, _Entry] = {}
        for number, column in enumerate(window.columns):
            if window.is_direct(column):
                self._read_alone(number)
            else:
                self._copy_or_decode(number, column.chunks.rows, entries)
        self.keys: list[_Key] = [*entries, *self._alone]
        self._missing = len(self.keys)
        self._unclaimed = set(self.keys)
        with window.lock:
            for key, entry in entries.items():
                window.wanted.setdefault(key, []).append(entry)

    def _read_alone(self, number: int) -> None:
        """Read the rows of a column without bands."""
        order = np.argsort(self._indices, kind="stable")
        self._sorted.append((order.tolist(), self._indices[order].tolist()))
        for begin in range(0, len(order), _ALONE):
            span = begin, min(begin + _ALONE, len(order))
            copy = partial(self._window.bands.copy_alone, number, self.want(number, *span))
            self._alone[number, -1 - begin] = span, copy

    def _copy_or_decode(self, number: int, rows_each: int, entries: dict[_Key, _Entry]) -> None:
        """Copy the rows of a column whose bands are in memory, and add the other bands to ``entries``."""
        bands, rows = np.divmod(self._indices, rows_each)
        unique, which = np.unique(bands, return_inverse=True)
        kept = self._window.bands.kept(number, unique.tolist())
        is_missing = np.array([band is None for band in kept])[which]
        order = np.lexsort((bands, is_missing))
        self._sorted.append((order.tolist(), rows[order].tolist()))
        count = len(order) - int(is_missing.sum())
        if count:
            span = 0, count
            copy = partial(self._window.bands.copy_kept, kept, which[order[:count]], self.want(number, *span))
            self._alone[number, -1] = span, copy
        bands = bands[order]
        begins = [count, *(count + 1 + np.flatnonzero(np.diff(bands[count:]))).tolist(), len(order)]
        own = weakref.ref(self)
        for begin, end in pairwise(begins):
            if begin < end:
                entries[number, int(bands[begin])] = own, (begin, end)

    def run(self, begin: int, end: int) -> None:
        """Decode the bands that no thread has begun, for all batches that need them."""
        try:
            with _native.Measure(Stage.decode) as measure:
                measure.samples = sum(self._decode(key) for key in self.keys[begin:end])
        except BaseException as error:  # an interrupt: do not wait for bands that were claimed
            self._failures = dict.fromkeys(range(len(self._indices)), error)
            self.finished.set()

    def _decode(self, key: _Key) -> int:
        """Decode a band, or copy rows without; return how many rows of batches that filled in."""
        window = self._window
        if key in self._alone:
            span, copy = self._alone.pop(key)  # it may hold bands, which others may have no room for
            self.filled(key[0], *span, _failure(copy))
            return span[1] - span[0]
        with window.lock:
            if key not in self._unclaimed:
                return 0  # a later batch may need it again, but that can wait
            entries = [(batch, span) for own, span in window.wanted.pop(key) if (batch := own()) is not None]
            for batch, _ in entries:
                batch._unclaimed.discard(key)
        wants = [batch.want(key[0], *span) for batch, span in entries]
        failure = _failure(lambda: window.bands.copy(*key, wants))
        if failure is not None:
            traceback.clear_frames(failure.__traceback__)  # they hold batches
        for batch, (begin, end) in entries:
            batch.filled(key[0], begin, end, failure)
        return sum(end - begin for _, (begin, end) in entries)

    def want(self, column: int, begin: int, end: int) -> Want:
        positions, rows = self._sorted[column]
        return self._arrays[column], positions[begin:end], rows[begin:end]

    def filled(self, column: int, begin: int, end: int, failure: BaseException | None) -> None:
        with self._window.lock:
            self._missing -= 1
            if failure is not None:
                self._failures.update(dict.fromkeys(self._sorted[column][0][begin:end], failure))
            if not self._missing:
                self.finished.set()

    def take(self) -> Any:
        window = self._window
        batch: Any = self._outs
        if self._failures:
            chosen = self._without()
            batch = [out[chosen] for out in self._outs]
        return pinned(batch[0] if len(batch) == 1 else batch, window.pin_device)

    def _without(self) -> list[int]:
        """Return the rows that make up the batch after some failed."""
        window = self._window
        for position, error in sorted(self._failures.items()):
            index = int(self._indices[position])
            if window.on_error == "raise" or not isinstance(error, Exception):
                # Other batches may share the error, and its traceback would keep them alive.
                own = copy.copy(error).with_traceback(error.__traceback__)
                own.__cause__ = error.__cause__
                note_sample(own, index, position)
                raise own
            window.errors.append(SampleError.of(index, error, window.on_error, window.path))
        chosen = replacement_positions(
            [position in self._failures for position in range(len(self._indices))], window.on_error
        )
        if not chosen:
            raise EmptyBatch
        return chosen


def _failure(copy: Callable[[], None]) -> BaseException | None:
    try:
        copy()
    except BaseException as error:
        return error
    return None
