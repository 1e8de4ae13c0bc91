"""A monitor around any loop: how fast batches arrive, and the memory and CPU time used meanwhile."""

from __future__ import annotations

import os
import time
from typing import Any

from foreload.checks import check_bool
from foreload.machine import granted_cores
from foreload.nested import count_samples
from foreload.record.memory import MemoryMonitor

__all__ = ["DataLoaderPerformanceMonitor"]

# Seconds between two readings of memory and of child processes, which take about a millisecond.
_READING_INTERVAL = 0.5


class DataLoaderPerformanceMonitor:
    """Measures a loop over batches from any loader.

    Call :meth:`start_iteration` before an epoch and :meth:`update_batch` with every batch. To measure only a part
    of the loop, call ``start_iteration`` before every batch: the time from ``start_iteration``, or from the batch
    before, to ``update_batch`` counts. No batch is kept.

    Args:
        memory: the monitor of the memory; by default a new one.
        watch: False measures time only.

    Raises:
        TypeError: an argument is of another type.

    >>> import torch
    >>> monitor = DataLoaderPerformanceMonitor()
    >>> monitor.start_iteration()
    >>> for batch in torch.utils.data.DataLoader(range(10), batch_size=4):
    ...     monitor.update_batch(batch)
    >>> stats = monitor.get_stats()
    >>> stats["total_batches"], stats["total_samples"], stats["batches_per_second"] > 0
    (3, 10, True)
    """

    def __init__(self, memory: MemoryMonitor | None = None, *, watch: bool = True) -> None:
        check_bool("watch", watch)
        if memory is not None and not isinstance(memory, MemoryMonitor):
            raise TypeError(f"memory must be a MemoryMonitor or None, got {type(memory).__name__}")
        self.memory = (MemoryMonitor() if memory is None else memory) if watch else None
        self._batches = self._samples = 0
        self._seconds = self._longest = self._own_cpu = 0.0
        self._shortest = float("inf")
        self._since: tuple[float, float] | None = None
        self._read_at = float("-inf")
        self._children: tuple[float, float] | None = None  # their CPU seconds at the first and the last reading

    def start_iteration(self) -> None:
        """Start the clock."""
        self._read()
        self._since = time.perf_counter(), time.process_time()

    def update_batch(self, batch: Any = None) -> None:
        """Count a batch that has just arrived.

        Args:
            batch: the batch, whose samples are counted; None counts the batch only.

        Raises:
            RuntimeError: :meth:`start_iteration` was not called before.
        """
        if self._since is None:
            raise RuntimeError("call start_iteration() before the first update_batch()")
        now = time.perf_counter(), time.process_time()
        seconds = now[0] - self._since[0]
        self._seconds += seconds
        self._own_cpu += now[1] - self._since[1]
        self._longest = max(self._longest, seconds)
        self._shortest = min(self._shortest, seconds)
        self._batches += 1
        self._samples += 0 if batch is None else count_samples(batch)
        self._read()
        self._since = now

    def _read(self, *, now: bool = False) -> None:
        if self.memory is None or (not now and time.perf_counter() - self._read_at < _READING_INTERVAL):
            return
        self._read_at = time.perf_counter()
        self.memory.update()
        seconds = _seconds_of_children()
        self._children = (seconds if self._children is None else self._children[0], seconds)

    def get_stats(self) -> dict[str, float]:
        """Return what was measured so far.

        Returns:
            ``total_batches``, ``total_samples``; ``total_time``, ``avg_batch_time``, ``min_batch_time``,
            ``max_batch_time`` in seconds, including the loop's own work; ``batches_per_second``,
            ``samples_per_second``; ``avg_memory_usage`` and ``peak_memory_usage``, the percentage of the memory
            that this process may use which is in use, by all processes; ``avg_cpu_usage``, the percentage of the
            cores that this process may use which it and its worker processes kept busy. Whatever was not
            measured is 0.
        """
        memory = {"average_percent": 0.0, "peak_percent": 0.0}
        if self.memory is not None and self._batches:
            self._read(now=True)
            memory = self.memory.get_memory_stats()
        first, last = self._children or (0.0, 0.0)
        seconds = max(self._seconds, 1e-9)
        return {
            "total_batches": self._batches,
            "total_samples": self._samples,
            "total_time": self._seconds,
            "avg_batch_time": self._seconds / max(1, self._batches),
            "min_batch_time": self._shortest if self._batches else 0.0,
            "max_batch_time": self._longest,
            "batches_per_second": self._batches / seconds,
            "samples_per_second": self._samples / seconds,
            "avg_memory_usage": memory["average_percent"],
            "peak_memory_usage": memory["peak_percent"],
            "avg_cpu_usage": 0.0
            if self.memory is None
            else 100 * (self._own_cpu + last - first) / seconds / granted_cores(),
        }


def _seconds_of_children() -> float:
    """Return the CPU seconds of worker processes, those that run and those that have ended."""
    import psutil

    ended = os.times()
    seconds = ended.children_user + ended.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            spent = child.cpu_times()
        except psutil.Error:  # it has just ended
            continue
        seconds += spent.user + spent.system
    return seconds
