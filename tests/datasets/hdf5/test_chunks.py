"""Chunks of HDF5 files are decoded once, and take the memory that the loading mode promises."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import default_collate

import foreload as fl
from foreload.batch.buffers import Buffers
from foreload.datasets.hdf5 import bands, window
from foreload.datasets.hdf5.chunks import Chunks
from tests.datasets.hdf5.files import GZIP, Rows, damage, same, write

h5py = pytest.importorskip("h5py")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The bands that are read, by name and number."""
    noted: list[tuple[str, int]] = []
    read = Chunks.pieces

    def noting(self: Chunks, band: int, file: Any) -> Any:
        noted.append((self.name, band))
        return read(self, band, file)

    monkeypatch.setattr(Chunks, "pieces", noting)
    return noted


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_KEPT", 1), ("_LARGE_SHARE", 0)):
        monkeypatch.setattr(bands, name, value)


@pytest.mark.usefixtures("nothing_kept")
def test_each_chunk_is_decoded_once_for_the_batches_in_the_making(
    path: Path, reads: list[tuple[str, int]]
) -> None:
    dataset = fl.HDF5Dataset(path)
    assembly = dataset.batch_assembly(fl.DataLoader(dataset, 10)._fl_batch_spec, (0, 0), Buffers())
    assert assembly is not None
    assert assembly.depth == window._MOST
    order = np.random.default_rng(0).permutation(300).reshape(30, 10)
    batches = [assembly.start(indices) for indices in order]
    reads.clear()
    for batch in reversed(batches):
        batch.job.run_here()
    assert sorted(reads) == [("data", band) for band in range(19)]
    same([batch.take() for batch in batches], [torch.stack([Rows(path)[i] for i in each]) for each in order])
    reads.clear()
    many = dataset.__getitems__
    assert many is not None
    many([0, 33, 5, 34, 0, -1])
    assert sorted(reads) == [("data", 0), ("data", 2), ("data", 18)]


@pytest.mark.usefixtures("nothing_kept")
def test_a_window_that_moves_decodes_a_chunk_again_only_when_it_is_through(
    tmp_path: Path, reads: list[tuple[str, int]]
) -> None:
    data = write(tmp_path / "rows.h5", 4000, chunks=(20, 6, 5), **GZIP)
    dataset = fl.HDF5Dataset(tmp_path / "rows.h5")
    assembly = dataset.batch_assembly(fl.DataLoader(dataset, 10)._fl_batch_spec, (0, 0), Buffers())
    assert assembly is not None
    order = np.random.default_rng(0).permutation(4000).reshape(400, 10)
    making = [assembly.start(indices) for indices in order[:40]]
    reads.clear()
    for number in range(360):
        batch = making.pop(0)
        batch.job.run_here()
        assert np.array_equal(batch.take().numpy(), data[order[number]])
        making.append(assembly.start(order[number + 40]))
    # 40 batches of 10 together: once for 1 + 400 * 20 / 4000 rows.
    assert len(reads) == pytest.approx(3600 / 3, rel=0.15)


def test_what_was_used_last_is_kept(path: Path, reads: list[tuple[str, int]]) -> None:
    dataset = fl.HDF5Dataset(path)
    reads.clear()
    for index in [*range(300), *range(300)]:
        dataset[index]
    assert len(reads) == 19


@pytest.mark.parametrize("known", [0, 1, 3, 10])
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_chunks_in_memory_and_of_others_make_one_batch(tmp_path: Path, known: int, workers: int) -> None:
    rng = np.random.default_rng(1)
    values = {
        "data": rng.integers(-99, 99, (100, 3, 2)).astype(np.int16),
        "label": rng.integers(0, 9, 100).astype(np.uint8),
        "none": np.zeros((100, 0), np.float32),
    }
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, column in values.items():
            chunks = (10, *column.shape[1:]) if column.size else None
            file.create_dataset(name, data=column, chunks=chunks, compression="gzip" if column.size else None)
    order = [*rng.permutation(100).tolist(), 5, 5, 95]
    for name, target in (("data", "label"), ("label", None), ("none", "label")):
        dataset = fl.HDF5Dataset(tmp_path / "a.h5", name, target_name=target)
        for band in rng.permutation(10)[:known].tolist():
            _ = dataset[10 * band]
        batches = list(fl.DataLoader(dataset, batch_size=20, sampler=order, num_workers=workers))
        rows = [values[name][order]] + ([] if target is None else [values[target][order].astype(np.int64)])
        found = [torch.cat(part).numpy() for part in (zip(*batches, strict=True) if target else [batches])]
        for wanted, part in zip(rows, found, strict=True):
            assert part.dtype == wanted.dtype
            assert np.array_equal(part, wanted)


def test_bands_larger_than_what_may_be_kept_are_read_chunk_by_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(tmp_path / "rows.h5", chunks=(300, 2, 2), **GZIP)
    for name, value in (("_KEPT", 1000), ("_LARGE_SHARE", 0)):
        monkeypatch.setattr(bands, name, value)
    dataset = fl.HDF5Dataset(tmp_path / "rows.h5", target_name="labels")
    order = np.random.default_rng(0).permutation(300).tolist()
    rows, labels = zip(*fl.DataLoader(dataset, 50, sampler=order), strict=True)
    assert np.array_equal(torch.cat(rows).numpy(), data[order])
    assert torch.cat(labels).tolist() == order
    assert np.array_equal(dataset[7][0].numpy(), data[7])


# Loading modes


def test_cached_decodes_each_chunk_once_for_all_processes(path: Path, reads: list[tuple[str, int]]) -> None:
    dataset = fl.HDF5Dataset(path, "data", fl.LoadingMode.CACHED)
    expected = torch.stack(list(Rows(path)))
    reads.clear()
    for _ in range(2):
        assert torch.equal(torch.cat(list(fl.DataLoader(dataset, 30))), expected)
    assert sorted(reads) == [("data", band) for band in range(19)]
    damage(path, 0)
    assert torch.equal(torch.cat(list(TorchDataLoader(dataset, 30, num_workers=2))), expected)


def test_what_does_not_fit_is_not_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fl.HDF5Dataset, "memory", property(lambda self: 20_000))
    expected = torch.stack(list(Rows(path)))
    dataset = fl.HDF5Dataset(path, "data", fl.LoadingMode.CACHED)
    for _ in range(2):
        assert torch.equal(torch.cat(list(fl.DataLoader(dataset, 30))), expected)
    assert dataset._kept is not None
    assert 0 < int(dataset._kept.residents().sum()) < 19
    with pytest.raises(MemoryError, match=r"takes 36,000 bytes, more than the 20,000 .* use LoadingMode.CACHED"):
        fl.HDF5Dataset(path, "data", fl.LoadingMode.EAGER)


def test_eager_reads_each_chunk_once_and_nothing_later(path: Path, reads: list[tuple[str, int]]) -> None:
    dataset = fl.HDF5Dataset(path, "data", fl.LoadingMode.EAGER, target_name="labels")
    assert len(reads) == len(set(reads)) == 20
    expected = default_collate(list(Rows(path, "data", "labels")))
    path.unlink()
    same(next(iter(fl.DataLoader(dataset, 300))), expected)
    same(next(iter(TorchDataLoader(dataset, 300, num_workers=1))), expected)
    assert dataset[-1][1] == 299


MEMORY = """
    import gc, os, sys
    import foreload as fl, psutil, torch
    from foreload.datasets.hdf5 import bands, window
    bands._KEPT, window._BYTES = 4 << 20, 4 << 20
    small, large, mode = sys.argv[1:]
    me = psutil.Process()
    def own():
        gc.collect()
        return me.memory_full_info().uss / 2**20
    def epoch(path):
        dataset = fl.HDF5Dataset(path, "data", fl.LoadingMode(mode))
        most = 0
        for number, batch in enumerate(fl.DataLoader(dataset, 64, shuffle=True, num_workers=2)):
            if number % 40 == 20:
                most = max(most, own())
        return dataset, most
    kept = epoch(small)
    before = own()
    kept, most = epoch(large)
    shared = sum(m.rss for m in me.memory_maps() if "/torch_" in m.path or "memfd" in m.path) / 2**20
    print(most - before, own() - before, shared)
"""


@pytest.fixture(scope="module")
def two_files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """One of 8 MiB, one of 94."""
    folder = tmp_path_factory.mktemp("sizes")
    for name, rows in (("small", 2000), ("large", 24_000)):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            data = file.create_dataset("data", (rows, 1024), "f4", chunks=(16, 1024), compression="gzip")
            chunk = zlib.compress(np.arange(16384, dtype="f4").tobytes(), 1)
            for begin in range(0, rows, 16):
                data.id.write_direct_chunk((begin, 0), chunk)
    return [str(folder / "small.h5"), str(folder / "large.h5")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["lazy", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("streaming", "eager", "cached"))]
)
def test_memory_is_what_the_mode_promises(two_files: list[str], mode: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEMORY), *two_files, mode],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not run.stderr
    most, after, shared = map(float, run.stdout.split())
    if mode in ("lazy", "streaming"):
        assert most < 30
        assert after < 25
        assert shared < 1
    else:
        assert 90 < shared < 115
        assert after - shared < 30
