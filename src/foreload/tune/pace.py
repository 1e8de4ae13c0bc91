"""The pace of a loader that was measured, without what the start of its epochs took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foreload.record.stats import Stats

__all__ = ["choosing_seconds", "measured_pace", "start_seconds"]


def measured_pace(stats: Stats | Mapping[str, Any]) -> float:
    """Return the samples per second after the first batch of an epoch."""
    batches, epochs = stats["batches"], max(1, stats["epochs"])
    first = min(start_seconds(stats), 0.9 * stats["seconds"])
    if batches <= 2 * epochs:
        return float(stats["samples"] / stats["seconds"])
    return float(stats["samples"] * (1 - epochs / batches) / (stats["seconds"] - first))


def start_seconds(stats: Stats | Mapping[str, Any]) -> float:
    """Return the seconds until the first batches of all epochs, in the first of which workers are chosen."""
    seconds = stats["epochs"] * stats["first_batch_seconds"]
    return float(seconds if stats["epochs"] == 1 else seconds + choosing_seconds(stats))


def choosing_seconds(stats: Stats | Mapping[str, Any]) -> float:
    """Return the seconds that choosing the workers took, all in the first epoch."""
    return float(stats["workers"].get("choosing_seconds", 0.0))
