"""Parquet files that are found, changed, cut short or damaged."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import foreload as fl
from foreload.datasets.parquet.file import open_parquet
from tests.datasets.parquet.conftest import ROWS

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


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
    ("first", "other", "expected"),
    [
        (pa.array([1.0], pa.float16()), pa.array([1.0, 70000.0]), None),
        (pa.array([1.0], pa.float32()), pa.array([1.0, -1e39]), None),
        (pa.array([1.0], pa.float32()), pa.array([0.1, float("inf")]), [torch.tensor(0.1).item(), float("inf")]),
        (pa.array([1.0], pa.float32()), pa.array([None, 2.0]), [None, 2.0]),
        (pa.array([True]), pa.array([1, 5]), None),
        (pa.array([True]), pa.array([1, 0]), [True, False]),
        (pa.array([0.5]), pa.array([1, 2]), [1.0, 2.0]),
    ],
)
def test_what_the_first_files_type_does_not_hold_is_an_error(
    tmp_path: Path, first: Any, other: Any, expected: Any
) -> None:
    pq.write_table(pa.table({"x": first}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": other}), tmp_path / "b.parquet")
    dataset = fl.ParquetDataset(tmp_path)
    if expected is not None:
        assert [dataset[1]["x"], dataset[2]["x"]] == expected
        return
    words = (
        r"b\.parquet: row group 0 cannot be decoded: column 'x' has values that \w+, its type in the first file"
    )
    with pytest.raises(fl.errors.DecodeError, match=words):
        dataset[2]


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
    with pytest.raises(fl.errors.DecodeError, match=r"cut\.parquet: not a Parquet file, or cut short or damaged"):
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


def test_rows_beyond_a_group_are_never_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"

    def write(*sizes: int) -> None:
        table = pa.table({"x": range(8)})
        with pq.ParquetWriter(path, table.schema, use_dictionary=False, write_statistics=False) as writer:
            for size in sizes:
                writer.write_table(table.slice(0, size))
        os.utime(path, ns=(0, 0))

    write(5, 3)
    dataset = fl.ParquetDataset(path)
    size = path.stat().st_size
    write(3, 5)  # the same size and time, so that nothing shows but the groups themselves
    assert path.stat().st_size == size
    for _ in range(2):
        with pytest.raises(fl.errors.DecodeError, match=r"a\.parquet: row group 0 has 3 rows, but .* say 5"):
            next(iter(fl.DataLoader(dataset, batch_sampler=[[4, 3]])))


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
    """Return what is loaded, or the words of the error."""
    try:
        return load()
    except fl.errors.DecodeError as error:
        return str(error)


@pytest.mark.sampled(2)
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
    with pytest.raises(fl.errors.DecodeError, match=r"a\.parquet: not a Parquet file, or cut short or damaged"):
        fl.ParquetDataset(path)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.parquet")
    for path in (tmp_path / "a.parquet", "/dev/null"):
        with pytest.raises(OSError, match="not a regular file but a FIFO, device or socket"):
            fl.ParquetDataset(path)
    with pytest.raises(FileNotFoundError, match=r"no \*\.parquet"):
        fl.ParquetDataset(tmp_path)
