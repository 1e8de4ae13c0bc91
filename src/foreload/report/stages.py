"""The time of a loop, stage by stage, as shares of one whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from foreload.tune.costs import WORK

if TYPE_CHECKING:
    from foreload.record.stats import Stats


__all__ = ["StageTime", "stage_times"]


class StageTime(NamedTuple):
    """The time that a stage took.

    Attributes:
        stage: its name, as in ``stats["stages"]``; ``"loop"``: the loop's own work.
        share: of the loop's time (``stats["seconds"]``), 0 to 1. Workers run beside the loop and each other: of
            their stages, it is the share of that time that one worker spends, on average.
        seconds: of all workers together.
        cpu_seconds: the part of ``seconds`` on a core; 0 if it was not measured.
        samples: the samples that passed it.
        bytes: the bytes that it read or wrote.
    """

    stage: str
    share: float
    seconds: float
    cpu_seconds: float
    samples: int
    bytes: int


def stage_times(stats: Stats | Mapping[str, Any]) -> list[StageTime]:
    """List the stages that took time, in the order that samples pass them, and then what the loop did.

    The loop waits or works, so these two add up to its time. Without workers, the other stages are what it waits
    for; with workers, each worker's stages add up to the time that it was busy.

    >>> decode = {"count": 50, "seconds": 6.0, "cpu_seconds": 5.0, "samples": 5000, "bytes": 0}
    >>> stats = {"seconds": 4.0, "wait_seconds": 3.0, "loop_seconds": 1.0, "loop_cpu_seconds": 1.0,
    ...     "samples": 5000, "workers": {"count": 2}, "stages": {"decode": decode}}
    >>> [(time.stage, time.share) for time in stage_times(stats)]
    [('decode', 0.75), ('wait', 0.75), ('loop', 0.25)]
    """
    whole, workers = stats["seconds"], max(1, stats["workers"]["count"])
    if whole <= 0:
        return []
    stages: dict[str, Any] = dict(stats["stages"])
    # What the loop waits is more than the waits for batches: setting up an epoch, and copies that it waits for.
    waits = {"cpu_seconds": 0.0, "samples": stats["samples"], "bytes": 0, **stages.pop("wait", {})}
    waits["seconds"] = stats["wait_seconds"]
    device = stages.pop("device", None)
    stages |= {"wait": waits} if device is None else {"wait": waits, "device": device}
    stages["loop"] = {
        "seconds": stats["loop_seconds"],
        "cpu_seconds": stats["loop_cpu_seconds"],
        "samples": stats["samples"],
        "bytes": 0,
    }
    return [
        StageTime(
            name,
            min(1.0, entry["seconds"] / (whole * workers if name in WORK else whole)),
            entry["seconds"],
            min(entry["cpu_seconds"], entry["seconds"]),
            entry["samples"],
            entry["bytes"],
        )
        for name, entry in stages.items()
        if entry["seconds"] > 0
    ]
