"""Parquet, Hugging Face datasets, MDS shards and webdataset pipelines, each beside the library that wrote them."""

from __future__ import annotations

import datetime
import decimal
import fcntl
import importlib
import importlib.machinery
import json
import os
import pickle
import random
import re
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, Subset

import foreload as fl
from foreload.datasets.parquet.rowgroups import RowGroups, open_parquet
from foreload.workers.copies import own_copy

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

HOW: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
    "fork server": {"num_workers": 2, "workers": "processes", "multiprocessing_context": "forkserver"},
    "auto": {},
}
ROWS = 120


def same(a: Any, b: Any) -> bool:
    """Equal, down to types and dtypes; NaN is NaN."""
    if isinstance(a, torch.Tensor):
        alike = isinstance(b, torch.Tensor) and a.dtype is b.dtype and a.shape == b.shape
        return alike and bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def expected(table: Any, vectors: tuple[str, ...] = ("vector", "matrix")) -> list[dict[str, Any]]:
    """What the samples must be, from pyarrow's own conversion."""
    rows = table.to_pylist()
    for row in rows:
        for name in vectors:
            if name in row:
                kind = table.schema.field(name).type
                while pa.types.is_fixed_size_list(kind):
                    kind = kind.value_type
                row[name] = torch.from_numpy(np.array(row[name], kind.to_pandas_dtype()))
    return rows


def numbers(count: int = ROWS) -> Any:
    rng = np.random.default_rng(0)
    vector = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(count * 6, np.float32)), 6)
    matrix = pa.FixedSizeListArray.from_arrays(pa.array(rng.integers(-9, 9, count * 6, np.int16)), 3)
    return pa.table(
        {
            "id": pa.array(range(count), pa.int32()),
            "score": rng.random(count),
            "text": [f"row {i}" for i in range(count)],
            "vector": vector,
            "matrix": pa.FixedSizeListArray.from_arrays(matrix, 2),
        }
    )


@pytest.fixture(scope="session")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 rows in two files, in row groups of 7."""
    root = tmp_path_factory.mktemp("parquet")
    table = numbers()
    pq.write_table(table.slice(0, 50), root / "a.parquet", row_group_size=7)
    pq.write_table(table.slice(50), root / "b.parquet", row_group_size=7)
    return root


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The row groups that are decoded."""
    seen: list[tuple[int, int]] = []
    original = RowGroups._decode

    def decode(self: RowGroups, file: int, group: int) -> Any:
        seen.append((file, group))
        return original(self, file, group)

    monkeypatch.setattr(RowGroups, "_decode", decode)
    return seen


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


def test_a_stock_loader_with_workers_gives_the_same(parquet: Path) -> None:
    dataset = fl.ParquetDataset(parquet, ["text", "id"])
    assert dataset[0] == {"text": "row 0", "id": 0}  # opened before the fork
    got = [row["id"] for row in TorchDataLoader(dataset, batch_size=16, num_workers=2)]
    assert torch.cat(got).tolist() == list(range(ROWS))


def test_a_batch_decodes_each_of_its_groups_once(parquet: Path, decoded: list[Any]) -> None:
    dataset = fl.ParquetDataset(parquet, ["id"], group_cache=0)
    random.Random(0).shuffle(order := list(range(ROWS)))
    list(fl.DataLoader(dataset, batch_size=40, sampler=order, num_workers=0))
    wanted = sum(
        len({(i // 50, i % 50 // 7 if i < 50 else (i - 50) // 7) for i in order[k : k + 40]}) for k in (0, 40, 80)
    )
    assert wanted - 2 <= len(decoded) <= wanted  # less where the last group is still there
    decoded.clear()
    list(fl.DataLoader(fl.ParquetDataset(parquet, ["id"], group_cache="1MiB"), batch_size=40, sampler=order))
    assert sorted(decoded) == sorted(
        {(file, group) for file, groups in ((0, 8), (1, 10)) for group in range(groups)}
    )


def test_groups_that_batches_take_whole_are_kept_only_if_all_have_room(tmp_path: Path, decoded: list[Any]) -> None:
    pq.write_table(numbers(40), tmp_path / "a.parquet", row_group_size=10)
    whole = [*range(20, 40), *range(9, -1, -1), *range(10, 20)]
    for room, times in (("1MiB", 1), (1, 2)):
        decoded.clear()
        dataset = fl.ParquetDataset(tmp_path, group_cache=room)
        rows = [dataset[index] for index in whole]
        decoded.clear()
        loader = fl.DataLoader(fl.ParquetDataset(tmp_path, group_cache=room), 20, sampler=whole, num_workers=0)
        for _ in range(2):
            ids = [batch["id"].tolist() for batch in loader]
            assert ids == [[row["id"] for row in rows[:20]], [row["id"] for row in rows[20:]]]
        assert len(decoded) == 4 * times
        vectors = torch.cat([batch["vector"] for batch in loader])
        assert torch.equal(vectors, torch.stack([row["vector"] for row in rows]))


@pytest.mark.parametrize("size", [3, 5, 6, 20])
def test_batches_of_parts_of_groups_are_those_of_the_rows(tmp_path: Path, size: int) -> None:
    pq.write_table(numbers(40), tmp_path / "a.parquet", row_group_size=5)
    dataset = fl.ParquetDataset(tmp_path)
    kept = list(fl.DataLoader(dataset, size))  # what is delivered is not written again
    rows = [dataset[index] for index in range(40)]
    for name in ("vector", "matrix"):
        assert torch.equal(torch.cat([batch[name] for batch in kept]), torch.stack([row[name] for row in rows]))


def test_in_order_each_group_is_decoded_once_however_large(parquet: Path, decoded: list[Any]) -> None:
    list(fl.DataLoader(fl.ParquetDataset(parquet, group_cache=1), batch_size=2, num_workers=0))
    assert len(decoded) == 18


def test_threads_that_want_the_same_group_decode_it_once(parquet: Path, decoded: list[Any]) -> None:
    dataset = fl.ParquetDataset(parquet)
    together = threading.Barrier(8)

    def load(i: int) -> Any:
        together.wait()
        return dataset[i % 7]

    with ThreadPoolExecutor(8) as threads:
        assert [row["id"] for row in threads.map(load, range(8))] == [i % 7 for i in range(8)]
    assert decoded == [(0, 0)]


@pytest.mark.parametrize("how", ["auto", "none", "threads", "processes"])
def test_the_planned_cache_keeps_rows_and_reads_the_rest_by_groups(
    parquet: Path, how: str, decoded: list[Any]
) -> None:
    dataset = fl.ParquetDataset(
        parquet, ["id", "vector"], group_cache=0, transform=lambda row: (row["id"], row["vector"])
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = fl.DataLoader(dataset, batch_size=60, shuffle=True, seed=3, cache="1MiB", **HOW[how])
        plain = fl.DataLoader(dataset, batch_size=60, shuffle=True, seed=3, num_workers=0)
        for _ in range(3):
            assert same(list(loader), list(plain))
    assert loader.stats()["cache"]["misses"] == ROWS
    assert loader.stats()["cache"]["hits"] == 2 * ROWS
    decoded.clear()
    again = fl.DataLoader(dataset, batch_size=60, shuffle=True, seed=3, cache="1MiB", num_workers=0)
    list(again)
    assert len(decoded) <= 36  # not one per row
    loader.close()


@pytest.mark.parametrize("mode", ["eager", "cached"])
def test_what_is_kept_is_not_read_again(parquet: Path, mode: str, decoded: list[Any]) -> None:
    dataset = fl.ParquetDataset(parquet, loading_mode=fl.LoadingMode(mode), group_cache=0)
    wanted = expected(numbers())
    assert same(list(map(dict, dataset.__getitems__(range(ROWS)))), wanted)
    decoded.clear()
    assert same([dataset[i] for i in range(ROWS)], wanted)
    assert decoded == []


def split_epoch(make: Callable[[], Any], batches: int) -> tuple[Any, Any, Any]:
    """What a loader gives in a row; and the same in two parts, by two loaders."""
    loader = make()
    epoch = iter(loader)
    first = [next(epoch) for _ in range(batches)]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    rest = list(epoch)
    loader.close()
    other = make()
    other.load_state_dict(state)
    continued = list(other)
    other.close()
    return first, rest, continued


@pytest.mark.parametrize("how", ["none", "threads", "processes"])
def test_an_epoch_goes_on_where_it_was(parquet: Path, how: str) -> None:
    dataset = fl.ParquetDataset(parquet)
    _, rest, continued = split_epoch(
        lambda: fl.DataLoader(dataset, batch_size=8, shuffle=True, seed=5, **HOW[how]), 4
    )
    assert same(continued, rest)
    assert len(rest) == 11


def test_a_subset_and_a_subclass_are_datasets_too(parquet: Path) -> None:
    class Text(fl.ParquetDataset):
        def read(self, index: int) -> Any:
            return super().read(index)["text"].upper()

    (batch,) = fl.DataLoader(Subset(fl.ParquetDataset(parquet, ["id"]), [99, 3]), batch_size=2)
    assert batch["id"].tolist() == [99, 3]
    assert next(iter(fl.DataLoader(Text(parquet), batch_size=2))) == ["ROW 0", "ROW 1"]


def test_files_are_found_and_sorted(tmp_path: Path) -> None:
    def write(name: str, value: int, kind: Any = None) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        pq.write_table(pa.table({"x": pa.array([value], kind), f"only_in_{value}": [0]}), tmp_path / name)

    for value, name in enumerate(
        ["b/part-0.parquet", "a.parquet", "_delta/x.parquet", ".hidden.parquet", "b/.t/y.parquet"]
    ):
        write(name, value)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "empty").mkdir()
    write("c.data", 9, pa.int16())

    def xs(*paths: Any) -> list[int]:
        return [row["x"] for row in fl.ParquetDataset(paths[0] if len(paths) == 1 else list(paths), ["x"])]

    assert xs(tmp_path) == xs(str(tmp_path)) == [1, 0]
    assert xs(tmp_path / "c.data", tmp_path / "b", str(tmp_path / "a.parquet")) == [9, 0, 1]
    assert fl.ParquetDataset([tmp_path / "c.data", tmp_path / "a.parquet"], ["x"]).schema.types == [pa.int16()]
    with pytest.raises(FileNotFoundError, match=r"no \*\.parquet in .*empty"):
        fl.ParquetDataset(tmp_path / "empty")
    with pytest.raises(KeyError, match=r"'only_in_1'.*b/part-0.parquet'; its columns are: 'x', 'only_in_0'"):
        fl.ParquetDataset(tmp_path)


def test_types_are_the_first_files_or_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1], pa.int8())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [2, 3]}), tmp_path / "b.parquet", row_group_size=1)
    pq.write_table(pa.table({"x": [1000]}), tmp_path / "c.parquet")
    dataset = fl.ParquetDataset(tmp_path)
    assert [dataset[i]["x"] for i in range(3)] == [1, 2, 3]
    with pytest.raises(fl.errors.DecodeError, match=r"c\.parquet: row group 0 cannot be decoded: .*1000"):
        dataset[3]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda p: fl.ParquetDataset(p / "none"), FileNotFoundError, "data_path.*none"),
        (lambda p: fl.ParquetDataset([]), ValueError, "empty list"),
        (lambda p: fl.ParquetDataset(5), TypeError, "data_path"),
        (lambda p: fl.ParquetDataset(p, "id"), TypeError, "columns must be a list of str"),
        (lambda p: fl.ParquetDataset(p, [1]), TypeError, "columns must be a list of str"),
        (lambda p: fl.ParquetDataset(p, []), ValueError, "columns"),
        (lambda p: fl.ParquetDataset(p, ["id", "id"]), ValueError, "columns must be different"),
        (lambda p: fl.ParquetDataset(p, ["id", "no"]), KeyError, "'no' must be there.*'id', 'score', 'text'"),
        (lambda p: fl.ParquetDataset(p, transform=3), TypeError, "transform"),
        (lambda p: fl.ParquetDataset(p, loading_mode="soon"), ValueError, "soon"),
        (lambda p: fl.ParquetDataset(p, group_cache="much"), ValueError, "group_cache"),
        (lambda p: fl.ParquetDataset(p, group_cache=-1), ValueError, "group_cache"),
        (lambda p: fl.ParquetDataset(p)[ROWS], IndexError, "index 120"),
        (lambda p: fl.ParquetDataset(p).__getitems__([0, -ROWS - 1]), IndexError, "index -121"),
        (lambda p: list(fl.DataLoader(fl.ParquetDataset(p), sampler=[500])), IndexError, "index 500"),
    ],
)
def test_wrong_arguments_are_named(parquet: Path, make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make(parquet)


def test_without_pyarrow_it_says_what_to_install(parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="pip install pyarrow"):
        fl.ParquetDataset(parquet)


@pytest.mark.parametrize("cut", [0, 3, 100, -100])
def test_a_file_that_is_cut_short_is_named(parquet: Path, tmp_path: Path, cut: int) -> None:
    data = (parquet / "a.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(data[:cut])
    with pytest.raises(fl.errors.DecodeError, match=r"cut\.parquet: no Parquet, cut short, or damaged"):
        fl.ParquetDataset(tmp_path)


def test_a_file_that_changes_or_goes_is_named(parquet: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes((parquet / "a.parquet").read_bytes())
    dataset = fl.ParquetDataset(path, group_cache=0)
    loader = fl.DataLoader(dataset, batch_size=10, num_workers=2, workers="threads")
    path.write_bytes((parquet / "a.parquet").read_bytes()[:-50])
    with pytest.raises(fl.errors.DecodeError, match=r"a\.parquet: the file has changed.*make the dataset again"):
        list(loader)
    path.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        dataset[0]
    assert caught.value.filename == str(path)


def test_a_file_that_is_written_to_while_it_is_read_is_noticed(
    parquet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes((parquet / "a.parquet").read_bytes())
    dataset = fl.ParquetDataset(path, group_cache=0)

    def opened(path: str, metadata: Any) -> Any:
        os.utime(path, ns=(0, 0))
        return open_parquet(path, metadata)

    monkeypatch.setattr("foreload.datasets.parquet.rowgroups.open_parquet", opened)
    with pytest.raises(fl.errors.DecodeError, match=r"a\.parquet: the file has changed"):
        dataset[0]


def test_damaged_rows_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(40), "s": ["s" * 99] * 40}), path, row_group_size=10, compression="gzip")
    place = pq.read_metadata(path).row_group(2).column(1)
    data = bytearray(path.read_bytes())
    begin = place.dictionary_page_offset
    data[begin : begin + place.total_compressed_size] = bytes(place.total_compressed_size)
    path.write_bytes(data)
    dataset = fl.ParquetDataset(path)
    with pytest.raises(fl.errors.DecodeError, match=r"a\.parquet: row group 2 cannot be decoded"):
        list(fl.DataLoader(dataset, batch_size=8))
    loader = fl.DataLoader(dataset, batch_size=8, on_error="skip", num_workers=2)
    assert torch.cat([batch["x"] for batch in loader]).tolist() == [*range(20), *range(30, 40)]
    assert sorted(error.index for error in loader.errors) == list(range(20, 30))


def test_a_transform_that_fails_names_its_sample(parquet: Path) -> None:
    dataset = fl.ParquetDataset(parquet, ["id"], transform=lambda row: 1 // (row["id"] - 5))
    for load in (lambda: dataset.__getitems__([4, 5]), lambda: list(fl.DataLoader(dataset, batch_size=8))):
        with pytest.raises(ZeroDivisionError) as caught:
            load()
        assert "sample 5" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("mode", list(fl.LoadingMode))
def test_a_file_without_rows_is_an_empty_dataset(tmp_path: Path, mode: fl.LoadingMode) -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    dataset = fl.ParquetDataset(tmp_path, loading_mode=mode)
    assert len(dataset) == 0
    assert list(fl.DataLoader(dataset)) == []


# Damaged Parquet, and values that Python or int64 do not hold.


def table_of(rows: int) -> Any:
    return pa.table(
        {"i": range(rows), "s": [f"täxt {i}" * 3 for i in range(rows)], "l": [[i] * (i % 4) for i in range(rows)]}
    )


def outcome(load: Callable[[], Any]) -> Any:
    """What is loaded, or the words of the error."""
    try:
        return load()
    except fl.errors.DecodeError as error:
        return str(error)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("damage", ["flip", "zeros", "missing", "more"])
def test_pages_with_checksums_are_never_read_wrong(
    tmp_path: Path, version: str, compression: str, damage: str
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        table_of(60), path, row_group_size=20, compression=compression, data_page_version=version,
        write_page_checksum=True, use_dictionary=False,
    )  # fmt: skip
    whole = path.read_bytes()
    expected = list(fl.ParquetDataset(path))
    end = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    draws = random.Random(damage + version)
    failed = 0
    for _ in range(25):
        at = draws.randrange(4, end)
        data = bytearray(whole)
        if damage == "flip":
            data[at] ^= 1 << draws.randrange(8)
        elif damage == "zeros":
            data[at : at + 9] = bytes(len(data[at : at + 9]))
        elif damage == "missing":
            del data[at : at + draws.randrange(1, 9)]
        else:
            data[at:at] = draws.randbytes(draws.randrange(1, 9))
        path.write_bytes(data)
        dataset = outcome(lambda: fl.ParquetDataset(path))
        found = [dataset] if isinstance(dataset, str) else [outcome(partial(dataset.read, i)) for i in range(60)]
        for index, sample in enumerate(found):
            assert str(path) in sample if isinstance(sample, str) else sample == expected[index]
            failed += isinstance(sample, str)
    assert failed > 25


def test_row_counts_that_lie_are_never_believed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table_of(150), path, row_group_size=50)
    whole = path.read_bytes()
    expected = list(fl.ParquetDataset(path))
    begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    # Thrift's compact form of 50 and 150: numbers of rows, and of values.
    places = [(i, 2) for i in range(begin, len(whole)) if whole[i : i + 2] == b"\x16\x64"]
    places += [(i, 3) for i in range(begin, len(whole)) if whole[i : i + 3] == b"\x16\xac\x02"]
    assert len(places) >= 7
    refused = 0
    for at, size in places:
        others = {2: (b"\x62", b"\x66", b"\x00", b"\x65"), 3: (b"\xae\x02", b"\x83\x00", b"\xab\x02")}
        for other in others[size]:
            data = whole[: at + 1] + other + whole[at + size :]
            path.write_bytes(data)
            found = outcome(lambda: list(fl.ParquetDataset(path)))
            assert str(path) in found if isinstance(found, str) else found == expected
            refused += isinstance(found, str)
    assert refused > len(places)


@pytest.mark.parametrize("magic", [b"PARE", b"\0\0\0\0", b"1RAP"])
@pytest.mark.parametrize("place", [0, -4])
def test_a_wrong_magic_is_refused(tmp_path: Path, magic: bytes, place: int) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table_of(10), path)
    data = bytearray(path.read_bytes())
    data[place : place + 4 or None] = magic
    path.write_bytes(data)
    if place == 0:  # pyarrow reads the one at the end only
        assert len(fl.ParquetDataset(path)) == 10
        return
    with pytest.raises(fl.errors.DecodeError, match=r"a\.parquet: no Parquet, cut short, or damaged"):
        fl.ParquetDataset(path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", list(HOW))
def test_numbers_beyond_int64_are_named(tmp_path: Path, how: str) -> None:
    for name, numbers in (("a", [1, 2, 3]), ("b", [4, (1 << 63) - 1, 1 << 63, 5])):
        pq.write_table(
            pa.table({"x": pa.array(numbers, pa.uint64())}), tmp_path / f"{name}.parquet", row_group_size=2
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


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.parquet")
    for path in (tmp_path / "a.parquet", "/dev/null"):
        with pytest.raises(OSError, match="not a regular file but a FIFO, device or socket"):
            fl.ParquetDataset(path)
    with pytest.raises(FileNotFoundError, match=r"no \*\.parquet"):
        fl.ParquetDataset(tmp_path)


# Hugging Face datasets: they work as they are.


@pytest.fixture(scope="module")
def hub() -> Any:
    return pytest.importorskip("datasets")


@pytest.mark.parametrize("how", ["auto", "none", "processes", "threads"])
def test_a_hugging_face_dataset_is_a_dataset(hub: Any, how: str) -> None:
    data = hub.Dataset.from_dict(
        {"x": list(range(300)), "t": [str(i) for i in range(300)], "v": [[i, 1.5] for i in range(300)]}
    )
    data = data.with_format("torch").select(range(7, 300))
    torch.manual_seed(1)
    wanted = list(TorchDataLoader(data, batch_size=32, shuffle=True))
    for more in ({}, {"cache": "8MiB"}):
        torch.manual_seed(1)
        loader = fl.DataLoader(data, batch_size=32, shuffle=True, **HOW[how], **more)
        assert same(list(loader), wanted)
        list(loader)
        assert not more or loader.stats()["cache"]["hits"] == len(data)
        loader.close()
    _, rest, continued = split_epoch(
        lambda: fl.DataLoader(data, batch_size=32, shuffle=True, seed=2, **HOW[how]), 3
    )
    assert same(continued, rest)


def hub_stream(hub: Any, **split: int) -> Any:
    data = hub.Dataset.from_dict({"x": list(range(300))}).to_iterable_dataset(num_shards=4)
    if split:
        data = importlib.import_module("datasets.distributed").split_dataset_by_node(data, **split)
    return data.map(lambda row: {"y": 2 * row["x"]}).filter(lambda row: row["x"] % 7 != 0)


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_hugging_face_stream_is_split_and_goes_on(hub: Any, workers: int, kind: Any) -> None:
    arguments: dict[str, Any] = {"batch_size": 8, "num_workers": workers}
    for split in ({}, {"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 2}):
        wanted = list(TorchDataLoader(hub_stream(hub, **split), **arguments))
        for batches in (0, 1, 5):
            first, rest, continued = split_epoch(
                lambda split=split: fl.DataLoader(hub_stream(hub, **split), workers=kind, **arguments), batches
            )
            assert same(first + rest, wanted)
            assert same(continued, rest)


# MosaicML's MDS shards.


@pytest.fixture(scope="module")
def mosaic() -> Any:
    """The library; it imports torchvision, for datasets that nobody needs here."""
    try:
        importlib.import_module("torchvision")
    except Exception:  # not there, or built for another torch
        pytest.importorskip("transformers.models.auto.tokenization_auto")
        pytest.importorskip("transformers.feature_extraction_utils")
        pytest.importorskip("transformers.tokenization_utils_base")
        stand_ins = {
            name: types.ModuleType(name)
            for name in (
                "torchvision",
                "torchvision.datasets",
                "torchvision.transforms",
                "torchvision.transforms.functional",
            )
        }
        for name, module in stand_ins.items():
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        stand_ins["torchvision.datasets"].VisionDataset = type("VisionDataset", (), {})  # type: ignore[attr-defined]
        stand_ins["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
        with pytest.MonkeyPatch.context() as patch:
            for name, module in stand_ins.items():
                patch.setitem(sys.modules, name, module)
            return pytest.importorskip("streaming")
    return pytest.importorskip("streaming")


def write_mds(mosaic: Any, folder: Path, samples: range, **options: Any) -> Path:
    columns = {"x": "int", "text": "str", "raw": "bytes", "array": "ndarray:float32:3", "extra": "json"}
    with mosaic.MDSWriter(out=str(folder), columns=columns, size_limit=1 << 11, **options) as writer:
        for i in samples:
            array = np.arange(i, i + 3, dtype=np.float32)
            writer.write({"x": i, "text": str(i), "raw": bytes([i % 256]), "array": array, "extra": {"i": [i]}})
    return folder


@pytest.fixture(scope="module")
def shards(mosaic: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mds(mosaic, tmp_path_factory.mktemp("mds"), range(150))


@pytest.mark.parametrize("how", ["auto", "none", "processes", "threads"])
def test_mds_samples_are_those_of_the_library(mosaic: Any, shards: Path, how: str) -> None:
    theirs = mosaic.LocalDataset(str(shards))
    ours = fl.MDSDataset(shards)
    assert len(ours) == len(theirs) == 150
    assert len(ours._shards) > 3
    assert same([ours[i] for i in range(150)], [theirs[i] for i in range(150)])
    torch.manual_seed(2)
    wanted = list(TorchDataLoader(theirs, batch_size=16, shuffle=True))
    for dataset in (ours, theirs, pickle.loads(pickle.dumps(ours))):
        torch.manual_seed(2)
        loader = fl.DataLoader(dataset, batch_size=16, shuffle=True, cache="4MiB", **HOW[how])
        assert same(list(loader), wanted)
        loader.close()
    _, rest, continued = split_epoch(
        lambda: fl.DataLoader(ours, batch_size=16, shuffle=True, seed=2, **HOW[how]), 4
    )
    assert same(continued, rest)


def mds_values(encoding: str, i: int) -> Any:
    kind, *about = encoding.split(":")
    if kind == "ndarray":
        shape = tuple(map(int, about[1].split(","))) if len(about) > 1 else (1 + i % 3, 2)
        return (np.arange(np.prod(shape)).reshape(shape) + i).astype(about[0] if about else "float32")
    values = {"int": -(i << 40), "str": "\N{SNOWMAN}" * i, "bytes": bytes(i % 5), "json": [i], "str_int": 1 << i}
    return values[kind] if kind in values else getattr(np, kind)(i % 100)


NUMBERS = ["int", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]
LAYOUTS = {
    **{name: [name] for name in [*NUMBERS, "uint16", "uint32", "uint64", "str", "bytes", "json", "str_int"]},
    **{f"array of {name}": [f"ndarray:{name}:2,3"] for name in [*NUMBERS[1:], "uint16", "uint64"]},
    "arrays that say their dtype": ["ndarray"],
    "arrays that say their shape": ["ndarray:int16"],
    "numbers": ["int", "ndarray:uint8:3", "float64", "ndarray:float32:1"],
    "anything": ["str", "int", "ndarray:int32:2", "bytes", "ndarray:int64", "json", "float16"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_mds_batches_are_those_of_the_librarys_samples(mosaic: Any, tmp_path: Path, layout: str) -> None:
    encodings = LAYOUTS[layout]
    names = [f"{position}" for position in range(len(encodings))]
    with mosaic.MDSWriter(
        out=str(tmp_path), columns=dict(zip(names, encodings, strict=True)), size_limit=1 << 10
    ) as writer:
        for i in range(60):
            writer.write({name: mds_values(encoding, i) for name, encoding in zip(names, encodings, strict=True)})
    theirs, ours = mosaic.LocalDataset(str(tmp_path)), fl.MDSDataset(tmp_path)
    chosen = [59, 0, -1, 7, 7, *range(20, 40)]
    assert same(ours.__getitems__(chosen), [theirs[i % 60] for i in chosen])  # type: ignore[misc]
    for name, value in ours.__getitems__([3])[0].items():  # type: ignore[misc]
        assert not isinstance(value, np.ndarray) or value.flags.writeable == theirs[3][name].flags.writeable
    is_whole = all(re.fullmatch(rf"({'|'.join(NUMBERS)})|ndarray:({'|'.join(NUMBERS)}):.*", e) for e in encodings)
    assert (ours._collated([0, 1]) is not None) == is_whole
    collate = None if is_whole else collated_or_listed
    torch.manual_seed(1)
    wanted = list(TorchDataLoader(theirs, 7, shuffle=True, collate_fn=collate))
    for how in ("none", "threads", "auto"):
        torch.manual_seed(1)
        assert same(list(fl.DataLoader(ours, 7, shuffle=True, collate_fn=collate, **HOW[how])), wanted)


def collated_or_listed(samples: list[Any]) -> Any:
    try:
        return torch.utils.data.default_collate(samples)
    except Exception:  # columns of different lengths, or that torch has no tensors of
        return samples


def test_a_sample_of_an_mds_batch_that_cannot_be_loaded_is_named(mosaic: Any, tmp_path: Path) -> None:
    columns = {"x": "int", "array": "ndarray:float32:3"}
    with mosaic.MDSWriter(out=str(tmp_path), columns=columns, size_limit=300) as writer:
        for i in range(60):
            writer.write({"x": i, "array": np.zeros(3, np.float32)})
    dataset = fl.MDSDataset(tmp_path)
    first = int(dataset._starts[2])
    list(fl.DataLoader(dataset, 7))  # all shards are open
    os.utime(tmp_path / "shard.00002.mds", ns=(0, 0))
    with pytest.raises(fl.errors.DecodeError, match=r"shard\.00002\.mds: the file has changed") as caught:
        list(fl.DataLoader(dataset, 60, num_workers=0))
    assert any(f"while loading sample {first} " in note for note in caught.value.__notes__)
    left = [i for batch in fl.DataLoader(dataset, 60, on_error="skip", num_workers=0) for i in batch["x"].tolist()]
    assert left == [i for i in range(60) if not dataset._starts[2] <= i < dataset._starts[3]]


def test_mds_folders_modes_and_transforms(mosaic: Any, shards: Path, tmp_path: Path) -> None:
    more = write_mds(mosaic, tmp_path / "more", range(150, 160))
    for mode in fl.LoadingMode:
        dataset = fl.MDSDataset([shards, str(more)], lambda sample: sample["x"] + 1, mode)
        assert [dataset[i] for i in range(160)] == list(range(1, 161))


@pytest.mark.parametrize("compression", ["zstd:3", "gz", "bz2"])
def test_compressed_mds_shards_are_decompressed_once(mosaic: Any, tmp_path: Path, compression: str) -> None:
    folder = write_mds(mosaic, tmp_path / "packed", range(60), compression=compression)
    before = {file.name for file in folder.iterdir()}
    assert [sample["x"] for sample in fl.MDSDataset(folder)] == list(range(60))
    made = {file.name for file in folder.iterdir()} - before
    assert made == {f"shard.{i:05}.mds" for i in range(len(before) - 1)}
    assert fl.MDSDataset(folder)[59]["text"] == "59"
    packed = next(file for file in folder.iterdir() if file.name.startswith("shard.00001.mds."))
    (folder / "shard.00001.mds").unlink()
    packed.write_bytes(b"nothing")
    with pytest.raises(fl.errors.DecodeError, match=rf"{packed.name}: the shard cannot be decompressed"):
        fl.MDSDataset(folder)


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_wrong_mds_is_named(mosaic: Any, shards: Path, tmp_path: Path) -> None:
    folder = write_mds(mosaic, tmp_path / "a", range(60))
    shard = folder / "shard.00001.mds"
    data = shard.read_bytes()
    dataset = fl.MDSDataset(folder)
    get = dataset._shards[1].get_sample_data
    dataset._shards[1].get_sample_data = lambda number: (os.utime(shard, ns=(0, 0)), get(number))[1]
    with pytest.raises(fl.errors.DecodeError, match=r"shard\.00001\.mds: the file has changed"):
        dataset[int(dataset._starts[1])]
    dataset = fl.MDSDataset(folder)
    shard.write_bytes(data[:-5])
    with pytest.raises(fl.errors.DecodeError, match=r"shard\.00001\.mds: the file has changed"):
        list(fl.DataLoader(dataset))
    with pytest.raises(fl.errors.DecodeError, match=r"shard\.00001\.mds: the shard has .* bytes, but index"):
        fl.MDSDataset(folder)
    shard.write_bytes(data[:60] + b"\xff" * (len(data) - 60))
    with pytest.raises(fl.errors.DecodeError, match=r"shard\.00001\.mds: sample \d+ of the shard"):
        list(fl.MDSDataset(folder))
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r"shard\.00001\.mds"):
        fl.MDSDataset(folder)
    for content in (
        b"",
        b"[]",
        b'{"version": 2}',
        b'{"version": 3, "shards": []}',
        b'{"version": 2, "shards": [{}]}',
    ):
        (folder / "index.json").write_bytes(content)
        with pytest.raises(fl.errors.DecodeError, match=r"index\.json"):
            fl.MDSDataset(folder)
    with pytest.raises(FileNotFoundError, match=r"no index\.json in"):
        fl.MDSDataset(tmp_path)
    with pytest.raises(ValueError, match="empty list"):
        fl.MDSDataset([])
    with pytest.raises(TypeError, match="data_path"):
        fl.MDSDataset(3)
    with pytest.raises(IndexError, match="index 150"):
        fl.MDSDataset(shards)[150]


@pytest.fixture
def hashed(mosaic: Any, tmp_path: Path) -> Path:
    return write_mds(mosaic, tmp_path / "hashed", range(60), hashes=["sha1", "xxh64"])


def flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.9999])
@pytest.mark.parametrize("how", ["none", "threads", "processes"])
def test_shards_are_what_their_hashes_say(hashed: Path, share: float, how: str) -> None:
    shard = hashed / "shard.00001.mds"
    flipped(shard, int(share * shard.stat().st_size))
    dataset = fl.MDSDataset(hashed)
    first, end = map(int, dataset._starts[1:3])
    assert dataset[first - 1]["x"] == first - 1
    with pytest.raises(fl.errors.DecodeError, match=r"shard\.00001\.mds: its sha1 is not what index\.json says"):
        dataset[first]
    loader = fl.DataLoader(dataset, batch_size=10, on_error="skip", **HOW[how])
    assert torch.cat([batch["x"] for batch in loader]).tolist() == [i for i in range(60) if not first <= i < end]


def test_a_shard_is_verified_once_for_all(hashed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = fl.MDSDataset(hashed)
    assert not dataset._verified.any()
    list(fl.DataLoader(dataset, batch_size=10, num_workers=2, workers="processes"))
    assert dataset._verified.all()
    monkeypatch.setattr("foreload.datasets.mds.dataset.verify", None)
    assert len(list(dataset)) == 60
    copy = pickle.loads(pickle.dumps(dataset))
    with pytest.raises(TypeError):
        copy[0]
    assert pickle.dumps(dataset) == pickle.dumps(fl.MDSDataset(hashed))  # the fingerprint of a spill folder


@pytest.mark.parametrize("what", ["count", "first", "middle", "last", "order", "size"])
def test_shards_without_hashes_must_make_sense(mosaic: Any, tmp_path: Path, what: str) -> None:
    folder = write_mds(mosaic, tmp_path / "plain", range(60))
    shard = folder / "shard.00001.mds"
    data = bytearray(shard.read_bytes())
    count = int.from_bytes(data[:4], "little")
    places = {"count": 0, "first": 4, "middle": 4 + 4 * (count // 2), "last": 4 + 4 * count}
    if what == "order":
        data[8:12], data[12:16] = data[12:16], data[8:12]
    elif what == "size":
        begin = int.from_bytes(data[4:8], "little")
        data[begin : begin + 4] = (1 << 20).to_bytes(4, "little")  # of the first column that has no fixed size
    else:
        data[places[what] + 3] = 0x7F
    shard.write_bytes(data)
    dataset = fl.MDSDataset(folder)
    first = int(dataset._starts[1])
    with pytest.raises(fl.errors.DecodeError, match=r"shard\.00001\.mds: (sample \d+ of the shard|the shard has)"):
        dataset[first]
    assert dataset[first - 1]["x"] == first - 1


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("samples", -1, "samples=-1"),
        ("samples", 1 << 80, "cannot have"),
        ("samples", 2.5, "samples=2.5"),
        ("samples", None, "samples=None"),
        ("samples", True, "samples=True"),
        ("raw_data.bytes", -5, "bytes=-5"),
        ("raw_data.bytes", "many", "bytes='many'"),
        ("raw_data.bytes", 3, "cannot have"),
        ("raw_data.basename", "../other.mds", "not in its folder"),
        ("raw_data.basename", "/etc/passwd", "not in its folder"),
        ("raw_data.basename", 7, "not in its folder"),
        ("raw_data.hashes", {"crc17": "00"}, "hashes of no known kind"),
        ("raw_data.hashes", ["sha1"], "hashes of no known kind"),
        ("raw_data", None, "has no file"),
        ("column_names", ["x"], "columns that do not fit together"),
        ("column_names", ["x", "x", "x", "x", "x"], "columns that do not fit together"),
        ("column_sizes", [8, None, -3, None, 12], "column_sizes"),
        ("column_encodings", [], "columns that do not fit together"),
        ("format", "tiff", "damaged"),
        ("more", 1, "damaged"),
    ],
)
def test_an_index_that_makes_no_sense_is_refused(hashed: Path, field: str, value: Any, words: str) -> None:
    index = hashed / "index.json"
    content = json.loads(index.read_bytes())
    *parents, last = field.split(".")
    place = content["shards"][1]
    for parent in parents:
        place = place[parent]
    place[last] = value
    index.write_text(json.dumps(content))
    with pytest.raises(fl.errors.DecodeError, match=rf"index\.json: .*{words}"):
        fl.MDSDataset(hashed)


def test_an_index_of_too_many_braces_is_refused(hashed: Path) -> None:
    (hashed / "index.json").write_text("[" * 100_000)
    with pytest.raises(fl.errors.DecodeError, match=r"index\.json: no index of MDS shards, or damaged"):
        fl.MDSDataset(hashed)


@pytest.mark.parametrize("compression", ["zstd:3", "gz"])
def test_shards_that_decompress_to_something_else_are_refused(
    mosaic: Any, tmp_path: Path, compression: str
) -> None:
    folder = write_mds(mosaic, tmp_path / "packed", range(60), compression=compression, hashes=["sha1"])
    index = folder / "index.json"
    content = json.loads(index.read_bytes())
    for field, value, words in (
        ("bytes", 1 << 20, "bytes when decompressed, but index"),
        ("hashes", {"sha1": "0" * 40}, "its sha1 is not"),
    ):
        changed = json.loads(json.dumps(content))
        changed["shards"][1]["raw_data"][field] = value
        index.write_text(json.dumps(changed))
        with pytest.raises(fl.errors.DecodeError, match=rf"shard\.00001\.mds\.\w+: .*{words}"):
            fl.MDSDataset(folder)
        assert not (folder / "shard.00001.mds").exists()


def test_pickled_columns_must_be_asked_for(mosaic: Any, tmp_path: Path) -> None:
    with mosaic.MDSWriter(out=str(tmp_path), columns={"any": "pkl"}) as writer:
        writer.write({"any": {1, 2}})
    with pytest.raises(ValueError, match="unsafe type"):
        fl.MDSDataset(tmp_path)
    assert fl.MDSDataset(tmp_path, allow_unsafe_types=True)[0] == {"any": {1, 2}}


@pytest.fixture
def streamed(mosaic: Any, shards: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Makes loaders of a new StreamingDataset, as a new program would."""
    # The library replaces them for good, by something that fails for semaphores.
    for name in ("register", "unregister"):
        monkeypatch.setattr(resource_tracker, name, getattr(resource_tracker, name))

    def make(cls: Any, count: int, **more: Any) -> Any:
        mosaic.base.util.clean_stale_shared_memory()
        dataset = mosaic.StreamingDataset(local=str(shards), batch_size=16, shuffle=True, shuffle_seed=3)
        return cls(dataset, batch_size=16, num_workers=count, **more)

    # Its shared memory has the same names in every program.
    with open(Path(tempfile.gettempdir()) / "foreload-tests-mosaic.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield make
        mosaic.base.util.clean_stale_shared_memory()


@pytest.mark.parametrize(("workers", "kind"), [(0, "threads"), (1, "threads"), (2, "threads"), (2, "processes")])
def test_a_mosaic_stream_is_the_same_and_goes_on(streamed: Any, workers: int, kind: Any) -> None:
    loader = streamed(TorchDataLoader, workers)
    wanted = [[batch["x"].tolist() for batch in loader] for _ in range(3)]
    for epoch, batches in ((0, 0), (0, 3), (1, 0), (1, 4)):
        loader = streamed(fl.DataLoader, workers, workers=kind)
        for _ in range(epoch):
            list(loader)
        batches_of = iter(loader)
        first = [next(batches_of)["x"].tolist() for _ in range(batches)]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        batches_of.close()
        loader = streamed(fl.DataLoader, workers, workers=kind)
        loader.load_state_dict(state)
        assert first + [batch["x"].tolist() for batch in loader] == wanted[epoch]
        state = loader.state_dict()
        loader = streamed(fl.DataLoader, workers, workers=kind)
        loader.load_state_dict(state)
        assert [batch["x"].tolist() for batch in loader] == wanted[epoch + 1]


def test_a_mosaic_stream_goes_on_with_other_workers(streamed: Any) -> None:
    loader = streamed(fl.DataLoader, 2)
    epoch = iter(loader)
    given = [next(epoch)["x"].tolist() for _ in range(4)]
    state = loader.state_dict()
    epoch.close()
    loader = streamed(fl.DataLoader, 1)
    loader.load_state_dict(state)
    given += [batch["x"].tolist() for batch in loader]
    assert sorted(x for batch in given for x in batch) == list(range(150))


# webdataset, and streams of one's own.


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.filterwarnings("ignore:.with_length")
def test_webdataset_pipelines_are_as_in_torch(tmp_path: Path, workers: int, kind: Any) -> None:
    wds = pytest.importorskip("webdataset")
    for shard in range(6):
        with wds.TarWriter(f"{tmp_path}/s-{shard}.tar") as writer:
            for i in range(20 * shard, 20 * shard + 20):
                writer.write({"__key__": f"{i:04}", "txt": f"text {i}", "cls": i})
    url = f"{tmp_path}/s-{{0..5}}.tar"

    def plain(**options: Any) -> Any:
        return wds.WebDataset(url, shardshuffle=False, **options).decode().to_tuple("cls", "txt")

    pipelines: list[tuple[Callable[[], Any], int | None]] = [
        (plain, 8),
        (lambda: plain().shuffle(30, rng=random.Random(3)).batched(8), None),
        (lambda: plain().with_epoch(30), 8),
        (lambda: plain().with_length(120), 7),
        (
            lambda: wds.DataPipeline(
                wds.SimpleShardList(url),
                wds.detshuffle(),
                wds.split_by_worker,
                wds.tarfile_to_samples(),
                wds.decode(),
                wds.to_tuple("cls", "txt"),
            ),
            5,
        ),
    ]
    for make, size in pipelines:
        for persistent in (False, True) if workers else (False,):
            arguments = {"batch_size": size, "num_workers": workers, "persistent_workers": persistent}
            theirs = TorchDataLoader(make(), **arguments)
            ours = fl.DataLoader(make(), workers=kind, **arguments)
            for _ in range(2):
                assert same(list(map(list, ours)), list(map(list, theirs)))
            ours.close()


def test_a_dataset_that_wants_arguments_for_its_state_is_read_again() -> None:
    class Told(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(20))

        def state_dict(self, given: int) -> Any:
            raise AssertionError

        load_state_dict = state_dict

    with pytest.warns(UserWarning, match="Told has no state_dict"):
        _, rest, continued = split_epoch(lambda: fl.DataLoader(Told(), batch_size=4, num_workers=1), 2)
    assert torch.cat(continued).tolist() == torch.cat(rest).tolist() == list(range(8, 20))


def test_a_thread_has_its_own_dataset_but_for_what_is_large_or_cannot_be_copied() -> None:
    class Parts:
        def __init__(self) -> None:
            self.itself = self
            self.stage = {"rng": random.Random(1), "files": ["a"]}
            self.again = self.stage
            self.small, self.large = np.zeros(3), np.zeros(1 << 18)
            self.shared = torch.zeros(2).share_memory_()
            self.many = [[i] for i in range(30_000)]
            self.lock = threading.Lock()
            self.behind = {"lock": threading.Lock(), "large": self.large}

    parts = Parts()
    own = own_copy(parts)
    assert own.itself is own
    assert own.stage is own.again is not parts.stage
    assert own.stage["rng"].random() == parts.stage["rng"].random()
    assert own.small is not parts.small
    for name in ("large", "shared", "lock", "behind"):
        assert getattr(own, name) is getattr(parts, name)
    assert own.many is not parts.many
    assert own.many[0] is parts.many[0]

    class Dicted:
        def __init__(self) -> None:
            self.x = 1

        def __getstate__(self) -> Any:
            return self.__dict__

        def __setstate__(self, state: Any) -> None:
            self.__dict__ = state

    dicted = Dicted()
    own_copy(dicted).x = 2
    assert dicted.x == 1
    assert own_copy(frozenset({1})) == {1}


def test_whoever_loads_is_not_chosen_again_once_there_is_a_cache(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(2000)}), tmp_path / "a.parquet", row_group_size=100)
    loader = fl.DataLoader(fl.ParquetDataset(tmp_path), batch_size=100, shuffle=True, seed=1, cache="8MiB")
    for epoch in range(3):
        assert sorted(torch.cat([batch["x"] for batch in loader]).tolist()) == list(range(2000))
        assert loader.stats()["cache"]["hits"] == 2000 * epoch
    loader.close()
