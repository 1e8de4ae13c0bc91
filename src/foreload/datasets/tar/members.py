"""The members of samples in tar shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from foreload.checks import Array
from foreload.datasets.tar.shards import ShardIndex

__all__ = ["Members"]


class Members:
    """A table of where the members of samples lie, for look-ups of many samples at once.

    Attributes:
        first: the first member of each sample, then the count of members (int64).
        lengths: of each member, in bytes (int64).
    """

    def __init__(self, indexes: Sequence[ShardIndex]) -> None:
        before = np.cumsum([0, *(len(index.names) for index in indexes)], dtype=np.int64)
        firsts = [index.first[:-1] + start for index, start in zip(indexes, before, strict=False)]
        self.first: Array = np.concatenate([*firsts, before[-1:]])
        self.lengths: Array = np.concatenate([index.lengths for index in indexes])
        self._keys = [key for index in indexes for key in index.keys]
        offsets = np.concatenate([index.offsets for index in indexes])
        # Offsets from the start of the sample.
        counts = np.diff(self.first)
        self._begins: Array = offsets - np.repeat(offsets[self.first[:-1]], counts)
        self._names, self._kinds = np.unique(
            [name for index in indexes for name in index.names], return_inverse=True
        )

    def of(self, samples: Sequence[int]) -> Iterator[tuple[str, list[str], list[int], list[int]]]:
        """Yield for each sample its key, its members' fields, and the bytes where they begin and end in it."""
        chosen = np.asarray(samples, np.int64) % len(self._keys)
        low = self.first[chosen]
        counts = self.first[chosen + 1] - low
        cuts = np.cumsum(counts)
        members = np.repeat(low - (cuts - counts), counts) + np.arange(cuts[-1] if len(cuts) else 0)
        begins = self._begins[members]
        ends = (begins + self.lengths[members]).tolist()
        names = self._names[self._kinds[members]].tolist()
        begins = begins.tolist()
        at = 0
        for sample, cut in zip(chosen.tolist(), cuts.tolist(), strict=True):
            yield self._keys[sample], names[at:cut], begins[at:cut], ends[at:cut]
            at = cut
