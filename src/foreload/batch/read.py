"""Reading the bytes of a batch's samples, natively and into one piece of memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from foreload import _native
from foreload.batch.failure import SampleError, remaining_positions
from foreload.checks import Array
from foreload.options import OnError
from foreload.order.index import positions_of, require_nonempty
from foreload.protocol import Batch, BatchMemory, BatchOptions

__all__ = ["ReadAssembly", "read_samples"]


def read_samples(files: _native.Files, indices: Sequence[int], lengths: Array) -> tuple[Array, Array]:
    """Return the bytes of several samples of these lengths, read in this thread.

    Returns:
        memory (uint8) and starts (int64): sample ``indices[i]`` is ``memory[starts[i]:starts[i + 1]]``.

    Raises:
        OSError, DecodeError: the first failure, naming the sample.
    """
    positions = np.asarray(indices, np.int64)
    starts = _starts(lengths)
    memory = np.empty(int(starts[-1]), np.uint8)
    if not len(positions):
        return memory, starts
    job = _native.ReadJob(files, positions, starts, memory)
    job.run_here()
    remaining_positions(job.failures(), positions, "raise", [], lambda index: os.fsdecode(files.path(index)))
    return memory, starts


def _starts(lengths: Array) -> Array:
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


class ReadAssembly:
    """Batches of files, or parts of shards, as they are; see :class:`foreload.protocol.Assembly`.

    Args:
        files: the files or shards.
        lengths: bytes of each sample (int64).
        present: makes the batch of ``(memory, starts, indices)``: the bytes of sample ``indices[i]`` are
            ``memory[starts[i]:starts[i + 1]]``.
        buffers: memory for the batches.
        spec: options of the loader; None: errors are raised.
    """

    depth: int | None = None

    def __init__(
        self,
        files: _native.Files,
        lengths: Array,
        present: Callable[[Array, Array, Array], Any],
        buffers: BatchMemory,
        spec: BatchOptions | None = None,
    ) -> None:
        self._files = files
        self._lengths = lengths
        self._present = present
        self._buffers = buffers
        self._on_error: OnError = "raise" if spec is None else spec.on_error
        self._errors: list[SampleError] = [] if spec is None else spec.errors

    def start(self, indices: Any) -> Batch:
        """See :class:`~foreload.protocol.Assembly`."""
        positions = require_nonempty(positions_of(indices, len(self._lengths)))
        starts = _starts(self._lengths[positions])
        memory = self._buffers.take_bytes(max(1, int(starts[-1])))[: starts[-1]]
        job = _native.ReadJob(self._files, positions, starts, memory)

        def take() -> Any:
            failures = job.failures()
            if not failures:
                return self._present(memory, starts, positions)
            chosen = remaining_positions(failures, positions, self._on_error, self._errors, self._path)
            pieces = [memory[starts[i] : starts[i + 1]] for i in chosen]
            ends = np.cumsum([0, *map(len, pieces)])
            return self._present(np.concatenate(pieces), ends, positions[chosen])

        return Batch(job, take)

    def _path(self, index: int) -> str:
        return os.fsdecode(self._files.path(index))
