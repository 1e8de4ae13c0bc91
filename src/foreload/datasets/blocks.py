"""Rows gathered from decoded blocks, such as row groups and chunks, that lie in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foreload import _native
from foreload.checks import Array, Indices

__all__ = ["gather_rows"]


def gather_rows(addresses: Sequence[int] | Indices, which: Indices, rows: Indices, out: Array) -> None:
    """Copy rows of blocks: row i of ``out`` is row ``rows[i]`` of block ``which[i]``.

    Args:
        addresses: of the blocks: contiguous arrays of the dtype of ``out`` and its shape per row, which the caller
            keeps in memory.
        which: for each row, the place of its block among them.
        rows: for each row, its number in the block.
        out: contiguous memory for the rows.

    Raises:
        ValueError: ``out`` is not contiguous.

    >>> blocks = np.zeros((2, 3), np.int16), np.ones((2, 3), np.int16)
    >>> out = np.empty((3, 3), np.int16)
    >>> gather_rows([block.ctypes.data for block in blocks], np.array([1, 0, 1]), np.array([0, 1, 1]), out)
    >>> out[:, 0].tolist()
    [1, 0, 1]
    """
    if not out.flags.c_contiguous:
        raise ValueError("out must be contiguous")  # rows would be copied to a copy of it
    if out.size:
        places = np.asarray(addresses, np.int64)[which] + rows * (out.nbytes // len(out))
        _native.gather_from(places, out.reshape(len(out), -1).view(np.uint8))
