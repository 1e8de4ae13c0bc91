"""The headers of members, by which a shard is recognised as the one that was indexed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from foreload.checks import Array
from foreload.datasets.tar.shards import LABEL_BYTES, ShardIndex, read_label

__all__ = ["HeaderEntry", "Headers", "agrees"]


class HeaderEntry(NamedTuple):
    """The place of a header in a shard, with the label behind it if it is the header of a label.

    Attributes:
        shard, start: of the header's first byte.
        header: its length, with those of the records that precede it.
        check: its CRC-32.
        content: the length of what is to be compared with ``label``; 0 if it is not a label.
        label: of the sample.
    """

    shard: int
    start: int
    header: int
    check: int
    content: int
    label: int

    @property
    def length(self) -> int:
        """The bytes to read."""
        return self.header + self.content

    def is_in(self, data: Any) -> bool:
        """Whether these bytes, read from there, are what was indexed."""
        if zlib.crc32(data[: self.header]) != self.check:
            return False
        return not self.content or read_label(bytes(data[self.header :])) == self.label


class Headers:
    """The headers of the members of several shards, as their indexes have them."""

    def __init__(self, indexes: Sequence[ShardIndex]) -> None:
        before = np.cumsum([0, *(len(index.names) for index in indexes)], dtype=np.int64)
        firsts = [index.first[:-1] + start for index, start in zip(indexes, before, strict=False)]
        self._first: Array = np.concatenate([*firsts, before[-1:]])
        self._shards = np.repeat(np.arange(len(indexes)), [len(index) for index in indexes])
        self._labels = np.concatenate([index.labels for index in indexes])
        is_label = [np.array([name == "cls" for name in index.names], bool) for index in indexes]
        sizes = np.concatenate([index.lengths for index in indexes])
        lengths = np.concatenate([index.header_lengths for index in indexes])
        offsets = np.concatenate([index.offsets for index in indexes])
        checks = np.concatenate([index.header_checks for index in indexes])
        content = np.where(np.concatenate(is_label), np.minimum(sizes, LABEL_BYTES), 0)
        self._rows: Array = np.stack([offsets - lengths, lengths, checks.astype(np.int64), content], axis=1)

    def of(self, samples: Sequence[int]) -> Iterator[list[HeaderEntry]]:
        """Yield for each sample the places of its members' headers."""
        for sample in samples:
            rows = self._rows[self._first[sample] : self._first[sample + 1]].tolist()
            shard, label = int(self._shards[sample]), int(self._labels[sample])
            yield [
                HeaderEntry(shard, start, header, check, content, label) for start, header, check, content in rows
            ]


def agrees(index: ShardIndex, count: int, read: Any) -> bool:
    """Whether a shard is the one that was indexed, by the headers and labels of some samples.

    Args:
        index: of the shard.
        count: of the samples, which lie evenly between the first and the last.
        read: returns what lies at these places of the shard.
    """
    samples = np.unique(np.linspace(0, len(index) - 1, count).astype(np.int64))
    places = [place for sample in Headers([index]).of(samples.tolist()) for place in sample]
    return all(place.is_in(data) for place, data in zip(places, read(places), strict=True))
