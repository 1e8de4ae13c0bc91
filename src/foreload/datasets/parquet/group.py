"""A decoded row group of a Parquet file, and rows of several that are in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from foreload.checks import Array, Indices
from foreload.datasets.blocks import gather_rows
from foreload.datasets.parquet.columns import (
    collated,
    collated_numbers,
    copied_bytes,
    numbers_of,
    without_dictionary,
)
from foreload.datasets.parquet.file import load_pyarrow
from foreload.protocol import BatchMemory

__all__ = ["Groups", "KeptRows", "RowGroup"]


class _Numbers(NamedTuple):
    """A column's values, contiguous, and where they lie in memory."""

    rows: Array
    address: int


class RowGroup:
    """The wanted columns of a row group.

    Args:
        table: a ``pyarrow.Table`` of them.
    """

    def __init__(self, table: Any) -> None:
        self.table = table
        self.nbytes = int(table.nbytes) + sum(map(copied_bytes, table.columns))
        # Most columns are in one piece; to slice an array takes a third of the time that a chunked one does.
        self._pieces = [column.chunk(0) if column.num_chunks == 1 else None for column in table.columns]
        self._values: list[Callable[[int], Any]] = list(map(_values, table.columns, self._pieces))
        self._numbers: dict[int, _Numbers | None] = {}

    def value(self, column: int, row: int) -> Any:
        """Return the value of a row as an Arrow array of one, which shares the group's memory."""
        return self._values[column](row)

    def numbers(self, column: int) -> _Numbers | None:
        """Return a column as NumPy has it; None if it has other values than numbers, or misses some."""
        if column not in self._numbers:
            piece = self._pieces[column]
            rows = None if piece is None else numbers_of(piece)
            # Of threads that get here at a time, all take what the first one has: booleans are copied, and the
            # copy of another, of which one may have the address already, would be freed.
            self._numbers.setdefault(column, None if rows is None else _Numbers(rows, rows.ctypes.data))
        return self._numbers[column]


def _values(column: Any, piece: Any | None) -> Callable[[int], Any]:
    """Return what gives the value of a row as an Arrow array of one: a dictionary's word without the others."""
    pa = load_pyarrow()
    if piece is None:
        return lambda row: without_dictionary(column.slice(row, 1).chunk(0))
    if not pa.types.is_dictionary(piece.type):
        return lambda row: piece.slice(row, 1)
    return partial(_word, piece.dictionary, piece.indices)


def _word(words: Any, numbers: Any, row: int) -> Any:
    number = numbers[row].as_py()
    return load_pyarrow().nulls(1, words.type) if number is None else words.slice(number, 1)


class Groups:
    """Row groups that are in memory, as long as this lives.

    Args:
        groups: the groups; None in the place of one that no row lies in.
    """

    def __init__(self, groups: Sequence[RowGroup | None]) -> None:
        self._groups = groups
        self._numbers: dict[int, tuple[Indices, Array] | None] = {}

    def value(self, which: int, column: int, row: int) -> Any:
        """Return a value of the group at place ``which``; see :meth:`RowGroup.value`."""
        group = self._groups[which]
        assert group is not None
        return group.value(column, row)

    def numbers(self, column: int) -> tuple[Indices, Array] | None:
        """Return where a column's numbers lie in each group, and those of one group; None if some are none."""
        if column not in self._numbers:
            groups = [group for group in self._groups if group is not None]
            found = [numbers for group in groups if (numbers := group.numbers(column)) is not None]
            if len(found) < len(groups):
                self._numbers[column] = None
            else:
                addresses = iter([numbers.address for numbers in found])
                places = [0 if group is None else next(addresses) for group in self._groups]
                self._numbers[column] = np.array(places, np.int64), found[0].rows
        return self._numbers[column]


class KeptRows:
    """Rows of row groups that are in memory, gathered column by column.

    Args:
        groups: those that the rows lie in.
        which: for each row, the place of its group among them.
        rows: for each row, its number in the group.
    """

    def __init__(self, groups: Groups, which: Indices, rows: Indices) -> None:
        self._groups = groups
        self._which = which
        self._rows = rows

    def array(self, column: int) -> Any:
        """Return the values of a column as one Arrow array."""
        places = zip(self._which.tolist(), self._rows.tolist(), strict=True)
        return load_pyarrow().concat_arrays([self._groups.value(which, column, row) for which, row in places])

    def collated(self, column: int, buffers: BatchMemory) -> Any:
        """Return the values of a column as a batch; None if that is left to ``default_collate``."""
        numbers = self._groups.numbers(column)
        if numbers is None:
            places = np.arange(len(self._rows))
            return collated(load_pyarrow().chunked_array([self.array(column)]), places, buffers)
        addresses, like = numbers

        def copy_to(out: Array) -> None:
            gather_rows(addresses, self._which, self._rows, out)

        return collated_numbers((len(self._rows), *like.shape[1:]), like.dtype, copy_to, buffers)
