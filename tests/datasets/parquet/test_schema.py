"""Files whose columns have different types are read as one dataset, or not at all: nothing is lost unsaid."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

import foreload as fl

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NOON = datetime.datetime(2020, 1, 1, 12)


def written(folder: Path, *columns: Any) -> fl.ParquetDataset:
    for number, column in enumerate(columns):
        pq.write_table(pa.table({"x": column}), folder / f"{number}.parquet")
    return fl.ParquetDataset(folder)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([pa.nulls(1), pa.array([5, None])], [None, 5, None]),
        ([pa.nulls(0), pa.array(["a"])], ["a"]),
        ([pa.array([1]), pa.array(["7", None])], [1, 7, None]),
        ([pa.nulls(1), pa.nulls(1), pa.array(["a", "b"]).dictionary_encode()], [None, None, "a", "b"]),
        ([pa.nulls(1), pa.array([None], pa.string()).dictionary_encode()], [None, None]),
        ([pa.array([[], None], pa.list_(pa.null())), pa.array([[1, 2]])], [[], None, [1, 2]]),
        ([pa.array([{"a": 1}]), pa.array([{"a": 2, "b": "c"}])], [{"a": 1, "b": None}, {"a": 2, "b": "c"}]),
        ([pa.array([{"a": 1, "b": "c"}]), pa.array([{"a": 2}])], [{"a": 1, "b": "c"}, {"a": 2, "b": None}]),
        ([pa.array([{"a": None}]), pa.array([{"a": "c"}])], [{"a": None}, {"a": "c"}]),
        ([pa.array([datetime.date(2020, 1, 2)]), pa.array([datetime.datetime(2021, 3, 4)])],
         [datetime.date(2020, 1, 2), datetime.date(2021, 3, 4)]),
        ([pa.array([[0.5]], pa.list_(pa.float32())), pa.array([[float("inf")]])], [[0.5], [float("inf")]]),
    ],
)  # fmt: skip
def test_what_the_first_file_does_not_tell_the_next_one_does(
    tmp_path: Path, columns: list[Any], expected: list[Any]
) -> None:
    """A shard without rows, or in which all values of a column are missing, does not decide about the others."""
    dataset = written(tmp_path, *columns)
    assert [row["x"] for row in dataset] == expected
    (batch,) = fl.DataLoader(dataset, batch_size=len(expected), collate_fn=list, num_workers=0)
    assert [row["x"] for row in batch] == expected


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (pa.array([[1.0]], pa.list_(pa.float32())), pa.array([[1e300]])),
        (pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), pa.array([[1.0, 1e300]], pa.list_(pa.float64(), 2))),
        (pa.array([[True]]), pa.array([[2]])),
        (pa.array([{"a": 1}], pa.struct([("a", pa.int32())])), pa.array([{"a": 2, "b": 3}])),
        (pa.array([{"a": True}]), pa.array([{"a": 7}])),
        (
            pa.array([[("k", True)]], pa.map_(pa.string(), pa.bool_())),
            pa.array([[("k", 7)]], pa.map_(pa.string(), pa.int64())),
        ),
        (pa.array([datetime.date(2020, 1, 2)]), pa.array([datetime.datetime(2020, 1, 2, 5)])),
        (pa.array([NOON], pa.timestamp("us")), pa.array([NOON], pa.timestamp("us", "Europe/Berlin"))),
        (pa.array([NOON], pa.timestamp("us", "UTC")), pa.array([NOON], pa.timestamp("us"))),
        (pa.array([1]), pa.array(["x"])),
        (pa.array([1]), pa.array(["007"])),
        (pa.array([1], pa.int8()), pa.array([300])),
    ],
)
def test_what_a_cast_would_lose_is_an_error_that_says_what_to_do(tmp_path: Path, first: Any, other: Any) -> None:
    dataset = written(tmp_path, first, other)
    dataset[0]
    with pytest.raises(
        fl.errors.DecodeError, match=r"1\.parquet: .*column 'x' .* its type in the first file.*the same types"
    ):
        dataset[1]
