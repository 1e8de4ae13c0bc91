"""Samples in tar shards: by an index in any order, or as a stream."""

from foreload.datasets.tar.dataset import Shards, TarDataset
from foreload.datasets.tar.stream import TarStream

__all__ = ["Shards", "TarDataset", "TarStream"]
