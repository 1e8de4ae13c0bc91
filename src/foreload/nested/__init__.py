"""The tensors and samples of a batch, however it is nested."""

from __future__ import annotations

from foreload.nested.counts import count_samples
from foreload.nested.likeness import is_like
from foreload.nested.moved import move
from foreload.nested.snapshots import snapshot
from foreload.nested.tensors import bytes_of, tensors

__all__ = ["bytes_of", "count_samples", "is_like", "move", "snapshot", "tensors"]
