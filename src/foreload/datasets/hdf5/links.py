"""The other files that an HDF5 dataset takes data from: by links, virtual sources, external storage."""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any

from foreload.checks import check_regular_file
from foreload.datasets.hdf5.file import load_h5py

__all__ = ["linked_files"]

# Links to links, as many as HDF5 follows (H5Pset_nlinks).
_MOST = 16


def linked_files(handle: Any, name: str) -> set[str]:
    """Return the paths of the files beside ``handle``'s own that its dataset ``name`` is read from.

    Some need not exist: HDF5 gives the fill value for virtual sources that are not there, and zeros for what lies
    behind the end of raw files. A warning says so.

    Raises:
        OSError: one is a FIFO, device or socket, for which HDF5 might wait for ever.
    """
    own = os.path.realpath(handle.filename)
    return {path for path in _reached(handle, name, _MOST) if os.path.realpath(path) != own}


def _reached(handle: Any, name: str, left: int) -> Iterator[str]:
    """Yield the files behind a name, those on the way to it too."""
    h5py = load_h5py()
    parts = [part for part in name.split("/") if part not in ("", ".")]
    for number in range(len(parts)):
        here = "/".join(parts[: number + 1])
        link = handle.get(here, getlink=True)
        if left and isinstance(link, h5py.SoftLink):
            start = "" if link.path.startswith("/") else "/".join(parts[:number])
            yield from _reached(handle, "/".join((start, link.path, *parts[number + 1 :])), left - 1)
            return
        if left and isinstance(link, h5py.ExternalLink):
            path = _beside(link.filename, handle.filename)
            yield path
            if os.path.exists(path):
                check_regular_file(path)
                with h5py.File(path, "r") as other:
                    yield from _reached(other, "/".join((link.path, *parts[number + 1 :])), left - 1)
            return
    found = handle.get("/".join(parts)) if parts else None
    if isinstance(found, h5py.Dataset):
        yield from _stored(found, handle.filename, left)


def _stored(dataset: Any, path: str, left: int) -> Iterator[str]:
    """Yield the files that the data of a dataset lie in, beside the one with its description."""
    h5py = load_h5py()
    needed = (dataset.size or 0) * dataset.dtype.itemsize
    for raw, offset, size in dataset.external or ():
        if os.path.exists(raw):  # relative to the working folder
            check_regular_file(raw)
            if os.path.getsize(raw) < offset + min(size, needed):
                _warn(f"{dataset.name!r} of {path!r} does not fit into {raw!r}, which may be cut short", "zeros")
        needed -= min(size, needed)
        yield raw
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        # A number in the name stands for any.
        pattern = re.sub("%+b", "*", glob.escape(source.file_name)) if "%b" in source.file_name else None
        files = glob.glob(_beside(pattern, path)) if pattern else [_beside(source.file_name, path)]
        for file in files:
            if source.file_name == ".":
                continue
            yield file
            missing = f"{file!r}, a source of {dataset.name!r} in {path!r},"
            if not os.path.exists(file):
                _warn(f"{missing} does not exist", "the fill value")
            elif left:
                check_regular_file(file)
                with h5py.File(file, "r") as other:
                    # (A number in its name, too, stands for any.)
                    if "%" not in source.dset_name and other.get(source.dset_name) is None:
                        _warn(f"{missing} has no dataset {source.dset_name!r}", "the fill value")
                    yield from _reached(other, source.dset_name, left - 1)


def _warn(problem: str, instead: str) -> None:
    warnings.warn(f"{problem}; for what is missing, HDF5 gives {instead}", stacklevel=6)


def _beside(name: str, path: str) -> str:
    """Return the file that a link in ``path`` names: as HDF5, look beside it first, then in the working folder."""
    beside = os.path.join(os.path.dirname(path), name)
    return beside if os.path.exists(beside) or not os.path.exists(name) else name
