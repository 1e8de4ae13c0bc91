"""Values of Parquet files are those of pyarrow's own conversion, for every type."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from tests.datasets.compared import HOW, same
from tests.datasets.parquet.conftest import expected, numbers

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def every_kind() -> Any:
    count = 9
    table = numbers(count)
    columns: dict[str, Any] = {
        "whole": pa.array([0, 2**64 - 1, None] * 3, pa.uint64()),
        "small": pa.array([1, -1, 7] * 3, pa.int8()),
        "half": pa.array([np.float16(0.5), None, np.float16(2)] * 3, pa.float16()),
        "real": pa.array([1.5, float("nan"), None] * 3),
        "flag": [True, False, None] * 3,
        "words": pa.array(["ä", "", None] * 3, pa.large_string()),
        "kinds": pa.array(["cat", "dog", None] * 3).dictionary_encode(),
        "bytes": pa.array([b"\0\xff", b"", None] * 3),
        "lists": [[1, 2], [], None] * 3,
        "deep": [[["a"], []], None, [["b", None]]] * 3,
        "struct": [{"x": 1, "y": "z"}, None, {"x": None, "y": ""}] * 3,
        "pairs": pa.array([[("k", 1)], [], None] * 3, pa.map_(pa.string(), pa.int32())),
        "day": pa.array([datetime.date(2024, 2, 29)] * count),
        "time": pa.array([datetime.datetime(2024, 2, 29, 12, 30)] * count, pa.timestamp("us")),
        "money": pa.array([decimal.Decimal("1.25")] * count),
        "nothing": pa.nulls(count),
        "bits": pa.FixedSizeListArray.from_arrays(pa.array([True, False] * count), 2),
        "names": pa.FixedSizeListArray.from_arrays(pa.array(["a", "b"] * count), 2),
    }
    for name, column in columns.items():
        table = table.append_column(name, pa.array(column) if isinstance(column, list) else column)
    return table


@pytest.mark.parametrize("size", [1, 4, 100])
def test_values_are_pyarrows(tmp_path: Path, size: int) -> None:
    table = every_kind()
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=size)
    dataset = fl.ParquetDataset(tmp_path / "a.parquet")
    wanted = expected(table, ("vector", "matrix", "bits"))
    assert all(same(dataset[i], row) for i, row in enumerate(wanted))
    assert same(dataset.__getitems__([8, 0, 8, 3]), [wanted[i] for i in (8, 0, 8, 3)])
    assert same(dataset[-1], wanted[-1])


def test_vectors_with_missing_values_are_lists(tmp_path: Path) -> None:
    values = [[1.0, 2.0], None, [3.0, None], [4.0, 5.0]]
    table = pa.table({"vector": pa.array(values, pa.list_(pa.float32(), 2))})
    pq.write_table(table, tmp_path / "a.parquet")
    dataset = fl.ParquetDataset(tmp_path / "a.parquet")
    wanted = [torch.tensor([1.0, 2.0]), None, [3.0, None], torch.tensor([4.0, 5.0])]
    assert same([row["vector"] for row in dataset.__getitems__(range(4))], wanted)
    assert same([dataset[i]["vector"] for i in range(4)], wanted)


@pytest.mark.parametrize("permutation", [None, [1, 0]])
def test_arrows_tensors_have_their_shape(tmp_path: Path, permutation: list[int] | None) -> None:
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3], permutation=permutation)
    storage = pa.FixedSizeListArray.from_arrays(pa.array(range(24), pa.int32()), 6)
    array = pa.ExtensionArray.from_storage(kind, storage)
    pq.write_table(pa.table({"x": array}), tmp_path / "a.parquet", row_group_size=3)
    rows = fl.ParquetDataset(tmp_path / "a.parquet").__getitems__([3, 1])
    wanted = array.to_numpy_ndarray()
    assert same([row["x"] for row in rows], [torch.from_numpy(wanted[i].copy()) for i in (3, 1)])


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any),
    group=st.integers(1, 5),
    room=st.sampled_from([0, 300, "1MiB"]),
    data=st.data(),
)
def test_any_rows_of_any_files(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], group: int, room: Any, data: Any
) -> None:
    folder = tmp_path_factory.mktemp("any")
    table = numbers(sum(sizes))
    at = 0
    for number, size in enumerate(sizes):
        pq.write_table(table.slice(at, size), folder / f"{number}.parquet", row_group_size=group)
        at += size
    dataset = fl.ParquetDataset(folder, group_cache=room)
    wanted = expected(table)
    assert len(dataset) == len(wanted)
    for _ in range(3):
        indices = data.draw(st.lists(st.integers(-len(wanted), len(wanted) - 1), max_size=12))
        assert same(dataset.__getitems__(indices), [wanted[i] for i in indices])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", sorted(HOW))
def test_batches_are_those_of_the_rows_in_a_list(parquet: Path, how: str) -> None:
    rows = expected(numbers())
    dataset = fl.ParquetDataset(parquet)
    for shuffle in (False, True):
        torch.manual_seed(4)
        wanted = list(TorchDataLoader(rows, batch_size=16, shuffle=shuffle))
        for loader in (fl.DataLoader, TorchDataLoader) if how == "none" else (fl.DataLoader,):
            torch.manual_seed(4)
            assert same(list(loader(dataset, batch_size=16, shuffle=shuffle, **HOW[how])), wanted)


def test_batches_of_columns_are_those_of_default_collate(tmp_path: Path) -> None:
    table = every_kind().slice(0, 3).drop(["pairs", "day", "time", "money", "nothing", "deep", "struct", "kinds"])
    full = pa.table(
        {
            name: table[name].take(pa.array({"half": [0, 2], "lists": [0, 0]}.get(name, [0, 1])))
            for name in table.column_names
        }
    )
    for columns in (
        [name for name in full.column_names if name not in ("whole", "lists", "names")],
        ["id", "lists"],
    ):
        pq.write_table(full.select(columns), tmp_path / "a.parquet", row_group_size=1)
        dataset = fl.ParquetDataset(tmp_path)
        for order in ([0, 1], [1, 0, 1]):
            rows = [dataset[i] for i in order]
            for workers in (0, 2):
                for collate in (None, lambda rows: rows):
                    arguments: dict[str, Any] = {"batch_sampler": [order], "collate_fn": collate}
                    (batch,) = fl.DataLoader(dataset, num_workers=workers, **arguments)
                    assert same(batch, next(iter(TorchDataLoader(rows, batch_size=len(rows), collate_fn=collate))))


@pytest.mark.parametrize("size", [1, 4, 100])
def test_batches_of_groups_in_memory_are_those_of_groups_decoded_for_them(tmp_path: Path, size: int) -> None:
    table = every_kind().drop(["whole", "half", "pairs", "day", "time", "money", "nothing", "deep", "struct"])
    table = table.drop(["real", "flag", "words", "kinds", "bytes", "lists"])
    turned = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2, 3], permutation=[1, 0]),
        pa.FixedSizeListArray.from_arrays(pa.array(range(54), pa.int32()), 6),
    )
    more = {
        "turned": turned,
        "flag": pa.array([True, False, True] * 3),
        "half": pa.array([np.float16(0.5), np.float16(1), np.float16(2)] * 3),
        "kinds": pa.array(["cat", "dog", "cow"] * 3).dictionary_encode(),
        "views": pa.array(["ä", "", "x" * 40] * 3, pa.string_view()),
        "large": pa.array([0, 2**63 - 1, 5] * 3, pa.uint64()),
    }
    for name, column in more.items():
        table = table.append_column(name, column)
    # The second file's numbers are cast to the first's types.
    pq.write_table(table.slice(0, 6), tmp_path / "a.parquet", row_group_size=size)
    other = table.set_column(table.column_names.index("small"), "small", table["small"].cast(pa.int64()))
    pq.write_table(other.slice(6), tmp_path / "b.parquet", row_group_size=size)
    kept = fl.ParquetDataset(tmp_path)
    rows = [kept[i] for i in range(9)]
    for order in ([8, 0, 3], [4], [2, 2, 7, 1, 0, 8, 6, 5, 4], list(range(9)) * 20):
        wanted = next(iter(TorchDataLoader([rows[i] for i in order], len(order))))
        for dataset in (kept, fl.ParquetDataset(tmp_path), fl.ParquetDataset(tmp_path, group_cache=0)):
            (batch,) = fl.DataLoader(dataset, batch_sampler=[order], num_workers=0)
            assert same(batch, wanted)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", list(HOW))
def test_numbers_beyond_int64_are_named(tmp_path: Path, how: str) -> None:
    for name, values in (("a", [1, 2, 3]), ("b", [4, (1 << 63) - 1, 1 << 63, 5])):
        pq.write_table(
            pa.table({"x": pa.array(values, pa.uint64())}), tmp_path / f"{name}.parquet", row_group_size=2
        )
    dataset = fl.ParquetDataset(tmp_path)
    assert [row["x"] for row in dataset] == [1, 2, 3, 4, (1 << 63) - 1, 1 << 63, 5]
    with pytest.raises(
        ValueError, match=r"b\.parquet: row 2: column 'x' does not fit into int64.*9223372036854775808"
    ):
        list(fl.DataLoader(dataset, batch_size=7, **HOW[how]))
    loader = fl.DataLoader(dataset, batch_size=7, on_error="skip", **HOW[how])
    ((batch),) = loader
    assert batch["x"].dtype is torch.int64
    assert batch["x"].tolist() == [1, 2, 3, 4, (1 << 63) - 1, 5]
    assert [error.index for error in loader.errors] == [5]
    small = fl.ParquetDataset(tmp_path / "a.parquet")
    assert same(list(fl.DataLoader(small, 3, **HOW[how])), list(TorchDataLoader(list(small), 3)))


@pytest.mark.parametrize("kind", ["text", "time"])
def test_values_that_python_does_not_hold_are_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.parquet"
    if kind == "text":
        raw = [b"fine", b"not \xff so", b"fine too"]
        buffers = pa.array(raw, pa.binary()).buffers()
        column = pa.StringArray.from_buffers(3, buffers[1], buffers[2])
    else:
        column = pa.array([0, 1 << 55, 5], pa.timestamp("ms"))
    pq.write_table(pa.table({"i": [1, 2, 3], "x": column}), path)
    dataset = fl.ParquetDataset(path)
    assert dataset[2]["i"] == 3
    for load in (
        lambda: dataset[1],
        lambda: dataset.__getitems__([0, 1]),
        lambda: list(fl.DataLoader(dataset, 3)),
    ):
        with pytest.raises(fl.errors.DecodeError, match=r"a\.parquet: row 1: column 'x' cannot be read"):
            load()
    loader = fl.DataLoader(dataset, 3, on_error="skip", collate_fn=list)
    assert [[row["i"] for row in batch] for batch in loader] == [[1, 3]]


# MosaicML's MDS shards.


def test_whoever_loads_is_not_chosen_again_once_there_is_a_cache(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(2000)}), tmp_path / "a.parquet", row_group_size=100)
    loader = fl.DataLoader(fl.ParquetDataset(tmp_path), batch_size=100, shuffle=True, seed=1, cache="8MiB")
    for epoch in range(3):
        assert sorted(torch.cat([batch["x"] for batch in loader]).tolist()) == list(range(2000))
        assert loader.stats()["cache"]["hits"] == 2000 * epoch
    loader.close()


def test_types_of_which_arrow_cannot_take_rows(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array(["a", None, "ccc" * 20, "d"] * 5, pa.string_view()), "id": range(20)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    dataset = fl.ParquetDataset(tmp_path / "a.parquet")
    rows = table.to_pylist()
    assert [dataset[i] for i in range(20)] == rows
    assert dataset.__getitems__([19, 0, 0, 12]) == [rows[i] for i in (19, 0, 0, 12)]
    loader = fl.DataLoader(dataset, batch_size=5, sampler=[16, 3, 9, 2, 0])
    (batch,) = loader
    assert batch["text"] == [rows[i]["text"] for i in (16, 3, 9, 2, 0)]
