"""Files in which the threads of a script recorded what they did."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from foreload.cli.profile.inside.lanes import (
    COUNTERS,
    EPOCHS,
    SPAN_NUMBERS,
    STAGE_COUNTERS,
    STAGES,
    start_of,
)
from foreload.record.spans import SPAN

__all__ = ["LaneFile", "LaneName"]


class LaneName(NamedTuple):
    """Name of a thread in a trace.

    Attributes:
        name: such as ``"worker 123"``.
        kind: ``"consumer"``, ``"thread"`` or ``"process"``.
    """

    name: str
    kind: str


class LaneFile:
    """The numbers in one thread's file.

    Attributes:
        counters: counters by name.
        stages: array of [stage, counter].
        epochs: array of [epoch, (begin, last batch)] in ns, of the last epochs.
    """

    def __init__(self, path: Path) -> None:
        numbers = np.fromfile(path, np.uint64)
        self.name = path.name
        self.counters = dict(zip(COUNTERS, map(int, numbers), strict=False))
        first = start_of(STAGES[0])
        size = len(STAGES) * len(STAGE_COUNTERS)
        self.stages = numbers[first : first + size].reshape(len(STAGES), -1).astype(np.int64)
        epochs = numbers[start_of("epochs") : start_of("epochs") + 2 * EPOCHS].reshape(-1, 2)
        self.epochs = epochs[epochs[:, 0] > 0]
        self._rows = numbers[start_of("spans") :].reshape(-1, SPAN_NUMBERS)[: self.counters["spans"]]

    def spans(self, lane: int) -> npt.NDArray[Any]:
        """Return the recorded spans, as spans of the given lane."""
        spans = np.zeros(len(self._rows), SPAN)
        spans["lane"] = lane
        spans["stage"] = self._rows[:, 0] & 0xFF
        spans["batch"] = self._rows[:, 0] >> 8
        for place, name in enumerate(("samples", "bytes", "begin", "end"), 1):
            spans[name] = self._rows[:, place]
        return spans

    @property
    def is_pinning(self) -> bool:
        """Whether this is the thread that pins memory; of a loop's file, that cannot be asked."""
        process, thread = self.name.split("-")[:2]
        return process != thread
