"""State of datasets: if loading changes one, or it holds a file open, the calling thread loads it."""

from __future__ import annotations

import io
import itertools
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

import foreload as fl
from foreload.dataset_state.digest import StateWatch, changed, digests_of
from foreload.dataset_state.walk import find_open_file
from tests.dataset_state.changing_datasets import CHANGES, SIZE, Rows, made


class Opened:
    """An object of the dataset's that holds something."""

    def __init__(self, what: Any) -> None:
        self.what = what


def find_change(dataset: Any, indices: tuple[int, ...] = (0, 5, 3)) -> str | None:
    """The name of what loading changes, by comparisons before, after the first and after the last sample."""
    watch = StateWatch(dataset)
    dataset[indices[0]]
    watch.compare()
    for index in indices[1:]:
        dataset[index]
    watch.compare()
    return watch.change


# What is open.


OPEN: dict[str, Callable[[Path], Any]] = {
    "binary": lambda folder: io.BufferedReader(io.FileIO(folder / "file")),
    "text": lambda folder: io.TextIOWrapper(io.BufferedReader(io.FileIO(folder / "file"))),
    "unbuffered": lambda folder: io.FileIO(folder / "file"),
    "database": lambda folder: sqlite3.connect(folder / "base.db"),
    "cursor": lambda folder: sqlite3.connect(folder / "base.db").cursor(),
    "hdf5": lambda folder: h5py.File(folder / "rows.h5"),
    "hdf5 dataset": lambda folder: h5py.File(folder / "rows.h5")["rows"],
    "zip": lambda folder: zipfile.ZipFile(folder / "a.zip"),
    "tar": lambda folder: tarfile.TarFile(folder / "a.tar"),
    "generator": lambda folder: (number for number in range(9)),
    "iterator": lambda folder: iter([1, 2, 3]),
    "count": lambda folder: itertools.count(),
    "lines": lambda folder: map(str, range(9)),
}


def close(handle: Any) -> None:
    for owner in (handle, getattr(handle, "file", None)):
        if hasattr(owner, "close"):
            owner.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files of several formats."""
    (tmp_path / "file").write_bytes(bytes(1000))
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["rows"] = np.arange(SIZE)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("member", bytes(1000))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        member = tarfile.TarInfo("member")
        member.size = 1000
        archive.addfile(member, io.BytesIO(bytes(1000)))
    return tmp_path


@pytest.mark.sampled(20)
@pytest.mark.parametrize("what", OPEN)
@pytest.mark.parametrize(
    ("place", "name"),
    [
        (lambda what: Rows(handle=what), "handle"),
        (lambda what: Rows(handles=[1, what]), "handles[1]"),
        (lambda what: Rows(handles={"train": what}), "handles['train']"),
        (lambda what: Rows(reader=Opened(what)), "reader.what"),
        (lambda what: Subset(Rows(handle=what), [1, 2]), "dataset.handle"),
        (lambda what: ConcatDataset([Rows(), Rows(handle=what)]), "datasets[1].handle"),
    ],
    ids=["attribute", "list", "dict", "object", "subset", "concat"],
)
def test_what_is_open_is_found_wherever_it_is(place: Any, name: str, what: str, folder: Path) -> None:
    handle = OPEN[what](folder)
    try:
        found = find_open_file(place(handle))
        assert str(found).startswith(name)
    finally:
        close(handle)


def test_what_is_closed_or_in_memory_is_not_open(folder: Path) -> None:
    file, rows = (folder / "file").open("rb"), h5py.File(folder / "rows.h5")
    file.close()
    rows.close()
    mapped = np.memmap(folder / "file", np.uint8, "r")
    for value in (file, rows, io.BytesIO(b"x"), io.StringIO("x"), mapped, torch.ones(3), "name", None, range(9)):
        assert find_open_file(Rows(value=value)) is None


@pytest.mark.parametrize(
    ("package", "name"), [("cv2", "VideoCapture"), ("decord", "VideoReader"), ("av.container", "Input")]
)
def test_an_open_video_is_found(package: str, name: str) -> None:
    video = type(name, (), {"__module__": package})()
    assert find_open_file(Rows(video=video)) == "video"
    assert find_open_file(Rows(video=type(f"Other{name}", (), {"__module__": "videos"})())) is None


def test_a_dataset_with_an_open_file_is_loaded_by_the_calling_thread(folder: Path) -> None:
    with (folder / "file").open("rb") as file:
        loader = fl.DataLoader(Rows(file=file), batch_size=8)
        loader.choose_workers()
        found = loader.stats()["workers"]
    assert (found["kind"], found["count"]) == ("threads", 0)
    assert found["why"] == "the dataset holds 'file' open, which processes forked from this one would share"


# What changes.


@pytest.mark.parametrize("what", CHANGES)
def test_what_loading_changes_is_named(what: str) -> None:
    make, name = CHANGES[what]
    assert find_change(make()) == name


@pytest.mark.parametrize("what", ["counter", "lazy counter", "lazy generator", "numpy", "tensor"])
def test_what_loading_changes_is_loaded_by_the_calling_thread(what: str) -> None:
    dataset = CHANGES[what][0]()
    loader = fl.DataLoader(dataset, batch_size=8, collate_fn=len)
    loader.choose_workers()
    found = loader.stats()["workers"]
    assert (found["kind"], found["count"]) == ("threads", 0)
    name = CHANGES[what][1]
    assert found["why"] == f"loading samples changes {name!r}, which copies of the dataset would not share"
    # Nothing was changed by finding out.
    assert find_change(dataset) == name


# What is as good in copies.


class Handle(Rows):
    """Opens a file when it is first needed."""

    handle: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.handle is None:
            self.handle = self.open()
        return self.read(self.handle, index)


class NewHandle(Rows):
    """The same, without an attribute before."""

    def __getitem__(self, index: int) -> Any:
        if not hasattr(self, "handle"):
            self.handle = self.open()
        return self.read(self.handle, index)


class Keeps(Rows):
    """Works out something when it is first needed."""

    length: int | None = None

    def __getitem__(self, index: int) -> Any:
        if self.length is None:
            self.length = len(self)
        return index


def read_file(file: Any, index: int) -> Any:
    file.seek(index)
    return file.read(1)


def select(base: Any, index: int) -> Any:
    return base.execute("select 1").fetchone()


READERS: dict[str, Any] = {
    "binary": read_file,
    "unbuffered": read_file,
    "database": select,
    "hdf5": lambda file, index: file["rows"][index],
    "hdf5 dataset": lambda rows, index: rows[index],
    "zip": lambda archive, index: archive.read("member"),
    "tar": lambda archive, index: archive.extractfile("member").read(),
}


@pytest.mark.parametrize("what", READERS)
@pytest.mark.parametrize("kind", [Handle, NewHandle])
def test_a_handle_that_is_opened_when_it_is_needed_is_no_state(kind: Any, what: str, folder: Path) -> None:
    dataset = kind(open=lambda: OPEN[what](folder), read=READERS[what])
    assert find_open_file(dataset) is None
    assert find_change(dataset) is None
    close(dataset.handle)


def test_what_stays_is_no_state() -> None:
    for dataset in (
        Rows(),
        Keeps(),
        Rows(values=list(range(50_000))),
        Rows(table=torch.arange(9)),
        [1, 2, 3, 4, 5, 6],
    ):
        assert find_change(dataset) is None
    with torch.inference_mode():
        assert find_change(Rows(table=torch.arange(9))) is None


def test_values_of_any_kind_can_be_looked_at() -> None:
    class Odd:
        __slots__ = ("empty",)

    rows = Rows(
        odd=Odd(),
        nan=float("nan"),
        sparse=torch.eye(3).to_sparse(),
        meta=torch.empty(3, device="meta"),
        objects=np.array([object()]),
        function=made,
        module=np,
        complex=np.ones(3, np.complex64),
        zero=np.zeros((0, 3)),
        half=torch.ones(3, dtype=torch.bfloat16),
    )
    rows.itself = rows
    before = digests_of(rows)
    assert changed(before, digests_of(rows)) is None


def test_elements_of_large_containers_are_compared_up_to_a_limit() -> None:
    rows = Rows(values=list(range(1_000_000)))
    assert len(digests_of(rows)) <= 20_010
