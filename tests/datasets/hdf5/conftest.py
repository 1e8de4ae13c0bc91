"""HDF5 files for tests, alone or linked to others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.datasets.hdf5.files import GZIP, filled, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "rows.h5", chunks=(16, 6, 5), **GZIP)
    return tmp_path / "rows.h5"


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A file whose datasets lie in others: ``far.h5``, reached by way of ``middle.h5``, and ``raw.bin``."""
    h5py = pytest.importorskip("h5py")
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
