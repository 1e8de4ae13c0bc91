"""Decoded row groups of Parquet files: each is decoded once for all threads, and the last ones are kept."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import cachetools

from foreload import _native
from foreload.cache.fingerprint import check_stamp
from foreload.datasets.parquet.file import load_pyarrow, open_parquet
from foreload.datasets.parquet.group import Groups, RowGroup
from foreload.datasets.parquet.schema import cast
from foreload.errors import DecodeError
from foreload.record.spans import Stage

__all__ = ["RowGroups"]

# The file, and the row group in it.
Place = tuple[int, int]


class RowGroups:
    """The decoded row groups of one process.

    A file is open only while a group of it is read, by one thread, so there is nothing to share between threads
    and nothing to leave behind in a fork.

    Args:
        paths: of the files.
        stamps: one per file; another content than that is an error.
        rows: how many each group has, in their order; another number is an error.
        schema: the columns that are wanted (``pyarrow.Schema``).
        room: how many bytes of decoded groups are kept, those that were used last; but always one group.

    Attributes:
        whole: all groups, if all of them are kept.
    """

    whole: Groups | None = None

    def __init__(
        self, paths: Sequence[str], stamps: Sequence[str], rows: Mapping[Place, int], schema: Any, room: int
    ) -> None:
        self._paths = paths
        self._stamps = stamps
        self._rows = rows  # in the order of places
        self._num_filled = sum(count > 0 for count in rows.values())  # no row is asked for of the others
        self._schema = schema
        self._metadata: dict[int, Any] = {}
        self._lock = threading.Lock()
        room = max(1, room)
        self._kept = cachetools.LRUCache[Place, RowGroup](room, getsizeof=lambda group: min(room, group.nbytes))
        self._decoding: dict[Place, Future[RowGroup | None]] = {}

    def kept(self, places: Sequence[Place]) -> Groups | None:
        """Return these row groups if all of them are kept; else None."""
        with self._lock:
            try:
                return Groups([self._kept[place] for place in places])
            except KeyError:
                return None

    def get(self, place: Place, *, keep: bool = True) -> RowGroup:
        """Return a row group.

        Args:
            place: the file's number, and the group's number in it.
            keep: whether it may be wanted again soon; memory that is not kept is used again for the next one.

        Raises:
            DecodeError: it is damaged.
            OSError: the file cannot be read, or has changed.
        """
        with self._lock:
            group = self._kept.get(place)
            if group is not None:
                return group
            future = self._decoding.get(place)
            if is_mine := future is None:
                future = self._decoding[place] = Future()
        if not is_mine:
            # None if that failed: each thread gets an exception of its own, since notes are added to it.
            found = future.result()
            return RowGroup(self._decode(*place)) if found is None else found
        group = None
        try:
            group = RowGroup(self._decode(*place))
        finally:
            with self._lock:
                if group is not None and keep:
                    self._kept[place] = group
                    is_whole = len(self._kept) == self._num_filled
                    self.whole = Groups(list(map(self._kept.get, self._rows))) if is_whole else None
                del self._decoding[place]
            future.set_result(group)
        return group

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
                    table = cast(table, self._schema)
            except (pa.ArrowException, OSError) as error:
                rows = _rows_of(opened.metadata, group)
                raise DecodeError(f"{path}: row group {group} cannot be decoded: {error} ({rows})") from error
            if table.num_rows != (known := self._rows[file, group]):
                raise DecodeError(
                    f"{path}: row group {group} has {table.num_rows} rows, but the file's metadata say {known}"
                )
        check_stamp(path, self._stamps[file])  # it may have been overwritten during the read
        return table


def _rows_of(metadata: Any, group: int) -> str:
    first = sum(metadata.row_group(number).num_rows for number in range(group))
    return f"rows {first} to {first + metadata.row_group(group).num_rows - 1}"
