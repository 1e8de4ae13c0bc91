"""HDF5 files that change while they are read, with those that they link to."""

from __future__ import annotations

import os
import pickle
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foreload as fl
from tests.datasets.hdf5.files import filled, write
from tests.programs import python

h5py = pytest.importorskip("h5py")


def test_a_file_that_is_cut_short_later_is_told(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["data"] = filled((90, 1100), "f4")
    dataset = fl.HDF5Dataset(tmp_path / "rows.h5")
    dataset[0]
    os.truncate(tmp_path / "rows.h5", 100_000)
    with pytest.raises(OSError, match=r"cut short|cannot be decoded|changed since"):
        next(iter(fl.DataLoader(dataset, 90)))


# Wrong input


def test_a_file_that_was_exchanged_is_noticed(path: Path) -> None:
    dataset = fl.HDF5Dataset(path)
    write(path, 200)
    with pytest.raises(OSError, match="changed since the HDF5Dataset was made; make the dataset again") as caught:
        dataset[0]
    assert caught.value.filename == str(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        dataset[0]


def test_rows_beyond_a_band_are_never_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "data", data=np.ones((40, 60)), chunks=(10, 60), maxshape=(None, 60), compression="lzf"
        )
    before = path.stat()
    dataset = fl.HDF5Dataset(path)
    with h5py.File(path, "r+") as file:
        file["data"].resize(33, axis=0)
    os.truncate(path, before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # so that nothing shows but the rows themselves
    for _ in range(2):
        with pytest.raises(fl.errors.DecodeError, match=r"rows 30 to 39 the shape is \(3, 60\), not \(10, 60\)"):
            next(iter(fl.DataLoader(dataset, batch_sampler=[[39, 38]])))


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


# Loading modes


FAR, MIDDLE = "far.h5", "middle.h5"


@pytest.mark.sampled(2)
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
