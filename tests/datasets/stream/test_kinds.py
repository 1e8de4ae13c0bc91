"""Datasets of every kind as streams: the samples that they have, in constant memory."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import h5py
import numpy as np
import pytest
import torch

import foreload as fl
from tests.datasets.stream.numbers import Numbers, write_tar


def makers(folder: Path) -> dict[str, Any]:
    """Small datasets of every kind."""
    for number, keys in enumerate((range(30), range(30, 37), range(37, 90))):
        write_tar(folder / f"{number}.tar", keys)
    (folder / "lines.txt").write_text("".join(f"line {i}\n" for i in range(90)))
    (folder / "files").mkdir()
    for i in range(30):
        (folder / "files" / f"{i:02}.bin").write_bytes(bytes([i] * (i + 1)))
    with h5py.File(folder / "rows.h5", "w") as file:
        file.create_dataset("data", data=np.arange(90 * 4).reshape(90, 4), chunks=(7, 2), compression="gzip")
        file["labels"] = np.arange(90)
        file["names"] = [f"row {i}" for i in range(90)]
    return {
        "tar": lambda mode: fl.TarDataset(folder, len, mode),
        "lines": lambda mode: fl.TextDataset(folder / "lines.txt", None, 10, mode),
        "words": lambda mode: fl.TextDataset(folder / "lines.txt", lambda t: [len(t)], 4, mode, padding=False),
        "files": lambda mode: fl.FileDataset(folder / "files", lambda t: t.sum(), loading_mode=mode),
        "labelled": lambda mode: fl.FileDataset(folder / "files", loading_mode=mode, labels=list(range(30))),
        "rows": lambda mode: fl.HDF5Dataset(folder / "rows.h5", "data", mode, target_name="labels"),
        "changed": lambda mode: fl.HDF5Dataset(folder / "rows.h5", "data", mode, transform=lambda row: row * 2),
        "efficient": lambda mode: fl.MemoryEfficientDataset(folder / "lines.txt", loading_mode=mode),
        "names": lambda mode: fl.HDF5Dataset(folder / "rows.h5", "names", mode),
    }


def flat(sample: Any) -> str:
    if isinstance(sample, (tuple, list)):
        return str([flat(each) for each in sample])
    return str((sample.dtype, sample.tolist())) if isinstance(sample, torch.Tensor) else repr(sample)


@pytest.mark.parametrize("mode", fl.LoadingMode)
def test_every_dataset_streams_the_samples_that_it_has(tmp_path: Path, mode: fl.LoadingMode) -> None:
    for name, make in makers(tmp_path).items():
        data = make(mode)
        expected = [flat(data[index]) for index in range(len(data))]
        assert [flat(sample) for sample in data.stream(shuffle=False)] == expected, name
        shuffled = [flat(sample) for sample in data.stream(buffer=10, seed=1)]
        assert shuffled != expected or name == "tar"  # all of one length
        assert sorted(shuffled) == sorted(expected), name
        assert len(data.stream()) == len(data)


def test_each_row_group_and_each_chunk_is_decoded_once(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    table = pyarrow.table({"number": list(range(900))})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=90)
    data = fl.ParquetDataset(tmp_path / "a.parquet", group_cache=1)
    opened: list[Any] = []
    with patch("foreload.datasets.parquet.rowgroups.open_parquet", wraps=_noting(opened)):
        assert sorted(row["number"] for row in data.stream(buffer=40, seed=0)) == list(range(900))
    assert len(opened) == 10

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=np.arange(900), chunks=(90,), compression="gzip")
    rows = fl.HDF5Dataset(tmp_path / "a.h5")
    chunks = rows.columns[0].chunks
    with patch.object(type(chunks), "read", autospec=True, side_effect=type(chunks).read) as read:
        assert sorted(rows.stream(buffer=40, seed=0)) == list(range(900))
    assert read.call_count == 10


def _noting(opened: list[Any]) -> Any:
    from foreload.datasets.parquet.file import open_parquet

    return lambda *arguments: opened.append(arguments) or open_parquet(*arguments)


@pytest.mark.parametrize("transform", [None, "python"])
def test_images_stream(photos: Path, transform: str | None) -> None:
    chosen: Any = None if transform is None else lambda image: torch.tensor(image.size)
    for mode in fl.LoadingMode:
        data = fl.ImageDataset(photos, 32, chosen, mode)
        for (ours, target), (theirs, other) in zip(data.stream(shuffle=False), data, strict=True):
            assert target == other
            assert (ours - theirs).abs().max() <= (0.05 if transform is None else 0)
    shards = fl.ImageDataset(photos, 32).stream(buffer=8, seed=0)
    assert Counter(target for _, target in shards) == Counter(fl.ImageDataset(photos).targets)


def test_a_subclass_that_makes_samples_in_its_own_way_is_asked_for_them(tmp_path: Path) -> None:
    class Own(fl.TarDataset):
        def __getitem__(self, index: int) -> Any:
            return "own", index

    class Read(fl.TarDataset):
        def read(self, index: int) -> Any:
            return {"read": index}

    write_tar(tmp_path / "0.tar", range(5))
    assert list(Own(tmp_path / "0.tar").stream(shuffle=False)) == [("own", index) for index in range(5)]
    assert list(Read(tmp_path / "0.tar").stream(shuffle=False)) == [{"read": index} for index in range(5)]


def test_rows_of_a_batch_do_not_keep_all_of_it() -> None:
    class Views(Numbers):
        def __getitem__(self, index: int) -> Any:
            return torch.full((10,), index)

        def __getitems__(self, indices: list[int]) -> Any:
            return torch.tensor(indices)[:, None].repeat(1, 10).unbind()

    rows = list(fl.Stream(Views(6400), buffer=40, seed=0))
    assert sorted(row[9].item() for row in rows) == list(range(6400))  # type: ignore[attr-defined]
    assert {row.untyped_storage().nbytes() for row in rows} == {80}  # type: ignore[attr-defined]


MEMORY = """
import sys, resource, foreload as fl
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for stream in (fl.TarDataset(sys.argv[1]).stream(buffer=100), fl.TarStream(sys.argv[1], buffer=100)):
    samples = iter(stream)
    for _ in range(300): next(samples)
    before, count = peak(), 300
    for _ in samples: count += 1
    print(count, peak() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    write_tar(tmp_path / "large.tar", range(1500), size=60_000)  # 90 MB
    run = [sys.executable, "-c", MEMORY, str(tmp_path / "large.tar")]
    for line in subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines():
        count, kilobytes = map(int, line.split())
        assert count == 1500
        assert kilobytes < 16 << 10
