"""One type per column, for files whose types differ."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from foreload.datasets.parquet.file import load_pyarrow

__all__ = ["cast", "with_types_of"]


def with_types_of(schema: Any, other: Any) -> Any:
    """Return a schema that has, where its own columns have no type yet, those of another file.

    A column, or a part of one, has no type in a file in which all of its values are missing; a struct may lack
    fields that it has in another file. Types that contradict each other stay what they are.
    """
    pa = load_pyarrow()
    fields = []
    for mine in schema:
        theirs = pa.field(mine.name, other.field(mine.name).type)
        if theirs.type != mine.type:
            with suppress(pa.ArrowException):
                mine = pa.unify_schemas([pa.schema([mine]), pa.schema([theirs])]).field(0)
        fields.append(mine)
    return pa.schema(fields)


def cast(table: Any, schema: Any) -> Any:
    """Cast columns to the types of the first files; fractions may be rounded, but nothing else be lost.

    Raises:
        pyarrow.ArrowInvalid: something would be.
    """
    pa = load_pyarrow()
    columns = []
    for field, before in zip(schema, table.columns, strict=True):
        try:
            after = before.cast(field.type)
        except pa.ArrowException as error:
            raise pa.ArrowInvalid(_message(field, before, str(error))) from error
        if any(map(_is_lost, before.chunks, after.chunks)):
            raise pa.ArrowInvalid(_message(field, before, "something of them would be lost"))
        columns.append(after)
    return pa.table(columns, schema=schema)


def _message(field: Any, column: Any, problem: str) -> str:
    return (
        f"column {field.name!r} has values that {field.type}, its type in the first file, does not hold (here it "
        f"has {column.type}; write all files with the same types): {problem}"
    )


def _is_lost(before: Any, after: Any) -> bool:
    """Whether a cast has lost more of an array than digits of fractions, where Arrow does not say so itself."""
    pa = load_pyarrow()
    is_a = pa.types
    if before.type == after.type:
        return False
    if isinstance(before, pa.ExtensionArray) or isinstance(after, pa.ExtensionArray):
        return _is_lost(getattr(before, "storage", before), getattr(after, "storage", after))
    if is_a.is_dictionary(before.type):
        return _is_lost(before.dictionary_decode(), after)
    if is_a.is_struct(before.type) and is_a.is_struct(after.type):
        parts = _fields(after)
        return any(
            _is_lost(part, parts[name]) if name in parts else part.null_count < len(part)
            for name, part in _fields(before).items()
        )
    if is_a.is_map(before.type) and is_a.is_map(after.type):
        return _is_lost(before.keys, after.keys) or _is_lost(before.items, after.items)
    if hasattr(before, "flatten") and hasattr(after, "flatten"):  # lists of any kind
        return _is_lost(before.flatten(), after.flatten())
    return _is_value_lost(before, after)


def _is_value_lost(before: Any, after: Any) -> bool:
    is_a = load_pyarrow().types
    if is_a.is_floating(after.type) and (is_a.is_floating(before.type) or is_a.is_decimal(before.type)):
        return _count_infinite(after) > _count_infinite(before)
    are_times = is_a.is_timestamp(after.type) and is_a.is_timestamp(before.type)
    if are_times and (after.type.tz is None) != (before.type.tz is None):  # a clock's time is no moment
        return bool(len(before) > before.null_count)
    # Arrow makes True of any number, nothing of words in a dictionary, a day of a time in it, and 7 of "007".
    may_lose = is_a.is_boolean(after.type) or is_a.is_null(after.type)
    is_text = is_a.is_string(before.type) or is_a.is_large_string(before.type)
    is_read = is_text and is_a.is_integer(after.type)
    if may_lose or is_read or (is_a.is_temporal(after.type) and is_a.is_temporal(before.type)):
        return not after.cast(before.type).equals(before)
    return False


def _fields(array: Any) -> dict[str, Any]:
    names = [array.type.field(number).name for number in range(array.type.num_fields)]
    return dict(zip(names, array.flatten(), strict=True))


def _count_infinite(array: Any) -> int:
    if not load_pyarrow().types.is_floating(array.type):
        return 0
    return int(np.isinf(array.to_numpy(zero_copy_only=False)).sum())
