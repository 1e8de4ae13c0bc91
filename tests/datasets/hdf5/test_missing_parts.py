"""Values that HDF5 makes up for a missing source are warned of; what h5py reads wrongly is refused."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import foreload as fl

h5py = pytest.importorskip("h5py")


def virtual(path: Path, sources: list[tuple[str, str]]) -> None:
    layout = h5py.VirtualLayout((2 * len(sources),), "i8")
    for number, (file, name) in enumerate(sources):
        layout[2 * number : 2 * number + 2] = h5py.VirtualSource(file, name, (2,))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("data", layout, fillvalue=-9)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (("gone.h5", "x"), "gone.h5', a source of '/data' in .* does not exist"),
        (("a.h5", "y"), "has no dataset 'y'"),
    ],
)
def test_missing_sources_are_warned_of(tmp_path: Path, missing: tuple[str, str], words: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(2)
    virtual(tmp_path / "whole.h5", [("a.h5", "x"), ("a.h5", "x")])
    virtual(tmp_path / "own.h5", [("a.h5", "x"), missing])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [int(row) for row in fl.HDF5Dataset(tmp_path / "whole.h5")] == [0, 1, 0, 1]
    with pytest.warns(UserWarning, match=f"{words}; for what is missing, HDF5 gives the fill value"):
        dataset = fl.HDF5Dataset(tmp_path / "own.h5")
    assert [int(row) for row in dataset] == [0, 1, -9, -9]


@pytest.mark.parametrize("size", [32, h5py.h5f.UNLIMITED])
def test_raw_files_that_are_cut_short_are_warned_of(tmp_path: Path, size: int) -> None:
    raw = tmp_path / "raw.bin"
    np.arange(5).tofile(raw)
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file.create_dataset("data", (4,), "i8", external=[(str(raw), 8, size)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [int(row) for row in fl.HDF5Dataset(tmp_path / "own.h5")] == [1, 2, 3, 4]
    np.arange(4).tofile(raw)
    with pytest.warns(UserWarning, match=r"does not fit into .*raw\.bin', which may be cut short; .* zeros"):
        dataset = fl.HDF5Dataset(tmp_path / "own.h5")
    assert [int(row) for row in dataset] == [1, 2, 3, 0]


@pytest.mark.parametrize("compound", [False, True])
def test_rows_that_h5py_does_not_swap_are_refused(tmp_path: Path, compound: bool) -> None:
    with h5py.File(tmp_path / "own.h5", "w") as file:
        for order in "<>":
            kind = h5py.vlen_dtype(np.dtype(f"{order}f4"))
            rows = file.create_dataset(f"data{order}", (2,), np.dtype([("x", kind)]) if compound else kind)
            if not compound:
                rows[0] = np.array([1, 2])
    with pytest.raises(ValueError, match=r"'data>' in .* in the other byte order, whose bytes h5py does not swap"):
        fl.HDF5Dataset(tmp_path / "own.h5", "data>")
    row = fl.HDF5Dataset(tmp_path / "own.h5", "data<")[0]
    assert compound or row.tolist() == [1, 2]


def test_the_file_that_a_link_names_is_said_to_be_missing(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["there"] = np.arange(2)
        file["data"] = h5py.ExternalLink("gone.h5", "/x")
    with pytest.raises(KeyError, match=r"'data' is a link to .*gone\.h5.*, which does not exist") as caught:
        fl.HDF5Dataset(tmp_path / "own.h5")
    assert "'there'" in str(caught.value)
    with pytest.raises(KeyError, match="'nothing' is not there in"):
        fl.HDF5Dataset(tmp_path / "own.h5", "nothing")
