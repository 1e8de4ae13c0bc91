"""Decoded row groups of Parquet files: each is decoded once for all threads, and the last ones are kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import cachetools
import numpy as np

from foreload import _native
from foreload.cache.fingerprint import check_stamp
from foreload.checks import Indices, check_regular_file
from foreload.errors import DecodeError
from foreload.record.spans import Stage

__all__ = ["RowGroups", "load_pyarrow", "open_parquet", "take_rows"]


def load_pyarrow() -> Any:
    """Import pyarrow with its Parquet module.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install pyarrow") from error
    return pyarrow


def open_parquet(path: str, metadata: Any = None) -> Any:
    """Open a file as ``pyarrow.parquet.ParquetFile``; with its ``metadata`` that takes some 30 us.

    Pages that have a checksum (``write_page_checksum=True``) are compared with it when they are read.

    Raises:
        DecodeError: it is no Parquet, or cut short.
        OSError: it cannot be read.
    """
    pa = load_pyarrow()
    check_regular_file(path)
    try:
        file = pa.parquet.ParquetFile(path, metadata=metadata, page_checksum_verification=True)
        if metadata is None:
            _ = file.schema_arrow  # it may be damaged too
        return file
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), path) from error
        raise DecodeError(f"{path}: no Parquet, cut short, or damaged: {error}") from error


class RowGroups:
    """The decoded row groups of one process.

    A file is open only while a group of it is read, by one thread, so there is nothing to share between threads
    and nothing to leave behind in a fork.

    Args:
        paths: of the files.
        stamps: one per file; another content than that is an error.
        schema: the columns that are wanted (``pyarrow.Schema``).
        room: how many bytes of decoded groups are kept, those that were used last; but always one group.

    Attributes:
        process: the process that it serves.
    """

    def __init__(self, paths: Sequence[str], stamps: Sequence[str], schema: Any, room: int) -> None:
        self.process = os.getpid()
        self._paths = paths
        self._stamps = stamps
        self._schema = schema
        self._metadata: dict[int, Any] = {}
        self._lock = threading.Lock()
        room = max(1, room)
        self._tables = cachetools.LRUCache[tuple[int, int], Any](
            room, getsizeof=lambda table: min(room, int(table.nbytes))
        )
        self._decoding: dict[tuple[int, int], Future[Any]] = {}

    def get(self, file: int, group: int, *, keep: bool = True) -> Any:
        """Return a row group as ``pyarrow.Table``.

        Args:
            file: its number.
            group: its number in the file.
            keep: whether it may be wanted again soon; memory that is not kept is used again for the next one.

        Raises:
            DecodeError: it is damaged.
            OSError: the file cannot be read, or has changed.
        """
        place = file, group
        with self._lock:
            table = self._tables.get(place)
            if table is not None:
                return table
            future = self._decoding.get(place)
            if is_mine := future is None:
                future = self._decoding[place] = Future()
        if not is_mine:
            # None if that failed: each thread gets an exception of its own, since notes are added to it.
            found = future.result()
            return self._decode(file, group) if found is None else found
        table = None
        try:
            table = self._decode(file, group)
        finally:
            with self._lock:
                if table is not None and keep:
                    self._tables[place] = table
                del self._decoding[place]
            future.set_result(table)
        return table

    def _decode(self, file: int, group: int) -> Any:
        pa = load_pyarrow()
        path = self._paths[file]
        check_stamp(path, self._stamps[file])
        with open_parquet(path, self._metadata.get(file)) as opened:
            self._metadata[file] = opened.metadata
            try:
                names = self._schema.names
                with _native.Measure(Stage.decode) as measure:
                    table = opened.read_row_group(group, columns=names, use_threads=False).select(names)
                    measure.samples = table.num_rows
                    measure.bytes = opened.metadata.row_group(group).total_byte_size
                if table.schema.types != self._schema.types:
                    table = _cast(table, self._schema)
            except (pa.ArrowException, OSError) as error:
                rows = _rows_of(opened.metadata, group)
                raise DecodeError(f"{path}: row group {group} cannot be decoded: {error} ({rows})") from error
            if table.num_rows != (known := opened.metadata.row_group(group).num_rows):
                raise DecodeError(
                    f"{path}: row group {group} has {table.num_rows} rows, but the file's metadata say {known}"
                )
        check_stamp(path, self._stamps[file])  # it may have been overwritten during the read
        return table


def take_rows(table: Any, rows: Indices) -> Any:
    """Copy rows of a table."""
    pa = load_pyarrow()
    try:
        return table.take(pa.array(rows))
    except pa.ArrowNotImplementedError:  # for some types (string_view, say) Arrow can only slice and join
        return pa.concat_tables([table.slice(row, 1) for row in rows.tolist()])


def _cast(table: Any, schema: Any) -> Any:
    """Cast columns to the types of the first file; fractions may be rounded, but nothing else be lost.

    Raises:
        pyarrow.ArrowInvalid: something would be.
    """
    pa = load_pyarrow()
    cast = table.cast(schema)
    for field, before, after in zip(schema, table.columns, cast.columns, strict=True):
        # Arrow makes True of any number, and infinity of one that is too large.
        if pa.types.is_boolean(field.type) and before.type != field.type:
            is_lost = not after.cast(before.type).equals(before)
        elif pa.types.is_floating(field.type) and pa.types.is_floating(before.type):
            is_lost = _count_infinite(after) > _count_infinite(before)
        else:
            continue
        if is_lost:
            raise pa.ArrowInvalid(
                f"column {field.name!r} has values that {field.type}, its type in the first file, does not hold"
            )
    return cast


def _count_infinite(column: Any) -> int:
    return int(np.isinf(column.to_numpy()).sum())


def _rows_of(metadata: Any, group: int) -> str:
    first = sum(metadata.row_group(number).num_rows for number in range(group))
    return f"rows {first} to {first + metadata.row_group(group).num_rows - 1}"
