"""Statistics of loaders as TensorBoard scalars."""

from __future__ import annotations

import math
import os
from typing import Any

from foreload.export.loaders import named
from foreload.export.logs import StatsLog, check_every
from foreload.record.stats import Stats

__all__ = ["log_tensorboard", "scalars"]


def log_tensorboard(loaders: Any, writer: Any, *, every: float | None = 10.0) -> StatsLog:
    """Write the statistics of a loader as TensorBoard scalars, each for the time since the point before it.

    Tags begin with the loader's name: ``loader/samples_per_second``, ``loader/wait_share``,
    ``loader/stages/decode`` (workers in that stage, on average) and so on; see :func:`scalars`. The step is the
    number of batches delivered.

    Args:
        loaders: a loader, or a dict of names and loaders.
        writer: a ``torch.utils.tensorboard.SummaryWriter`` (or anything with ``add_scalar``), which stays open; or
            a folder to write to.
        every: seconds between points; None: only when ``write()`` is called, for example every 100 batches.

    Returns:
        The log, as :func:`~foreload.export.log_stats` does.

    Raises:
        ImportError: a folder was given, and TensorBoard is not installed.
        ValueError, TypeError: an argument is invalid.

    >>> import foreload
    >>> class Writer:
    ...     def add_scalar(self, tag, value, step):
    ...         if tag == "loader/errors":
    ...             print(tag, value, step)
    >>> loader = foreload.DataLoader(list(range(10)), batch_size=5)
    >>> with log_tensorboard(loader, Writer(), every=None):
    ...     batches = list(loader)
    loader/errors 0.0 2
    """
    check_every(every)
    loaders = named(loaders)  # raises before a file is made
    own = isinstance(writer, (str, os.PathLike))
    if not own and not callable(getattr(writer, "add_scalar", None)):
        raise TypeError(f"writer must be a SummaryWriter or a folder, got {type(writer).__name__}")
    points = _Points(_summary_writer(writer) if own else writer)
    return StatsLog(loaders, points.write, points.writer.close if own else None, every=every)


def _summary_writer(folder: str | os.PathLike[str]) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("log_tensorboard needs TensorBoard: pip install tensorboard") from error
    return SummaryWriter(os.fspath(folder))


class _Points:
    def __init__(self, writer: Any) -> None:
        self.writer = writer
        self._before: dict[str, Stats] = {}

    def write(self, name: str, stats: Stats) -> None:
        for tag, value in scalars(stats, self._before.get(name)).items():
            self.writer.add_scalar(f"{name}/{tag}", value, stats["batches"])
        self._before[name] = stats
        flush = getattr(self.writer, "flush", None)
        if flush is not None:
            flush()


def scalars(now: Stats, before: Stats | None = None) -> dict[str, float]:
    """Return statistics as flat scalars; rates and shares are those since ``before``, earlier statistics of it."""
    seconds = now["seconds"] - _figure(before, "seconds")

    def rate(*path: str) -> float:
        return (_figure(now, *path) - _figure(before, *path)) / seconds if seconds > 0 else 0.0

    values = {
        "samples_per_second": rate("samples"),
        "batches_per_second": rate("batches"),
        "wait_share": rate("wait_seconds"),
        "first_batch_seconds": now["first_batch_seconds"],
        "read_mib_per_second": rate("bytes_read") / (1 << 20),
        "memory_mib": now["memory"]["tree_bytes"] / (1 << 20),
        "errors": now["errors"],
        "restarts": len(now["restarts"]),
        "workers": now["workers"]["count"],
    }
    values |= {f"batch_seconds/{which}": _figure(now, "batch_seconds", which) for which in now["batch_seconds"]}
    values |= {f"stages/{stage}": rate("stages", stage, "seconds") for stage in now["stages"]}
    if now["cache"] is not None:
        hits, misses = rate("cache", "hits"), rate("cache", "misses")
        values["cache_hit_rate"] = hits / (hits + misses) if hits + misses > 0 else 0.0
    if now["gpu"] is not None:
        values["gpu_idle_share"] = now["gpu"]["idle_share"]
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def _figure(stats: Any, *path: str) -> float:
    """Return a number from ``stats()``; 0 if it is missing, as for a cache that is not in use yet."""
    for key in path:
        stats = None if stats is None else stats[key]
    return 0.0 if stats is None else float(stats)
