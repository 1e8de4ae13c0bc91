"""Pieces of documents in packed rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foreload.checks import Array

__all__ = ["Pieces", "ranges"]


class Pieces(NamedTuple):
    """The pieces of documents in the rows, in the order of rows and columns."""

    documents: Array
    starts: Array  # in the document
    lengths: Array
    rows: Array
    columns: Array


def ranges(begins: Array, lengths: Array) -> Array:
    """Concatenate the ranges ``begin, begin + 1, ...`` of these lengths.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = np.cumsum(lengths) - lengths
    return np.repeat(begins - before, lengths) + np.arange(int(lengths.sum()))
