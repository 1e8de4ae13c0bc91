"""Row groups of Parquet files are decoded once, with caches, threads and resumed epochs."""

from __future__ import annotations

import contextlib
import random
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset

import foreload as fl
from foreload.datasets.parquet.columns import numbers_of
from tests.datasets.compared import HOW, same, split_epoch
from tests.datasets.parquet.conftest import ROWS, expected, numbers

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


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


def test_threads_that_want_the_same_booleans_copy_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Arrow keeps eight in a byte. Rows were taken from one thread's copy after another's had replaced it.
    values = pa.array([[True, False]] * 6, pa.list_(pa.bool_(), 2))
    pq.write_table(pa.table({"flags": values}), path := tmp_path / "flags.parquet", row_group_size=3)
    dataset = fl.ParquetDataset(path)
    assert len([dataset[0], dataset[5]]) == 2  # both groups are in memory now
    together = threading.Barrier(2)

    def copy(array: Any) -> Any:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(timeout=5)
        copied = numbers_of(array)
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(timeout=5)
        return copied

    monkeypatch.setattr("foreload.datasets.parquet.group.numbers_of", copy)
    group = dataset._opened().get((0, 0))
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(group.numbers, [0, 0])
    assert first is second is group.numbers(0)


@pytest.mark.sampled(2)
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


# Damaged Parquet, and values that Python or int64 do not hold.


@pytest.mark.slow
def test_flags_are_no_more_in_memory_than_told(tmp_path: Path) -> None:
    table = pa.table(
        {"flag": pa.array([True, False] * 4000), "flags": pa.array([[True] * 2] * 8000, pa.list_(pa.bool_(), 2))}
    )
    # 3,000 bytes each, which Arrow packs in 375.
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    dataset = fl.ParquetDataset(tmp_path, group_cache=7000)
    for _ in range(2):
        for _ in fl.DataLoader(dataset, batch_size=20, shuffle=True, seed=0):
            pass
    kept = list(dataset._opened()._kept.values())
    arrays = [group.numbers(column) for group in kept for column in range(2)]
    assert len(kept) > 1
    assert sum(numbers.rows.nbytes for numbers in arrays if numbers is not None) <= 7000


def test_a_group_whose_words_would_not_fit_is_read_by_its_dictionary(tmp_path: Path) -> None:
    words = pa.array(["a" * (4 << 20), "b"])
    kinds = pa.DictionaryArray.from_arrays(pa.array([0] * 600 + [1, None], pa.int32()), words)
    pq.write_table(pa.table({"kind": kinds}), tmp_path / "a.parquet")
    dataset = fl.ParquetDataset(tmp_path)
    for _ in range(2):
        found = [row["kind"] for row in dataset.__getitems__([600, 1, 601])]
        assert [kind and (kind[0], len(kind)) for kind in found] == [("b", 1), ("a", 4 << 20), None]


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("room", [200, 1000, 1600, "1MiB"])
def test_shuffled_epochs_give_the_same_rows_whether_all_groups_have_room(
    tmp_path: Path, room: Any, threads: int
) -> None:
    table = numbers(60).select(["id", "vector"])
    pq.write_table(table.slice(0, 20), tmp_path / "a.parquet", row_group_size=7)
    pq.write_table(table.slice(0, 0), tmp_path / "b.parquet")
    with pq.ParquetWriter(tmp_path / "c.parquet", table.schema) as file:
        file.write_table(table.slice(20, 0))  # a group without rows
        file.write_table(table.slice(20), row_group_size=9)
    rows = expected(table)
    dataset = fl.ParquetDataset(tmp_path, ["vector", "id"], group_cache=room)
    kind: Any = "threads" if threads else "auto"
    loader = fl.DataLoader(dataset, 8, shuffle=True, seed=2, num_workers=threads, workers=kind)
    for epoch in range(3):
        seen = []
        for batch in loader:
            seen += batch["id"].tolist()
            assert torch.equal(batch["vector"], torch.stack([rows[index]["vector"] for index in batch["id"]]))
        assert sorted(seen) == list(range(60))
        groups = dataset._opened()
        assert (groups.whole is not None) == (room == "1MiB"), epoch
