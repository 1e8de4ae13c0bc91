"""Reading of files that ``np.savez`` wrote, in no more memory than they take on disk."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from foreload.checks import Array

__all__ = ["read_arrays"]


def read_arrays(source: str | Path | IO[bytes], names: Sequence[str]) -> dict[str, Array]:
    """Return the arrays of these names, of integers and with up to one dimension.

    ``np.load`` allocates what a header says, and unpacks what may be a thousand times the size of the file.

    Raises:
        Exception: the file is damaged, of another kind, or lacks a name; which exception it is may vary.

    >>> file = io.BytesIO()
    >>> np.savez(file, first=[1, 2], size=5)
    >>> {name: array.tolist() for name, array in read_arrays(file, ["first", "size"]).items()}
    {'first': [1, 2], 'size': 5}
    """
    with zipfile.ZipFile(source) as stored:
        entries = [stored.getinfo(f"{name}.npy") for name in names]
        stored.fp.seek(0, io.SEEK_END)  # type: ignore[union-attr]
        size = stored.fp.tell()  # type: ignore[union-attr]
        if any(one.compress_type != zipfile.ZIP_STORED for one in entries):
            raise ValueError("an array is compressed")
        if sum(one.file_size for one in entries) > size:
            raise ValueError("the arrays are longer than the file")
        return {name: _array(stored.read(entry)) for name, entry in zip(names, entries, strict=True)}


def _array(content: bytes) -> Array:
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array is of another version")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "iu" or not dtype.isnative or len(shape) > 1:
        raise ValueError(f"an array is of {dtype} with {len(shape)} dimensions")
    array = np.frombuffer(content, dtype, offset=file.tell())
    if shape and shape != array.shape:
        raise ValueError(f"an array has {len(array)} entries, but should have {shape[0]}")
    return array.reshape(shape).copy()
