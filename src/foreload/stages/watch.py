"""Whether what is asked for is what was foreseen."""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

__all__ = ["Watch"]

Array = np.ndarray[Any, Any]

# So many requests in a row that were not foreseen are no accident.
_SURPRISES = 16


class Watch:
    """Compares what one worker is asked for with what was foreseen.

    A worker gets whole batches, so its requests follow the foreseen ones by steps of one, and of a number that
    depends on batch size and workers between batches.
    """

    def __init__(self, accesses: Array, samples: int) -> None:
        self._accesses = accesses
        self._samples = samples
        self._at = -1
        self._jump = 1
        self._surprises = 0
        self._before: deque[int] = deque(maxlen=1)

    @cached_property
    def _places(self) -> tuple[Array, Array]:
        """The positions of all samples, and where each sample's begin."""
        order = np.argsort(self._accesses, kind="stable")
        return order, np.searchsorted(self._accesses[order], np.arange(self._samples + 1))

    def is_surprised(self, sample: int) -> bool:
        """Take note of a request; True once there have been too many others than foreseen."""
        accesses = self._accesses
        info = get_worker_info()
        steps = {1, self._jump, 1 if info is None else info.num_workers}
        for step in steps:
            if self._at + step < len(accesses) and accesses[self._at + step] == sample:
                return self._follow(self._at + step, sample, -1)
        order, begins = self._places
        places = order[begins[sample] : begins[sample + 1]]
        for before in self._before:
            for step in steps:
                known = places[(places >= step) & (accesses[places - step] == before)]
                if len(known):
                    return self._follow(int(known[0]), sample, -1)
        later = places[places > self._at]
        if len(later):
            self._jump = int(later[0]) - self._at
        return self._follow(int(later[0]) if len(later) else self._at, sample, 1)

    def _follow(self, position: int, sample: int, surprise: int) -> bool:
        self._at = position
        self._before.append(sample)
        self._surprises = max(0, self._surprises + surprise)
        return self._surprises >= _SURPRISES
