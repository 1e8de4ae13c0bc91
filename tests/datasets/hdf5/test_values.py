"""Rows of HDF5 files are h5py's, for every type and layout, in every loader."""

from __future__ import annotations

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
from tests.datasets.hdf5.files import GZIP, Rows, filled, same, write
from tests.pairwise import pairwise

h5py = pytest.importorskip("h5py")

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


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=3)))
    shape = (draw(st.integers(1, 40)), *shape)
    filters = draw(st.sampled_from(FILTERS))
    chunks = None
    if filters or draw(st.booleans()):
        chunks = tuple(draw(st.integers(1, size)) for size in shape)
    maxshape = None
    if chunks and draw(st.booleans()):
        maxshape = tuple(draw(st.sampled_from([None, size, size + 3])) for size in shape)
    return {
        "shape": shape,
        "dtype": draw(st.sampled_from(DTYPES)),
        "chunks": chunks,
        "maxshape": maxshape,
        **filters,
    }


@given(st.data(), layouts(), layouts(), st.sampled_from(fl.LoadingMode))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
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


@pytest.mark.parametrize("layout", [{}, {"compression": "gzip"}])
@pytest.mark.parametrize("most", [(4, None), (None, 8), (None, None), (4, 9), (9, None)])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_whichever_dimension_may_grow(
    tmp_path: Path, layout: dict[str, Any], most: tuple[int | None, int | None], libver: str
) -> None:
    # HDF5 lists the chunks of a dataset that grows in its second dimension as if it grew in its first.
    values = np.arange(32).reshape(4, 8)
    with h5py.File(tmp_path / "grows.h5", "w", libver=libver) as file:
        data = file.create_dataset("data", (4, 4), dtype=values.dtype, chunks=(1, 2), maxshape=most, **layout)
        data[:] = values[:, :4]
        data.resize((4, 8))
        data[:, 4:] = values[:, 4:]
    rows = fl.HDF5Dataset(tmp_path / "grows.h5")
    same(next(iter(fl.DataLoader(rows, batch_size=4))), torch.from_numpy(values))
    rows.close()


@pytest.mark.sampled(2)
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


# Loading modes


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
@pytest.mark.parametrize(
    ("dtype", "loader", "transform", "target"),
    pairwise(
        ["u2", ">u2", "u4", ">u4", "u8", ">u8", "f2", "?", "c8"],
        [TorchDataLoader, fl.DataLoader],
        [None, unchanged],
        [None, "labels"],
    ),
)
def test_rows_of_any_type_reach_other_processes_whatever_collates(
    tmp_path: Path, dtype: str, loader: Any, transform: Any, target: str | None
) -> None:
    path = tmp_path / "rows.h5"
    data = filled((24, 5), dtype)
    if data.dtype.kind == "u":
        data[:, 0] = np.iinfo(dtype).max
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=data, chunks=(4, 5), **GZIP)
        file["labels"] = np.arange(24)
    expected = [torch.from_numpy(row) for row in data.astype(data.dtype.newbyteorder("="))]
    arguments = {"num_workers": 1} | ({"workers": "processes"} if loader is fl.DataLoader else {})
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
