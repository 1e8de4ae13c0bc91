"""Rows of Parquet files, with random access."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from foreload.batch.assembly import note_sample
from foreload.batch.collate import is_default_collate
from foreload.batch.collated import Collated, own_getitems
from foreload.batch.columns import ColumnAssembly
from foreload.batch.generators.keyed import keyed_rows
from foreload.cache.fingerprint import stamp
from foreload.checks import Array, Indices, fits_int64, inherits
from foreload.datasets.base import BaseDataset
from foreload.datasets.folders import absolute, check_listable, sorted_files
from foreload.datasets.parquet.columns import collated, column_values, without_dictionary
from foreload.datasets.parquet.file import load_pyarrow, open_parquet
from foreload.datasets.parquet.group import KeptRows
from foreload.datasets.parquet.rowgroups import RowGroups
from foreload.datasets.parquet.schema import with_types_of
from foreload.errors import DecodeError
from foreload.forks.per_process import PerProcess
from foreload.options import Keep, LoadingMode, parse_bytes
from foreload.order.index import positions_of
from foreload.protocol import BatchMemory, BatchOptions, NativeBatches, TwoStageBatches
from foreload.record.progress import track

__all__ = ["ParquetDataset"]

Row = dict[str, Any]

# More rows than this of each group are faster to take group by group than one by one.
_MANY = 16


class ParquetDataset(BaseDataset, TwoStageBatches, NativeBatches):
    """Rows of Parquet files, with random access: full shuffle, cache, exact resume.

    A sample is a dict from column to value: numbers as Python's, fixed-size lists of numbers (and Arrow's
    fixed-shape tensors) as tensors of their dtype, strings as str, binary as bytes, other lists as lists, structs
    as dicts, missing values as None.

    Rows lie in row groups, and a row group can only be decoded as a whole (of the wanted columns). Each is decoded
    once per batch; the last ones are kept, in each process, but those of which a batch takes all rows only if all
    groups have room. A full shuffle asks for rows of all groups, so it wants data that fits into ``group_cache``,
    a ``loading_mode`` or the loader's ``cache=`` that keeps samples, or files with small groups
    (``pyarrow.parquet.write_table(..., row_group_size=1000)``).

    Args:
        data_path: a file, a folder (with all ``*.parquet`` in and below it, sorted, without names that begin with
            a dot or underscore), or a list of these. All files have the wanted columns; the types are those of the
            first file (of a column without values there, and of fields that its structs lack, those of the next
            one), to which others are cast (fractions may be rounded; what would lose more is an error).
        columns: which, in this order; None: all of the first file.
        transform: called with each dict.
        loading_mode: as for :class:`~foreload.BaseDataset`.
        group_cache: bytes of decoded row groups that a process keeps, or a text such as ``"1GiB"``. One group is
            kept, however large.

    Attributes:
        paths: the files.
        columns: their names.
        schema: the ``pyarrow.Schema`` of the columns.

    Raises:
        FileNotFoundError: ``data_path`` does not exist, or it has no Parquet file.
        DecodeError: a file is not a Parquet file, or cut short; later: damaged, or not any more what it was.
        KeyError: a file does not have a column; the message lists those that it has.
        ImportError: pyarrow is not installed.

    >>> import tempfile, pyarrow, pyarrow.parquet
    >>> path = Path(tempfile.mkdtemp()) / "train.parquet"
    >>> table = pyarrow.table({"text": ["a", "b", "c"], "label": [0, 1, 1]})
    >>> pyarrow.parquet.write_table(table, path, row_group_size=2)
    >>> ParquetDataset(path)[2]
    {'text': 'c', 'label': 1}
    """

    def __init__(
        self,
        data_path: str | Path | Sequence[str | Path],
        columns: Sequence[str] | None = None,
        transform: Callable[[Row], Any] | None = None,
        loading_mode: LoadingMode = LoadingMode.LAZY,
        *,
        group_cache: SupportsIndex | str = "256MiB",
    ) -> None:
        if columns is not None:
            if isinstance(columns, str) or not isinstance(columns, Iterable):
                raise TypeError(f"columns must be a list of str, got {columns!r}")
            columns = list(columns)
            if not all(isinstance(name, str) for name in columns):
                raise TypeError(f"columns must be a list of str, got {columns!r}")
            if not columns or len(set(columns)) != len(columns):
                raise ValueError(f"columns must be different names, at least one, got {columns}")
        self._wanted = columns
        self._room = parse_bytes(group_cache, name="group_cache")
        self._groups = PerProcess[RowGroups]()
        super().__init__(data_path, transform, None, loading_mode)  # type: ignore[arg-type]

    def _locate(self, data_path: Any) -> Any:
        self.paths = _list_files(data_path)
        return data_path

    def index(self) -> int:
        """Read the files' metadata: the row groups, and their numbers of rows."""
        self._stamps = [stamp(path) for path in self.paths]
        places, rows, size = [], [0], 0
        for file, path in enumerate(track(self.paths, "reading Parquet", total=len(self.paths), after=1)):
            with open_parquet(path) as opened:
                self._check(opened.schema_arrow, path, is_first=file == 0)
                about = opened.metadata
                counts = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
                if sum(counts) != about.num_rows or min(counts, default=0) < 0:
                    raise DecodeError(
                        f"{path}: damaged: {about.num_rows} rows, but those of its groups are {counts}"
                    )
                size += sum(about.row_group(group).total_byte_size for group in range(len(counts)))
                places += [(file, group) for group in range(len(counts))]
                rows += counts
        self._places = places
        self._bytes = size  # of all groups, decoded
        self._starts = np.cumsum(rows, dtype=np.int64)
        return int(self._starts[-1])

    def _check(self, schema: Any, path: str, *, is_first: bool) -> None:
        if is_first:
            self.columns: list[str] = schema.names if self._wanted is None else self._wanted
        missing = [name for name in self.columns if schema.names.count(name) != 1]
        if missing:
            raise KeyError(
                f"columns: {', '.join(map(repr, missing))} must be there once in {path!r}; its columns are: "
                f"{', '.join(map(repr, schema.names))}"
            )
        if is_first:
            fields = (schema.field(name) for name in self.columns)
            self.schema = load_pyarrow().schema([(field.name, field.type) for field in fields])
        else:
            self.schema = with_types_of(self.schema, schema)

    def _opened(self) -> RowGroups:
        return self._groups.get(self._open)

    def _open(self) -> RowGroups:
        rows = dict(zip(self._places, np.diff(self._starts).tolist(), strict=True))
        return RowGroups(self.paths, self._stamps, rows, self.schema, self._room)

    def read(self, index: int) -> Row:
        """Load row ``index``, from 0 to ``len(self) - 1``."""
        return self._read_many([index])[0]

    def _kept_rows(self, indices: Sequence[int] | Indices) -> KeptRows | None:
        """Return rows whose groups are all in memory; None if some are not, or to take them by group is faster."""
        where = np.asarray(indices, np.int64)
        numbers = np.searchsorted(self._starts, where, "right") - 1
        whole = self._opened().whole
        if whole is not None and all(whole.numbers(column) for column in range(len(self.columns))):
            return KeptRows(whole, numbers, where - self._starts[numbers])
        groups, which = numbers, np.arange(len(where))
        # To find out which rows share a group takes longer than to look for the groups of a few.
        if len(where) > len(self._places) or numbers[0] == numbers[-1]:
            groups, which = np.unique(numbers, return_inverse=True)
            if len(where) > _MANY * len(groups):
                return None
        found = self._opened().kept([self._places[number] for number in groups.tolist()])
        return None if found is None else KeptRows(found, which, where - self._starts[numbers])

    def _table(self, indices: Sequence[int] | Indices) -> tuple[Any, Array]:
        """Load rows, group by group; return a table of them, and the place of each in it."""
        pa = load_pyarrow()
        kept = self._kept_rows(indices)
        if kept is not None:
            arrays = [kept.array(column) for column in range(len(self.columns))]
            return pa.table(arrays, names=self.columns), np.arange(len(indices))
        groups = self._opened()
        where = np.asarray(indices, np.int64)
        order = np.argsort(where, kind="stable")
        rows = where[order]
        numbers = np.searchsorted(self._starts, rows, "right") - 1
        pieces = []
        for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(numbers)) + 1):
            number = numbers[part[0]]
            wanted = rows[part] - self._starts[number]
            # A group that is taken whole is wanted in the next epoch, and still there only if all have room.
            is_whole = len(wanted) == self._starts[number + 1] - self._starts[number]
            group = groups.get(self._places[number], keep=self._bytes <= self._room or not is_whole).table
            if 2 * len(wanted) >= group.num_rows and (np.diff(wanted) == 1).all():
                piece = group.slice(int(wanted[0]), len(wanted))
            else:  # copied, so that a few rows do not hold a whole group in memory
                piece = _take_rows(group, wanted)
            # (All values of a group, in which a dictionary has each once, might not fit into memory.)
            pieces.append(pa.table(list(map(without_dictionary, piece.columns)), names=self.columns))
        return pa.concat_tables(pieces).combine_chunks(), np.argsort(order)

    def _read_many(self, indices: Sequence[int]) -> list[Row]:
        if not len(indices):
            return []
        return self._rows(*self._table(indices), indices)

    def _rows(self, table: Any, places: Array, indices: Sequence[int]) -> list[Row]:
        try:
            values = [column_values(column) for column in table.columns]
        except (ValueError, OverflowError) as error:
            raise self._explained(error, table, places, indices) from error
        rows = [dict(zip(self.columns, fields, strict=True)) for fields in zip(*values, strict=True)]
        return [rows[place] for place in places.tolist()]

    def _explained(self, error: Exception, table: Any, places: Array, indices: Sequence[int]) -> DecodeError:
        """Find the value that Python cannot hold: text that is not UTF-8, or a time beyond its range."""
        for index, place in zip(indices, places.tolist(), strict=True):
            for name, column in zip(self.columns, table.columns, strict=True):
                try:
                    column[place].as_py()
                except (ValueError, OverflowError) as found:
                    return DecodeError(f"{self._place(index)}: column {name!r} cannot be read: {found}")
        return DecodeError(f"{self._place(indices[0])}: the columns cannot be read: {error}")

    def _place(self, index: int) -> str:
        """Return the file of a row, and its number there."""
        file = self._places[int(np.searchsorted(self._starts, index, "right")) - 1][0]
        first = next(number for number, place in enumerate(self._places) if place[0] == file)
        return f"{self.paths[file]}: row {index - int(self._starts[first])}"

    def prepare_samples(self, indices: Sequence[int], keep: Keep = "auto") -> list[Row]:
        """Load several samples as :meth:`prepare_sample` loads one, for the cache."""
        if self._kept is None:
            return self._read_many(indices)
        return self._kept.load_many(indices, self._read_many)

    @own_getitems
    def __getitems__(self) -> Callable[[Sequence[int]], list[Any]] | None:
        """Load the samples of a batch, each row group once; None if a subclass loads samples itself."""
        own = inherits(self, ParquetDataset, "__getitem__", "prepare_sample", "read")
        return self._load_batch if own else None

    def _load_batch(self, indices: Sequence[int]) -> list[Any]:
        numbers = positions_of(indices, self._count).tolist()
        samples = []
        rows = keyed_rows(self._load_batch, self.prepare_samples(numbers))
        for position, (number, prepared) in enumerate(zip(numbers, rows, strict=True)):
            try:
                samples.append(self.finish_sample(number, prepared))
            except Exception as error:
                note_sample(error, number, position)
                raise
        return samples

    def storage_blocks(self, size: int) -> Indices:
        """Return the first row of each row group, which is decoded as a whole."""
        starts: Indices = np.unique(self._starts)  # some may have no rows
        return starts[:-1]

    def batch_assembly(
        self, spec: BatchOptions, key: tuple[int, int], buffers: BatchMemory
    ) -> ColumnAssembly | None:
        """Make whole batches of columns for foreload's DataLoader, unless a subclass loads samples itself."""
        own = inherits(self, ParquetDataset, "__getitems__", "prepare_samples", "finish_sample")
        plain = own and self.__getitems__ is not None and self._kept is None and self.transform is None
        if not plain or spec.cache is not None or not is_default_collate(spec.collate_fn):
            return None
        return ColumnAssembly(spec, _Columns(self, buffers), buffers)


class _Columns:
    """A view of a Parquet dataset whose batches are made of columns, if possible."""

    def __init__(self, dataset: ParquetDataset, buffers: BatchMemory) -> None:
        self._dataset = dataset
        self._buffers = buffers

    def __getitem__(self, index: int) -> Row:
        return self._checked(positions_of([index], int(self._dataset._starts[-1])).item(), self._dataset[index])

    def _checked(self, index: int, sample: Row) -> Row:
        for name, value in sample.items():
            if isinstance(value, int) and not fits_int64(value):
                raise ValueError(
                    f"{self._dataset._place(index)}: column {name!r} does not fit into int64, as batches have it: "
                    f"{value}"
                )
        return sample

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        numbers = positions_of(indices, int(self._dataset._starts[-1]))
        if not len(numbers):
            return []
        make = self._maker(numbers)
        batch: Row = {}
        for column, name in enumerate(self._dataset.columns):
            try:
                batch[name] = make(column)
            except (ValueError, OverflowError) as error:
                table, places = self._dataset._table(numbers)
                raise self._dataset._explained(error, table, places, numbers.tolist()) from error
            if batch[name] is None:
                wanted = numbers.tolist()
                rows = self._dataset._read_many(wanted)
                return [self._checked(index, row) for index, row in zip(wanted, rows, strict=True)]
        return Collated(batch, len(numbers))

    def _maker(self, numbers: Indices) -> Callable[[int], Any]:
        """Return what makes a column's part of a batch, or None if ``default_collate`` has to."""
        kept = self._dataset._kept_rows(numbers)
        if kept is not None:
            return lambda column: kept.collated(column, self._buffers)
        table, places = self._dataset._table(numbers)
        return lambda column: collated(table.column(column), places, self._buffers)


def _take_rows(table: Any, rows: Indices) -> Any:
    """Copy rows of a table."""
    pa = load_pyarrow()
    try:
        return table.take(pa.array(rows))
    except pa.ArrowNotImplementedError:  # for some types (string_view, say) Arrow can only slice and join
        return pa.concat_tables([table.slice(row, 1) for row in rows.tolist()])


def _list_files(data_path: Any) -> list[str]:
    """List the Parquet files at a path or list of paths."""
    if isinstance(data_path, (str, os.PathLike)):
        if not os.path.exists(data_path):  # Path("") would be the present folder
            raise FileNotFoundError(f"data_path: there is nothing at {os.fspath(data_path)!r}")
        path = Path(absolute(data_path))
        if not path.is_dir():
            return [str(path)]
        found = (os.path.relpath(file, path) for file in sorted_files(path, (".parquet",)))
        listed = sorted(str(path / file) for file in found if not file.startswith("_") and "/_" not in file)
        if not listed:
            raise FileNotFoundError(f"data_path: there is no *.parquet in {str(path)!r}")
        return listed
    check_listable("data_path", data_path)
    if not isinstance(data_path, Iterable):
        raise TypeError(f"data_path must be a file, a folder or a list of them, got {type(data_path).__name__}")
    listed = [file for part in data_path for file in _list_files(part)]
    if not listed:
        raise ValueError("data_path is an empty list; give at least one file")
    return listed
