"""The members of samples in tar shards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foreload import _native
from foreload.datasets.tar.shards import ShardIndex

__all__ = ["members_of"]


def members_of(indexes: Sequence[ShardIndex]) -> _native.TarMembers:
    """Make the table of where the members of all samples lie, which makes dicts of samples' bytes."""
    before = np.cumsum([0, *(len(index.names) for index in indexes)], dtype=np.int64)
    firsts = [index.first[:-1] + start for index, start in zip(indexes, before, strict=False)]
    first = np.concatenate([*firsts, before[-1:]])
    offsets = np.concatenate([index.offsets for index in indexes])
    # Offsets from the start of the sample.
    begins = offsets - np.repeat(offsets[first[:-1]], np.diff(first))
    names, kinds = np.unique([name for index in indexes for name in index.names], return_inverse=True)
    keys = [key for index in indexes for key in index.keys]
    lengths = np.concatenate([index.lengths for index in indexes])
    return _native.TarMembers(keys, names.tolist(), first, begins, lengths, kinds.astype(np.int64))
