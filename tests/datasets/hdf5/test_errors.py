"""Wrong arguments and damaged HDF5 files are errors that name them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import foreload as fl
from foreload.errors import DecodeError
from tests.datasets.hdf5.files import damage
from tests.programs import python

h5py = pytest.importorskip("h5py")


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
    with pytest.raises(KeyError, match=r"'group' is not a dataset .*'group/data', .*, \.\.\."):
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
