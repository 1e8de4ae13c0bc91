"""Epochs without workers: the calling thread makes batches, one by one or several small ones at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from foreload.batch.progress import BEGUN, StatefulSamples
from foreload.datasets.tensors import TensorAssembly
from foreload.epochs.base import Epoch, EpochSpec
from foreload.nested import count_samples
from foreload.protocol import Assembly
from foreload.record.recorder import Watch

__all__ = ["GatherEpoch", "InlineEpoch"]


class InlineEpoch(Epoch):
    """Makes each batch in the calling thread, when it is requested."""

    def __init__(self, spec: EpochSpec, assembly: Assembly) -> None:
        super().__init__(spec)
        self._assembly = assembly
        cursor = spec.cursor
        progress, arrays = cursor.streams.get(0, BEGUN), cursor.order.is_array
        source = cursor.restore(lambda: StatefulSamples.of(spec.dataset, progress, self._load, arrays=arrays))
        if source is not None:
            cursor.live = source.state

    def _load(self, indices: Any) -> Any:
        batch = self._assembly.start(indices)
        batch.job.run_here()
        return batch.take()

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        indices = self._draw()
        number = self._order.num_drawn - 1

        def make() -> Any:
            batch = self._assembly.start(indices)
            batch.job.run_in(self._lane, number)
            return batch.take()

        return number, self._samples_of(indices), make


class GatherEpoch(Epoch):
    """Gathers several small batches of rows in one native call, in the calling thread."""

    _MAX_BYTES = 256 << 10
    _MAX_BATCHES = 32

    def __init__(self, spec: EpochSpec, assembly: TensorAssembly) -> None:
        super().__init__(spec)
        self._assembly = assembly
        self._ready: list[Any] = []
        self._pending: deque[Any] = deque()
        self._number = -1
        self._one_by_one = self._watches_memory

    def __next__(self) -> Any:
        """Return the next batch."""
        # A small batch takes no longer than the calls of the general way would.
        if not self._ready or self._one_by_one:
            return super().__next__()
        self._number += 1
        self._mark_delivered(self._number)
        return self._ready.pop()

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        samples, self._together = 0, 1
        if not self._ready and not self._pending:
            together = self._indices()
            try:
                samples = self._gather(together)
            except IndexError:
                # One of these batches has an index out of range; the others are still delivered.
                self._pending.extend(together)
        self._number += 1
        if self._ready:
            return self._number, samples or count_samples(self._ready[-1]), self._ready.pop
        indices = self._pending.popleft()
        return self._number, len(indices), lambda: self._alone(indices)

    def _gather(self, together: list[Any]) -> int:
        """Gather batches; return the number of samples to count together, 0 if batches are counted one by one."""
        batches = len(together)
        samples = (batches - 1) * len(together[0]) + len(together[-1])
        self._ready = list(self._assembly.gather(together))
        self._loop.gathered(samples, samples * self._assembly.sample_bytes, batches)
        self._ready.reverse()
        if self._one_by_one:
            return 0
        self._together = batches
        self._watch.make_ready(self._ready, batches)
        return samples

    def count_at_consumer(self) -> Watch:
        """See :meth:`Epoch.count_at_consumer`."""
        self._one_by_one = True
        return super().count_at_consumer()

    def _alone(self, indices: Any) -> Any:
        (batch,) = self._assembly.gather([indices])
        return batch

    def _indices(self) -> list[Any]:
        first = self._draw()
        if not isinstance(first, np.ndarray) and isinstance(first, Iterator):
            first = list(first)
        if not self._order.ready:
            return [first]
        size = max(1, len(first) * self._assembly.sample_bytes)
        num_batches = min(
            self._loop.pays_together, self._MAX_BATCHES, self._MAX_BYTES // size, self._order.ready + 1
        )
        return [first, *islice(self._order, max(0, num_batches - 1))]
