"""The comparison of worker processes that were chosen with the calling thread, as batches come in.

The choice was made by a short measurement before the first epoch. On a machine whose cores others use, workers
that should load a little faster than the calling thread may load many times slower: each batch waits until a
worker, and then the loop, gets a core.
"""

from __future__ import annotations

__all__ = ["Comparison"]

# Processes that give less than this share of what the calling thread was measured to give are compared with it.
_SHARE = 0.5

# The fewest batches that say anything, and the fewest seconds that the loop has waited for those of processes.
_MIN_BATCHES, _MIN_SECONDS = 8, 0.25


class Comparison:
    """Counts what the loop gets, while it waits, from processes and from the calling thread.

    Args:
        alone: samples per second that the calling thread was measured to load.

    >>> comparison = Comparison(alone=1000)
    >>> for _ in range(8): comparison.add(10, 0.1, here=False)
    >>> comparison.wants_trial
    True
    >>> for _ in range(8): comparison.add(10, 0.05, here=True)
    >>> comparison.decide()
    (True, 'it gave 200 samples/s while the loop waited for them, processes 100')
    """

    def __init__(self, alone: float) -> None:
        self._alone = alone
        self._batches, self._samples, self._seconds = [0, 0], [0, 0], [0.0, 0.0]  # of processes, of the thread
        self.is_over = False

    def add(self, samples: int, seconds: float, *, here: bool) -> None:
        """Count a batch that the loop waited for; not the first of an epoch, for which workers start."""
        self._batches[here] += 1
        self._samples[here] += samples
        self._seconds[here] += seconds

    def _rate(self, *, here: bool) -> float:
        return self._samples[here] / max(1e-9, self._seconds[here])

    @property
    def wants_trial(self) -> bool:
        """Whether the calling thread is to load some batches."""
        is_known = self._batches[False] >= _MIN_BATCHES and self._seconds[False] >= _MIN_SECONDS
        return not self.is_over and is_known and self._rate(here=False) < _SHARE * self._alone

    def decide(self) -> tuple[bool, str] | None:
        """Return once whether the calling thread loads faster, and the reason; None: too early, or said before."""
        if self.is_over or self._batches[True] < _MIN_BATCHES:
            return None
        self.is_over = True
        alone, together = self._rate(here=True), self._rate(here=False)
        why = f"it gave {alone:,.0f} samples/s while the loop waited for them, processes {together:,.0f}"
        return alone > together, why
