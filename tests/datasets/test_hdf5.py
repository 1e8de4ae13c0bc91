"""HDF5Dataset beside h5py itself: every layout, every loader, forks, damaged files, memory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset, default_collate

import foreload as fl
from foreload.batch.buffers import Buffers
from foreload.datasets.hdf5 import bands, window
from foreload.datasets.hdf5.chunks import Chunks
from foreload.errors import DecodeError
from tests.programs import python

h5py = pytest.importorskip("h5py")

GZIP: dict[str, Any] = {"compression": "gzip", "shuffle": True}
FILTERS: list[dict[str, Any]] = [
    {},
    {"compression": "gzip"},
    GZIP,
    {"shuffle": True},
    {"compression": "lzf", "shuffle": True},
    {**GZIP, "fletcher32": True},
]
DTYPES = [
    "?",
    "i1",
    "u1",
    "i2",
    ">i2",
    "u2",
    "i4",
    ">u4",
    "i8",
    "u8",
    "f2",
    ">f2",
    "f4",
    ">f4",
    "f8",
    ">f8",
    "c8",
    "c16",
]


def filled(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Values of small range, so that they compress."""
    values = np.random.default_rng(seed).integers(0, 2 if dtype == "?" else 100, shape)
    return values.astype(dtype)


def write(path: Path, rows: int = 300, *, targets: bool = True, **layout: Any) -> np.ndarray[Any, Any]:
    """A file with ``data`` (rows x 6 x 5) and ``labels``."""
    data = filled((rows, 6, 5), "f4")
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=data, **layout)
        if targets:
            file["labels"] = np.arange(rows, dtype="i4")
    return data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "rows.h5", chunks=(16, 6, 5), **GZIP)
    return tmp_path / "rows.h5"


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


class Rows(torch.utils.data.Dataset[Any]):
    """What h5py gives for a row, as a sample."""

    def __init__(self, path: Path, name: str = "data", target: str | None = None) -> None:
        with h5py.File(path) as file:
            self.data = file[name][...]
            self.targets = None if target is None else file[target][...]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        row = np.array(self.data[index])
        tensor = torch.from_numpy(row.astype(row.dtype.newbyteorder("=")))
        if self.targets is None:
            return tensor
        target = self.targets[index]
        target = target.astype(target.dtype.newbyteorder("="))
        return tensor, target.item() if target.ndim == 0 else torch.from_numpy(target)


def same(given: Any, expected: Any) -> None:
    assert type(given) is type(expected), (type(given), type(expected))
    if isinstance(given, torch.Tensor):
        assert given.dtype == expected.dtype
        assert given.shape == expected.shape
        assert given.contiguous().view(-1).numpy().tobytes() == expected.contiguous().view(-1).numpy().tobytes()
    elif isinstance(given, (list, tuple)):
        assert len(given) == len(expected)
        for one, other in zip(given, expected, strict=True):
            same(one, other)
    else:
        assert given == expected


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=3)))
    shape = (draw(st.integers(1, 40)), *shape)
    filters = draw(st.sampled_from(FILTERS))
    chunks = None
    if filters or draw(st.booleans()):
        chunks = tuple(draw(st.integers(1, size)) for size in shape)
    maxshape = draw(st.sampled_from([None, (None, *shape[1:])])) if chunks else None
    return {
        "shape": shape,
        "dtype": draw(st.sampled_from(DTYPES)),
        "chunks": chunks,
        "maxshape": maxshape,
        **filters,
    }


@given(st.data(), layouts(), layouts(), st.sampled_from(fl.LoadingMode))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=120)
def test_rows_are_those_of_h5py(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, x: Any, y: Any, mode: fl.LoadingMode
) -> None:
    path = tmp_path_factory.mktemp("any") / "any.h5"
    y["shape"] = (x["shape"][0], *y["shape"][1:])
    if y["chunks"]:
        y["chunks"] = (min(y["chunks"][0], y["shape"][0]), *y["chunks"][1:])
    y["maxshape"] = None
    if len(y["shape"]) == 1 and y["dtype"] in ("u8", "c8", "c16"):
        y["dtype"] = "i4"  # no Python number of these collates in torch
    with h5py.File(path, "w", libver=data.draw(st.sampled_from(["earliest", "latest"]))) as file:
        for name, layout in (("data", x), ("group/y", y)):
            file.create_dataset(name, data=filled(layout["shape"], layout["dtype"]), **layout)
    target = data.draw(st.sampled_from([None, "group/y"]))
    ours = fl.HDF5Dataset(path, "data", mode, target_name=target)
    theirs = Rows(path, "data", target)
    count = len(theirs)
    assert len(ours) == count
    batches = data.draw(st.lists(st.lists(st.integers(-count, count - 1), min_size=1, max_size=20), max_size=6))
    for index in batches[0] if batches else []:
        same(ours[index], theirs[index])
    expected = [default_collate([theirs[index] for index in batch]) for batch in batches]
    for batch, want in zip(batches, expected, strict=True):
        many = ours.__getitems__
        assert many is not None
        same(default_collate(many(batch)), want)
        for sample, index in zip(many(batch), batch, strict=True):
            assert torch.equal(sample[0], theirs[index][0]) if target else torch.equal(sample, theirs[index])
    for workers in (0, 2):
        same(list(fl.DataLoader(ours, batch_sampler=batches, num_workers=workers)), expected)
    ours.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "layout", [{}, {"chunks": (16, 6, 5), **GZIP}, {"chunks": (7, 4, 5), "compression": "lzf"}]
)
@pytest.mark.parametrize("workers", [{}, {"workers": "processes", "num_workers": 2}, {"num_workers": 0}])
def test_a_loader_gives_what_torchs_gives(tmp_path: Path, layout: dict[str, Any], workers: dict[str, Any]) -> None:
    path = tmp_path / "rows.h5"
    write(path, **layout)
    ours = fl.HDF5Dataset(path, target_name="labels")
    theirs = Rows(path, "data", "labels")
    for dataset, reference in (
        (ours, theirs),
        (Subset(ours, range(200, 3, -3)), Subset(theirs, range(200, 3, -3))),
    ):
        given, expected = (
            list(loader(each, 32, shuffle=True, generator=torch.Generator().manual_seed(1), **more))
            for loader, each, more in ((fl.DataLoader, dataset, workers), (TorchDataLoader, reference, {}))
        )
        same(given, expected)
    same(list(TorchDataLoader(ours, 32, num_workers=2)), list(TorchDataLoader(theirs, 32)))


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_KEPT", 1), ("_LARGE_SHARE", 0)):
        monkeypatch.setattr(bands, name, value)


@pytest.mark.usefixtures("nothing_kept")
def test_each_chunk_is_decoded_once_for_the_batches_in_the_making(
    path: Path, reads: list[tuple[str, int]]
) -> None:
    dataset = fl.HDF5Dataset(path)
    assembly = dataset.batch_assembly(fl.DataLoader(dataset, 10).batch_spec, (0, 0), Buffers())
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
    assembly = dataset.batch_assembly(fl.DataLoader(dataset, 10).batch_spec, (0, 0), Buffers())
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


@pytest.mark.parametrize("filters", FILTERS)
def test_what_needs_no_h5py_is_read_without_it(tmp_path: Path, filters: dict[str, Any]) -> None:
    path = tmp_path / "rows.h5"
    data = write(path, chunks=(16, 4, 2), **filters)
    dataset = fl.HDF5Dataset(path)
    assert torch.equal(next(iter(fl.DataLoader(dataset, 300))), torch.from_numpy(data))
    with_h5py = dataset._opened().file._handle is not None
    assert with_h5py == (filters.get("compression") == "lzf" or "fletcher32" in filters)
    dataset.close()


@pytest.mark.parametrize("layout", [{}, {"chunks": (7, 1100)}, {"chunks": (7, 600)}, {"compression": "lzf"}])
def test_large_rows(tmp_path: Path, layout: dict[str, Any]) -> None:
    data = filled((90, 1100), "f4")
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file.create_dataset("data", (90, 1100), "f4", fillvalue=3, **layout)[14:] = data[14:]
    data[:14] = 3
    order = [*np.random.default_rng(0).permutation(90).tolist(), -1, -90, 5, 5]
    for mode in fl.LoadingMode:
        dataset = fl.HDF5Dataset(tmp_path / "rows.h5", "data", mode)
        for loader in (fl.DataLoader, TorchDataLoader):
            assert np.array_equal(torch.cat(list(loader(dataset, 20, sampler=order))).numpy(), data[order])
        assert np.array_equal(dataset[77].numpy(), data[77])


def test_a_file_that_is_cut_short_later_is_told(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["data"] = filled((90, 1100), "f4")
    dataset = fl.HDF5Dataset(tmp_path / "rows.h5")
    dataset[0]
    os.truncate(tmp_path / "rows.h5", 100_000)
    with pytest.raises(OSError, match=r"cut short|cannot be decoded|changed since"):
        next(iter(fl.DataLoader(dataset, 90)))


def test_unusual_files(tmp_path: Path) -> None:
    path, other = tmp_path / "odd.h5", tmp_path / "other.h5"
    data = filled((20, 3), "i4")
    with h5py.File(other, "w", userblock_size=1024) as file:
        file["here"] = data
        file.create_dataset("zipped", data=data, chunks=(4, 2), **GZIP)
    with h5py.File(path, "w") as file:
        holes = file.create_dataset("holes", (20, 3), "i4", chunks=(4, 2), fillvalue=7, **GZIP)
        holes[3:9, 1:] = data[3:9, 1:]
        masked = file.create_dataset("masked", (8, 3), "i4", chunks=(4, 3), **GZIP)
        masked.id.write_direct_chunk((0, 0), data[:4].tobytes(), filter_mask=3)
        file.create_dataset("never written", (20, 3), "f4", fillvalue=2.5)
        file["grown"] = data
        grown = file.create_dataset("grows", data=data, chunks=(8, 2), maxshape=(None, None))
        grown.resize((23, 4))
        file["linked"] = h5py.ExternalLink(str(other), "here")
        file["soft"] = h5py.SoftLink("/holes")
        layout = h5py.VirtualLayout((20, 3), "i4")
        layout[:] = h5py.VirtualSource(str(other), "zipped", (20, 3))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("external", data=data, external=[(str(tmp_path / "raw.bin"), 0, 240)])
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        small = h5py.h5d.create(file.id, b"compact", h5py.h5t.STD_I32BE, h5py.h5s.create_simple((20, 3)), compact)
        small.write(h5py.h5s.ALL, h5py.h5s.ALL, data)
        file["enum"] = np.zeros(20, h5py.enum_dtype({"no": 0, "yes": 1}, "i1"))
        file["wide"] = np.zeros((20, 0), "f4")
        twelve = h5py.h5t.STD_I16LE.copy()
        twelve.set_precision(12)
        h5py.h5d.create(file.id, b"twelve", twelve, h5py.h5s.create_simple((20,))).write(
            h5py.h5s.ALL, h5py.h5s.ALL, np.arange(-10, 10, dtype="i2")
        )
        names = list(file)
    for file_path, name in [*((path, name) for name in names), (other, "here"), (other, "zipped")]:
        theirs = Rows(file_path, name)
        ours = fl.HDF5Dataset(file_path, name)
        same(list(fl.DataLoader(ours, 6)), list(TorchDataLoader(theirs, 6)))
        ours.close()


def test_what_is_no_tensor_comes_as_h5py_gives_it(tmp_path: Path) -> None:
    path = tmp_path / "odd.h5"
    pair = np.dtype([("a", ">i4"), ("b", "S3")])
    with h5py.File(path, "w") as file:
        file["text"] = ["one", "two", "three"]
        file["bytes"] = np.array([b"a", b"bc", b"d"])
        file["pairs"] = np.array([(1, b"x"), (2, b"y"), (3, b"z")], pair)
        file["vectors"] = np.zeros((3, 2), np.dtype(("f4", (2,))))
        ragged = file.create_dataset("ragged", (3,), h5py.vlen_dtype("i4"), chunks=(2,), compression="gzip")
        for row in range(3):
            ragged[row] = np.arange(row + 1)
        file["numbers"] = np.arange(6.0).reshape(3, 2)
        file["long"] = np.zeros(3, np.longdouble)
    with h5py.File(path) as file:
        for mode in fl.LoadingMode:
            for name in ("text", "bytes", "pairs", "ragged", "long"):
                dataset = fl.HDF5Dataset(path, name, mode)
                for index in (0, 2, -2):
                    expected = file[name][index]
                    given = dataset[index]
                    assert type(given) is type(expected)
                    assert np.array_equal(given, expected)
                    assert getattr(given, "dtype", None) == getattr(expected, "dtype", None)
                dataset.close()
    texts = fl.HDF5Dataset(path, "numbers", target_name="text")
    (batch,) = fl.DataLoader(texts, 3, num_workers=2)
    assert list(batch[1]) == [b"one", b"two", b"three"]
    assert batch[0].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_targets_are_python_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.h5"
    with h5py.File(path, "w") as file:
        file["data"] = np.zeros((4, 2))
        for dtype in ("?", "u1", ">i2", "f2", "f4", "u8"):
            file[f"t{dtype}"] = np.ones(4, dtype)
    kinds = {"?": bool, "u1": int, ">i2": int, "f2": float, "f4": float, "u8": torch.Tensor}
    for dtype, kind in kinds.items():
        dataset = fl.HDF5Dataset(path, target_name=f"t{dtype}")
        assert type(dataset[0][1]) is kind
        many = dataset.__getitems__
        assert many is not None
        assert type(many([0, 1])[1][1]) is kind
        expected = default_collate([dataset[i] for i in range(4)])
        for loader in (fl.DataLoader, TorchDataLoader):
            same(next(iter(loader(dataset, 4))), expected)


def test_samples_are_the_users_to_change(path: Path) -> None:
    for mode in fl.LoadingMode:
        dataset = fl.HDF5Dataset(path, loading_mode=mode)
        before = dataset[3].clone()
        dataset[3].add_(1)
        assert torch.equal(dataset[3], before)
        dataset.close()


def test_transform_collate_and_subclasses_are_obeyed(path: Path) -> None:
    class Doubled(fl.HDF5Dataset):
        def read(self, index: int) -> Any:
            return 2 * super().read(index)

    data = Rows(path)
    for mode in fl.LoadingMode:
        transformed = fl.HDF5Dataset(path, "data", mode, target_name="labels", transform=lambda row: row.sum())
        for loader in (fl.DataLoader, TorchDataLoader):
            rows, labels = next(iter(loader(transformed, 20)))
            assert torch.equal(rows, data.__getitem__(slice(20)).sum((1, 2)))
            assert labels.tolist() == list(range(20))
    for loader in (fl.DataLoader, TorchDataLoader):
        assert torch.equal(next(iter(loader(Doubled(path), 20))), 2 * data.__getitem__(slice(20)))
        (names, *_) = loader(
            fl.HDF5Dataset(path, target_name="labels"), 3, collate_fn=lambda batch: [y for _, y in batch]
        )
        assert names == [0, 1, 2]
        assert type(names[0]) is int
    seen = fl.DataLoader(fl.HDF5Dataset(path), 20, transform=lambda row: row + 1)
    assert torch.equal(next(iter(seen)), data.__getitem__(slice(20)) + 1)
    cached = fl.DataLoader(fl.HDF5Dataset(path), 20, cache="10MB")
    for _ in range(2):
        assert torch.equal(torch.cat(list(cached)), torch.stack(list(data)))
    assert cached.stats()["cache"]["hits"] >= 300


def test_an_epoch_that_is_left_early_lets_go_of_its_memory(path: Path) -> None:
    dataset = fl.HDF5Dataset(path)
    loader = fl.DataLoader(dataset, 10, shuffle=True, num_workers=2)
    gc.disable()
    try:
        batches = iter(loader)
        next(batches)
        rows = [weakref.ref(batch.take.__self__) for batch in batches._making]
        assert len(rows) > 20
        batches.close()
        del batches
        assert not any(row() for row in rows)
    finally:
        gc.enable()


def test_an_epoch_goes_on_where_it_was_left(path: Path) -> None:
    def loader() -> Any:
        return fl.DataLoader(fl.HDF5Dataset(path), 10, shuffle=True, seed=3)

    whole = list(loader())
    first = loader()
    batches = iter(first)
    for _ in range(4):
        next(batches)
    state = first.state_dict()
    batches.close()
    again = loader()
    again.load_state_dict(state)
    same(list(again), whole[4:])


# Wrong input


def test_wrong_arguments_are_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyError, match=r"dataset_name: 'nothing' is not there in .*'data', 'labels'"):
        fl.HDF5Dataset(path, "nothing")
    with pytest.raises(KeyError, match=r"target_name: 'nothing' is not there in .*'data', 'labels'"):
        fl.HDF5Dataset(path, target_name="nothing")
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        file["group/data"] = np.zeros(3)
        file["scalar"] = 3.0
        file["empty"] = h5py.Empty("f4")
        file["short"] = np.zeros(2)
        for number in range(30):
            file[f"more/{number:02}"] = [0]
    odd = tmp_path / "odd.h5"
    with pytest.raises(KeyError, match=r"'group' is no dataset .*'group/data', .*, \.\.\."):
        fl.HDF5Dataset(odd, "group")
    for name, what in (("scalar", "a scalar"), ("empty", "empty")):
        with pytest.raises(ValueError, match=f"dataset_name: '{name}' .* is {what}"):
            fl.HDF5Dataset(odd, name)
    with pytest.raises(KeyError, match="dataset_name: '' is not there"):
        fl.HDF5Dataset(odd, "")
    with pytest.raises(ValueError, match="target_name: 'short' has 2 rows, but 'group/data' has 3"):
        fl.HDF5Dataset(odd, "group/data", target_name="short")
    with pytest.raises(TypeError, match="dataset_name must be a str, got int"):
        fl.HDF5Dataset(odd, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="transform must be callable"):
        fl.HDF5Dataset(odd, "short", transform=3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="there is nothing at"):
        fl.HDF5Dataset(tmp_path / "nowhere.h5")
    dataset = fl.HDF5Dataset(path)
    for wrong in (300, -301):
        with pytest.raises(IndexError, match=f"{wrong} is out of range for 300 samples"):
            dataset[wrong]
        with pytest.raises(IndexError, match=f"index {wrong} is out of range for 300 samples"):
            list(fl.DataLoader(dataset, batch_sampler=[[0, wrong]]))


def test_an_empty_dataset(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "e.h5", "w") as file:
        file.create_dataset("data", (0, 3), "f4", chunks=(4, 3), maxshape=(None, 3), compression="gzip")
        file["flat"] = np.zeros((0, 3))
    for mode in fl.LoadingMode:
        for name in ("data", "flat"):
            dataset = fl.HDF5Dataset(tmp_path / "e.h5", name, mode)
            assert len(dataset) == 0
            assert list(fl.DataLoader(dataset, 4)) == []


def test_files_that_cannot_be_read(path: Path, tmp_path: Path) -> None:
    for content, message in (
        (b"no" * 3000, "not an HDF5 file"),
        (b"", "not an HDF5 file|cut short"),
        (path.read_bytes()[:5000], "cut short"),
    ):
        bad = tmp_path / "bad.h5"
        bad.write_bytes(content)
        with pytest.raises(OSError, match=message) as caught:
            fl.HDF5Dataset(bad)
        assert caught.value.filename == str(bad)
    with pytest.raises(OSError, match="this is a folder"):
        fl.HDF5Dataset(tmp_path)
    with h5py.File(tmp_path / "latest.h5", "w", libver="latest") as file:
        file["data"] = np.zeros(3)
    for name, mode in ((path, "flush()"), (tmp_path / "latest.h5", "swmr_mode = True")):
        opening = f"import h5py; file = h5py.File({str(name)!r}, 'r+', libver='latest')"
        command = [sys.executable, "-c", f"{opening}; file.{mode}; print(); input()"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            with pytest.raises(OSError, match="open for writing; close it there first"):
                fl.HDF5Dataset(name)
            writer.communicate(b"\n")
    with h5py.File(path, "r+"), pytest.raises(OSError, match="open for writing; close it there first"):
        fl.HDF5Dataset(path)
    assert len(fl.HDF5Dataset(path)) == 300


def damage(path: Path, row: int, name: str = "data") -> None:
    with h5py.File(path) as file:
        chunk = file[name].id.get_chunk_info_by_coord((row, *[0] * (file[name].ndim - 1)))
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset + 5)
        raw.write(b"\xff" * (chunk.size - 10))


def test_a_damaged_chunk_is_named_and_can_be_left_out(path: Path) -> None:
    damage(path, 40)
    dataset = fl.HDF5Dataset(path, target_name="labels")
    with pytest.raises(DecodeError, match=r"rows 32 to 47 of dataset 'data' in .*rows.h5' cannot be decoded"):
        dataset[35]
    loader = fl.DataLoader(dataset, 20)
    batches = iter(loader)
    assert next(batches)[1].tolist() == list(range(20))
    with pytest.raises(DecodeError, match="rows 32 to 47") as caught:
        next(batches)
    assert "sample 32 (position 12 of its batch)" in "".join(caught.value.__notes__)
    for kind in ({}, {"workers": "processes", "num_workers": 1}):
        left = fl.DataLoader(dataset, 20, on_error="skip", **kind)
        labels = [batch[1].tolist() for batch in left]
        assert labels[1:3] == [list(range(20, 32)), list(range(48, 60))]
        assert [error.index for error in left.errors] == list(range(32, 48))
        assert "rows 32 to 47" in left.errors[0].error
    replaced = [batch[1].tolist() for batch in fl.DataLoader(dataset, 20, on_error="replace")]
    assert replaced[1] == [*range(20, 32), *[20] * 8]


def test_a_file_that_was_exchanged_is_noticed(path: Path) -> None:
    dataset = fl.HDF5Dataset(path)
    write(path, 200)
    with pytest.raises(OSError, match="changed since the HDF5Dataset was made; make the dataset again") as caught:
        dataset[0]
    assert caught.value.filename == str(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        dataset[0]


@pytest.mark.parametrize("layout", [{}, {"chunks": (5, 600)}, {"chunks": (5, 6), "compression": "lzf"}])
def test_a_file_that_is_written_to_in_the_middle_of_an_epoch_is_noticed(
    tmp_path: Path, layout: dict[str, Any]
) -> None:
    path = tmp_path / "rows.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=np.ones((40, 600)), **layout)
    dataset = fl.HDF5Dataset(path)
    ends = os.stat(path).st_mtime_ns
    assert dataset[0].eq(1).all()
    dataset._opened().file.close_handle()  # or nobody could write to it
    with h5py.File(path, "r+") as file:
        file["data"][...] = 2
    os.utime(path, ns=(ends, ends + 1))
    for load in (lambda: dataset[39], lambda: dataset.__getitems__([38, 39])):
        with pytest.raises(OSError, match="changed since the HDF5Dataset was made"):
            load()
    loader = fl.DataLoader(dataset, 20, on_error="skip")
    assert all(batch.eq(1).all() for batch in loader)  # what was kept of it is right still
    assert len(loader.errors) >= 35


@pytest.mark.slow
def test_without_h5py_it_says_what_to_install(path: Path) -> None:
    script = f"""
        import sys; sys.modules["h5py"] = None
        import foreload
        try:
            foreload.HDF5Dataset({str(path)!r})
        except ImportError as error:
            print(error)
    """
    run = python("-c", textwrap.dedent(script))
    assert run.stdout.strip() == "HDF5Dataset needs h5py: pip install h5py", run.stderr


# Processes


def _files_open(path: Path) -> int:
    found = 0
    for entry in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{entry}") == str(path)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("layout", [{**GZIP}, {"compression": "lzf"}])
def test_after_a_fork_a_child_opens_its_own_file(tmp_path: Path, layout: dict[str, Any]) -> None:
    path = tmp_path / "rows.h5"
    data = write(path, chunks=(16, 6, 5), **layout)
    dataset = fl.HDF5Dataset(path)
    assert np.array_equal(dataset[5].numpy(), data[5])
    bands_of_parent = dataset._opened()
    out, into = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            before = bands_of_parent.file._handle is None
            good = all(np.array_equal(dataset[i].numpy(), data[i]) for i in range(300))
            own = dataset._opened() is not bands_of_parent
            os.write(into, repr((before, good, own)).encode())
        finally:
            os._exit(0)
    os.close(into)
    assert np.array_equal(dataset[299].numpy(), data[299])
    os.waitpid(child, 0)
    with open(out) as answer:
        assert answer.read() == "(True, True, True)"
    dataset.close()
    assert _files_open(path) == 0


def test_threads_read_while_others_fork(tmp_path: Path) -> None:
    path = tmp_path / "rows.h5"
    data = write(path, chunks=(4, 6, 5), compression="lzf")
    dataset = fl.HDF5Dataset(path)
    wrong: list[int] = []
    over = threading.Event()

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not over.is_set():
            index = int(rng.integers(300))
            dataset.close() if seed == 0 and index == 7 else None
            if not np.array_equal(dataset.read(index).numpy(), data[index]):
                wrong.append(index)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            batches = list(TorchDataLoader(dataset, 50, num_workers=2))
            assert np.array_equal(torch.cat(batches).numpy(), data)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", fl.LoadingMode)
def test_pickles_and_workers_that_get_them(path: Path, mode: fl.LoadingMode) -> None:
    dataset = fl.HDF5Dataset(path, "data", mode)
    expected = torch.stack(list(Rows(path)))
    assert torch.equal(dataset[3], expected[3])
    again = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(again[3], expected[3])
    server = multiprocessing.get_context("forkserver")
    batches = list(TorchDataLoader(dataset, 64, num_workers=1, multiprocessing_context=server))
    assert torch.equal(torch.cat(batches), expected)


def test_nothing_is_left_open(path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = fl.HDF5Dataset(path)
        list(fl.DataLoader(dataset, 30, num_workers=2))
        gc.collect()  # what other tests have left
        before = descriptors()
        for _ in range(50):
            list(fl.DataLoader(dataset, 30, num_workers=2))
        assert descriptors() == before
        for _ in range(5):
            fl.HDF5Dataset(path)[0]
        gc.collect()
        assert descriptors() == before
        dataset.close()
        assert _files_open(path) == 0
        assert dataset[1].shape == (6, 5)
        dataset.close()


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
        timeout=170,
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


def as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def stacked_and_listed(samples: list[Any]) -> dict[str, Any]:
    rows = [sample[0] if isinstance(sample, tuple) else sample for sample in samples]
    return {"all": torch.stack(rows), "each": rows}


def unchanged(sample: Any) -> Any:
    return sample


def rows_of(batches: list[Any]) -> list[torch.Tensor]:
    rows: list[torch.Tensor] = []
    for batch in batches:
        if isinstance(batch, dict):
            assert all(torch.equal(*pair) for pair in zip(batch["all"], batch["each"], strict=True))
            rows += batch["each"]
        else:
            rows += [row[0] if isinstance(row, tuple) else row for row in batch]
    return [row.as_subclass(torch.Tensor) for row in rows]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["u2", ">u2", "u4", ">u4", "u8", ">u8", "f2", "?", "c8"])
@pytest.mark.parametrize("loader", [TorchDataLoader, fl.DataLoader])
def test_rows_of_any_type_reach_other_processes_whatever_collates(tmp_path: Path, dtype: str, loader: Any) -> None:
    path = tmp_path / "rows.h5"
    data = filled((24, 5), dtype)
    if data.dtype.kind == "u":
        data[:, 0] = np.iinfo(dtype).max
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=data, chunks=(4, 5), **GZIP)
        file["labels"] = np.arange(24)
    expected = [torch.from_numpy(row) for row in data.astype(data.dtype.newbyteorder("="))]
    arguments = {"num_workers": 1} | ({"workers": "processes"} if loader is fl.DataLoader else {})
    for transform in (None, unchanged):
        for target in (None, "labels"):
            dataset = fl.HDF5Dataset(path, target_name=target, transform=transform)
            for collate in (as_they_are, stacked_and_listed):
                rows = rows_of(list(loader(dataset, 6, collate_fn=collate, **arguments)))
                same(rows, expected)
            (first, *_) = loader(dataset, 24, **arguments)
            same(list(first if target is None else first[0]), expected)
            alone = [row if target is None else row[0] for row in loader(dataset, None, **arguments)]
            same(alone, expected)


def test_arrays_as_the_type_of_elements_are_more_dimensions(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    flat, deep = filled((20, 3), "f4"), filled((20, 2, 3, 4), "u2")
    with h5py.File(path, "w") as file:
        file.create_dataset("flat", (20,), np.dtype(("f4", (3,))))[...] = flat
        file.create_dataset("deep", (20, 2), np.dtype((">u2", (3, 4))), chunks=(6, 1), **GZIP)[...] = deep
    for mode in fl.LoadingMode:
        for name, data in (("flat", flat), ("deep", deep)):
            dataset = fl.HDF5Dataset(path, name, mode)
            same(list(dataset), [torch.from_numpy(row) for row in data])
            same(list(fl.DataLoader(dataset, 7)), list(torch.from_numpy(data).split(7)))
            dataset.close()


@pytest.mark.parametrize("name", ["objects", "regions", "fields", "lists"])
def test_references_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "refs.h5"
    with h5py.File(path, "w") as file:
        file["data"] = np.zeros(3)
        file.create_dataset("objects", (3,), h5py.ref_dtype)
        file.create_dataset("regions", (3,), h5py.regionref_dtype)
        file.create_dataset("fields", (3,), np.dtype([("a", "i4"), ("b", h5py.ref_dtype, (2,))]))
        file.create_dataset("lists", (3,), h5py.vlen_dtype(h5py.ref_dtype))
    with pytest.raises(ValueError, match=f"dataset_name: '{name}' in .*refs.h5' holds references"):
        fl.HDF5Dataset(path, name)
    with pytest.raises(ValueError, match=f"target_name: '{name}'"):
        fl.HDF5Dataset(path, target_name=name)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A file whose datasets lie in others: ``far.h5``, reached by way of ``middle.h5``, and ``raw.bin``."""
    data = filled((40, 3), "f8")
    with h5py.File(tmp_path / "far.h5", "w") as far:
        far["data"] = data
        far.create_dataset("group/zipped", data=data, chunks=(8, 2), **GZIP)
    with h5py.File(tmp_path / "middle.h5", "w") as middle:
        middle["on"] = h5py.ExternalLink("far.h5", "data")
        middle["group"] = h5py.ExternalLink("far.h5", "/group")
        middle["soft"] = h5py.SoftLink("group")
    path = tmp_path / "main.h5"
    with h5py.File(path, "w") as file:
        file["near"] = data
        file["direct"] = h5py.ExternalLink("far.h5", "group/zipped")
        file["chain"] = h5py.ExternalLink("middle.h5", "on")
        file["soft"] = h5py.SoftLink("/chain")
        file["within"] = h5py.ExternalLink(str(tmp_path / "middle.h5"), "soft")
        for name, source in (("virtual", "far.h5"), ("twice", "middle.h5"), ("gaps", "nowhere.h5")):
            layout = h5py.VirtualLayout((40, 3), "f8")
            layout[:] = h5py.VirtualSource(source, "on" if name == "twice" else "data", (40, 3))
            file.create_virtual_dataset(name, layout)
        layout = h5py.VirtualLayout((40, 3), "f8")
        layout[:] = h5py.VirtualSource(file["near"])
        file.create_virtual_dataset("inside", layout)
        file.create_dataset("raw", data=data, external=[(str(tmp_path / "raw.bin"), 0, data.nbytes)])
    return path


FAR, MIDDLE = "far.h5", "middle.h5"


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("direct", FAR),
        ("chain", FAR),
        ("chain", MIDDLE),
        ("soft", FAR),
        ("soft", MIDDLE),
        ("within/zipped", FAR),
        ("within/zipped", MIDDLE),
        ("virtual", FAR),
        ("twice", FAR),
        ("twice", MIDDLE),
        ("gaps", "nowhere.h5"),
        ("raw", "raw.bin"),
    ],
)
@pytest.mark.parametrize("change", ["written", "exchanged", "gone"])
def test_files_that_are_linked_to_are_watched(linked: Path, name: str, file: str, change: str) -> None:
    dataset = fl.HDF5Dataset(linked, name)
    copy = pickle.dumps(dataset)
    with h5py.File(linked) as handle:
        assert np.array_equal(torch.stack(list(fl.DataLoader(dataset, None))).numpy(), handle[name][...])
    dataset._opened().file.close_handle()
    dataset._opened()._kept.clear()
    other = linked.with_name(file)
    if change == "gone" and other.exists():
        other.unlink()
    elif change == "written" and other.exists():
        os.utime(other, ns=(1, 1))
    else:
        with h5py.File(linked.with_name("new.h5"), "w") as handle:
            handle["data"] = handle["on"] = np.full((40, 3), -1.0)
        linked.with_name("new.h5").rename(other)
    for each in (dataset, pickle.loads(copy)):
        for load in (lambda each=each: each[7], lambda each=each: list(fl.DataLoader(each, 8, num_workers=2))):
            with pytest.raises(OSError, match="this file has changed since the HDF5Dataset was made") as caught:
                load()
            assert caught.value.filename == str(other)


@pytest.mark.parametrize("name", ["near", "inside"])
def test_a_file_of_its_own_needs_no_other(linked: Path, name: str) -> None:
    dataset = fl.HDF5Dataset(linked, name)
    assert not dataset._linked
    linked.with_name(FAR).unlink()
    assert dataset[39].shape == (3,)


@pytest.mark.parametrize("layout", [{}, {"chunks": (5, 6), "compression": "lzf"}])
@pytest.mark.parametrize("kept", [False, True])
def test_a_file_that_another_takes_the_place_of_is_noticed(
    tmp_path: Path, layout: dict[str, Any], kept: bool
) -> None:
    path = tmp_path / "rows.h5"
    for name, value in (("rows.h5", 1), ("new.h5", 2)):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("data", data=np.full((40, 600), value), **layout)
    dataset = fl.HDF5Dataset(path)
    assert dataset[0].eq(1).all()
    dataset._opened().file.close_handle()
    if kept:
        path.rename(tmp_path / "old.h5")
    (tmp_path / "new.h5").rename(path)
    for _ in range(2):
        if kept and not layout:
            assert dataset[39].eq(1).all()  # the file that was opened is still there
            continue
        with pytest.raises(OSError, match="changed since the HDF5Dataset was made") as caught:
            dataset[39]
        assert caught.value.filename == str(path)


@pytest.mark.parametrize("change", ["grown", "shrunk", "deleted", "renamed", "cut"])
def test_a_dataset_that_is_another_one_is_noticed(path: Path, change: str) -> None:
    with h5py.File(path, "r+") as file:
        file["other"] = np.zeros((300, 6, 5), "f4")
        del file["data"]
        file.create_dataset("data", data=np.ones((300, 6, 5), "f4"), maxshape=(None, 6, 5))
    dataset = fl.HDF5Dataset(path)
    assert dataset[0].eq(1).all()
    dataset.close()
    if change == "cut":
        os.truncate(path, 4000)
    else:
        with h5py.File(path, "r+") as file:
            if change in ("grown", "shrunk"):
                file["data"].resize(400 if change == "grown" else 100, 0)
            elif change == "deleted":
                del file["data"]
            else:
                del file["data"]
                file.move("other", "data")
    os.utime(path, ns=(1, 1))
    for load in (lambda: dataset[299], lambda: list(fl.DataLoader(dataset, 100))):
        with pytest.raises(OSError, match="changed since the HDF5Dataset was made"):
            load()


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.h5")
    for path in (tmp_path / "pipe.h5", "/dev/null", "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file but a FIFO, device or socket") as caught:
            fl.HDF5Dataset(path)
        assert caught.value.filename == str(path)


@pytest.mark.parametrize("kind", ["link", "source", "raw"])
def test_what_a_file_links_to_is_not_waited_for_either(kind: str, tmp_path: Path) -> None:
    pipe, path = tmp_path / "pipe.h5", tmp_path / "own.h5"
    with h5py.File(path, "w") as file:
        if kind == "link":
            file["data"] = h5py.ExternalLink("pipe.h5", "data")
        elif kind == "source":
            layout = h5py.VirtualLayout((5, 2), "f4")
            layout[:] = h5py.VirtualSource("pipe.h5", "data", (5, 2))
            file.create_virtual_dataset("data", layout)
        else:
            file.create_dataset("data", (5, 2), "f4", external=[(str(pipe), 0, h5py.h5f.UNLIMITED)])
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    with pytest.raises(OSError, match=r"not a regular file but a FIFO, device or socket.*pipe\.h5"):
        fl.HDF5Dataset(path)


@pytest.mark.slow
def test_more_files_than_the_process_may_open(tmp_path: Path) -> None:
    for number in range(80):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["data"] = np.full((4, 3), number)
    script = f"""
    import resource
    import foreload as fl
    from torch.utils.data import ConcatDataset
    folder = {str(tmp_path)!r}
    fl.HDF5Dataset(folder + "/0.h5")[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    data = ConcatDataset([fl.HDF5Dataset(f"{{folder}}/{{number}}.h5") for number in range(80)])
    for _ in range(2):
        assert [int(row[0]) for row in data] == [i // 4 for i in range(320)]
    print(sum(len(batch) for batch in fl.DataLoader(data, batch_size=10, num_workers=0)))
    """
    run = python("-c", textwrap.dedent(script))
    assert run.stdout.split() == ["320"], run.stderr
