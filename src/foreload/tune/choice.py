"""The workers that are chosen for a loader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foreload.dataset_state.probes.fills import Fills
from foreload.options import WorkerKind

__all__ = ["Choice"]


@dataclass(frozen=True)
class Choice:
    """The workers that load the samples.

    Attributes:
        kind: threads or processes.
        count: their number; 0: the calling thread loads.
        why: the reason, in words.
        rates: samples per second that were measured.
        seconds: the time that measuring took.
        is_pure: whether loading was seen to change nothing in the dataset.
        made_of: the objects that the dataset, and what is applied to its samples, were made of then.
        is_open: whether other workers might be chosen at another time or place.
        fills: hashes of what loading makes where nothing was, whichever sample is the first.
    """

    kind: WorkerKind
    count: int
    why: str
    rates: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    is_pure: bool = False
    made_of: dict[str, Any] = field(default_factory=dict, repr=False)
    is_open: bool = False
    fills: Fills = field(default_factory=dict, repr=False)
