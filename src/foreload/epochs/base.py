"""One pass over a loader: asks for batches in order, keeps enough of them in the making, hands them on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from foreload.batch.assembly import Assembly, count
from foreload.batch.failure import EmptyBatch
from foreload.epochs.cursor import Order
from foreload.errors import warn_user
from foreload.nested import count_samples
from foreload.record.recorder import Watch, null_loop

if TYPE_CHECKING:
    from foreload.datasets.tensors import TensorAssembly


__all__ = ["Epoch", "GatherEpoch", "InlineEpoch", "warn_of_length"]


class Epoch(Iterator[Any]):
    """What ``iter(loader)`` gives."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._watch = order.watch
        self._loop = order.watch.loop
        self._lane = order.watch.lane.native
        self._together = 1  # batches that are given at once
        self._samples_of: Callable[[Any], int] = len if order.is_array else count
        self._watched = order.store is not None or order.memory.limit is not None

    def __len__(self) -> int:
        """Count the batches of the whole epoch."""
        return len(self._order)

    def __next__(self) -> Any:
        """Give the next batch.

        Raises:
            RuntimeError: it did not come within the timeout, or too many workers were killed.
        """
        order = self._order
        self._loop.mark_requested()
        while True:
            try:
                number, samples, take = self._next()
            except StopIteration:
                order.finished = True
                self._loop = order.loop = null_loop()
                self._watch.end()
                raise
            order.mark_delivered(number)
            failed = order.failed if order.skips else 0
            try:
                batch = take()
            except EmptyBatch:
                order.check_errors()
                continue
            order.check_errors()
            if self._watched:
                order.memory.observe_batch(batch, order.store)
            if order.skips:
                samples -= order.failed - failed
            self._loop.mark_delivered(samples, self._together)
            return batch

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        """Wait for a batch.

        Returns:
            the how-manieth that was asked for; the samples of it, or of all that are given together with it; what
            gives it, or raises what it failed by.
        """
        raise NotImplementedError

    def count_at_consumer(self) -> Watch:
        """Let somebody else tell the watch what the loop does, who is between the loop and this epoch."""
        self._loop = self._watch.count_at_consumer()
        return self._watch

    def close(self) -> None:
        """End the epoch early; its threads end and its buffers are free."""


class InlineEpoch(Epoch):
    """Makes each batch in the calling thread, when it is asked for."""

    def __init__(self, order: Order, assembly: Assembly) -> None:
        super().__init__(order)
        self._assembly = assembly

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        indices = next(self._order)
        number = self._order.num_drawn - 1

        def make() -> Any:
            batch = self._assembly.start(indices)
            batch.job.run_in(self._lane, number)
            return batch.take()

        return number, self._samples_of(indices), make


class GatherEpoch(Epoch):
    """Gathers several small batches of rows in one native call, in the calling thread."""

    _BYTES = 256 << 10
    _MOST = 32

    def __init__(self, order: Order, assembly: TensorAssembly) -> None:
        super().__init__(order)
        self._assembly = assembly
        self._ready: list[Any] = []
        self._asked: deque[Any] = deque()
        self._number = -1

    def __next__(self) -> Any:
        """Give the next batch."""
        # A small batch takes about as long as the calls that it would go through otherwise.
        if not self._ready or self._watched:
            return super().__next__()
        self._number += 1
        self._order.mark_delivered(self._number)
        return self._ready.pop()

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        samples, self._together = 0, 1
        if not self._ready and not self._asked:
            together = self._indices()
            try:
                samples = self._gather(together)
            except IndexError:
                # Only one of them has an index that is not there.
                self._asked.extend(together)
        self._number += 1
        if self._ready:
            return self._number, samples or count_samples(self._ready[-1]), self._ready.pop
        indices = self._asked.popleft()
        return self._number, len(indices), lambda: self._alone(indices)

    def _gather(self, together: list[Any]) -> int:
        """Gather batches; give how many samples are in those that are given together, as far as the clock goes."""
        batches = len(together)
        samples = (batches - 1) * len(together[0]) + len(together[-1])
        self._ready = list(self._assembly.gather(together))
        self._loop.gathered(samples, samples * self._assembly.sample_bytes, batches)
        self._ready.reverse()
        if self._watched:
            return 0
        self._together = batches
        self._watch.make_ready(self._ready, batches)
        return samples

    def count_at_consumer(self) -> Watch:
        """See :meth:`Epoch.count_at_consumer`."""
        self._watched = True  # one by one
        return super().count_at_consumer()

    def _alone(self, indices: Any) -> Any:
        (batch,) = self._assembly.gather([indices])
        return batch

    def _indices(self) -> list[Any]:
        first = next(self._order)
        if not isinstance(first, np.ndarray) and isinstance(first, Iterator):
            first = list(first)
        if not self._order.ready:
            return [first]
        size = max(1, len(first) * self._assembly.sample_bytes)
        most = min(self._loop.pays_together, self._MOST, self._BYTES // size, self._order.ready + 1)
        return [first, *islice(self._order, max(0, most - 1))]


def warn_of_length(dataset: Any, expected: int | None, given: int, workers: int) -> None:
    """Say it, as torch does, where a stream gives more than its length said."""
    if expected is not None and given > expected:
        warn_user(
            f"Length of IterableDataset {dataset} was reported to be {expected} (when accessing "
            f"len(dataloader)), but {given} samples have been fetched. "
            + ("Does each worker give its own part of the data only?" if workers else "")
        )
