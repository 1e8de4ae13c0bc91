"""The choice to make more batches ahead, if workers have nothing to do while the loop waits for one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

__all__ = ["Idleness"]

# Workers that take equally long are idle for moments too, and getting the memory of another batch takes time. So
# times count from this share of what a batch takes on, and are worth one if they are this share of all.
_LEAST_OF_BATCH, _LEAST_SHARE = 0.5, 0.02


class Idleness:
    """The time that workers had nothing to do while the loop waited for a batch of another one.

    Args:
        workers: the number of workers.
        clock: returns seconds.

    >>> now = iter([0.0, 1.0, 2.0, 2.0])
    >>> idleness = Idleness(2, clock=lambda: next(now))
    >>> idleness.is_much([0.01], batches=10, depth=4)  # in a second
    False
    >>> idleness.is_much([0.5], batches=20, depth=4)  # in two, in which a worker makes a batch in 0.2
    True
    """

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._workers, self._clock = workers, clock
        self._since, self._batches, self._seconds = clock(), 0, 0.0
        self._begins = 0  # the batch from which idle time counts

    def is_much(self, idle: Sequence[float], batches: int, depth: int) -> bool:
        """Add what workers were idle, and return whether it has come to much; if so, count anew.

        Args:
            idle: the seconds of each worker.
            batches: the number of batches that workers have made so far.
            depth: how many are made ahead; as many take longer, in new memory, when there are to be more.
        """
        if batches < self._begins:
            return False
        worked = (self._clock() - self._since) * self._workers
        per_batch = worked / max(1, batches - self._batches)
        self._seconds += sum(seconds for seconds in idle if seconds > _LEAST_OF_BATCH * per_batch)
        if self._seconds < max(per_batch, _LEAST_SHARE * worked):
            return False
        self._since, self._batches, self._seconds = self._clock(), batches, 0.0
        self._begins = batches + depth
        return True
