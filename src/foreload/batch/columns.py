"""Batches of datasets that load most of a batch as a whole, column by column."""

from __future__ import annotations

from typing import Any

import numpy as np

from foreload.batch.samples import SampleAssembly
from foreload.protocol import Batch, BatchMemory, BatchOptions

__all__ = ["ColumnAssembly"]


class ColumnAssembly(SampleAssembly):
    """Batches of a dataset whose ``__getitems__`` makes most of them as a whole.

    Args:
        spec: options of the loader.
        dataset: returns a :class:`~foreload.batch.collated.Collated`, or else samples, of a list of indices.
        buffers: memory for the batches.

    Attributes:
        in_memory: whether the loop may write to the memory that samples lie in, so that none may be made ahead.
    """

    in_memory = False

    def __init__(self, spec: BatchOptions, dataset: Any, buffers: BatchMemory) -> None:
        super().__init__(spec, dataset, 1, buffers, arrays=False)

    def start(self, indices: Any) -> Batch:
        """See :class:`~foreload.protocol.Assembly`."""
        return super().start(indices.tolist() if isinstance(indices, np.ndarray) else list(indices))
