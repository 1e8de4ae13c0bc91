"""How fast batches come, around any loop, and what that takes of memory and processors."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from foreload.machine import granted_cores
from foreload.observe.memory import MemoryMonitor

__all__ = ["DataLoaderPerformanceMonitor", "MemoryMonitor", "count_samples"]

# Seconds between two looks at memory and at other processes, which take about a millisecond.
_EVERY = 0.5


class DataLoaderPerformanceMonitor:
    """Measures a loop over batches, whatever makes them.

    Call :meth:`start_iteration` before an epoch and :meth:`update_batch` with every batch; or
    ``start_iteration`` before every batch, where only a part of the loop is to be measured: what counts is the
    time from ``start_iteration``, or from the batch before, to ``update_batch``. No batch is kept.

    Args:
        memory: what looks at the memory; by default a monitor of its own.
        watch: False: measure time only.

    >>> monitor = DataLoaderPerformanceMonitor()
    >>> monitor.start_iteration()
    >>> for batch in torch.utils.data.DataLoader(range(10), batch_size=4):
    ...     monitor.update_batch(batch)
    >>> stats = monitor.get_stats()
    >>> stats["total_batches"], stats["total_samples"], stats["batches_per_second"] > 0
    (3, 10, True)
    """

    def __init__(self, memory: MemoryMonitor | None = None, *, watch: bool = True) -> None:
        self.memory = (MemoryMonitor() if memory is None else memory) if watch else None
        self._batches = self._samples = 0
        self._seconds = self._longest = self._own_cpu = 0.0
        self._shortest = float("inf")
        self._since: tuple[float, float] | None = None
        self._looked = float("-inf")
        self._children: tuple[float, float] | None = None  # their CPU seconds at the first look and the last

    def start_iteration(self) -> None:
        """Let the time run from here."""
        self._look()
        self._since = time.perf_counter(), time.process_time()

    def update_batch(self, batch: Any = None) -> None:
        """Count a batch that has just come.

        Args:
            batch: its samples are counted; None: only the batch is.

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
        self._look()
        self._since = now

    def _look(self, *, now: bool = False) -> None:
        if self.memory is None or (not now and time.perf_counter() - self._looked < _EVERY):
            return
        self._looked = time.perf_counter()
        self.memory.update()
        seconds = _seconds_of_children()
        self._children = (seconds if self._children is None else self._children[0], seconds)

    def get_stats(self) -> dict[str, float]:
        """Give what was measured so far.

        Returns:
            ``total_batches``, ``total_samples``; ``total_time``, ``avg_batch_time``, ``min_batch_time``,
            ``max_batch_time`` in seconds, with the loop's own work; ``batches_per_second``,
            ``samples_per_second``; ``avg_memory_usage`` and ``peak_memory_usage``, percent of the memory that
            this process may use, by all that runs there; ``avg_cpu_usage``, percent of the cores that this
            process may use, by it and its worker processes. 0 where nothing was measured.
        """
        memory = {"average_percent": 0.0, "peak_percent": 0.0}
        if self.memory is not None and self._batches:
            self._look(now=True)
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
    """Give the CPU time of worker processes, those that run and those that have ended."""
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


def count_samples(batch: Any) -> int:
    """Count the samples of a batch: the rows of its first tensor or array, or the entries of a list of samples.

    >>> count_samples({"ids": torch.zeros(4, 9), "length": torch.zeros(4)}), count_samples(["a", "b", "c"])
    (4, 3)
    """
    found = _rows(batch)
    return 1 if found is None else found


def _rows(batch: Any) -> int | None:
    """Count the rows of a field of a batch; None where it has none, such as a single number."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return int(batch.shape[0]) if batch.ndim else None
    if isinstance(batch, torch.nn.utils.rnn.PackedSequence):
        return int(batch.batch_sizes[0])
    if isinstance(batch, Mapping):
        return _first(batch.values())
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _first(getattr(batch, field.name) for field in dataclasses.fields(batch))
    if isinstance(batch, (list, tuple)):
        return _rows_of_sequence(batch)
    if isinstance(batch, (str, bytes)) or not hasattr(batch, "__len__"):
        return None
    return len(batch)


def _first(fields: Any) -> int | None:
    return next((rows for field in fields if (rows := _rows(field)) is not None), None)


def _rows_of_sequence(batch: Any) -> int | None:
    # default_collate makes lists of tuples: a list of tuples or dicts is one of samples that were not collated.
    if isinstance(batch, list) and batch and all(isinstance(sample, (tuple, Mapping)) for sample in batch):
        return len(batch)
    if type(batch) is tuple and batch and all(type(field) is tuple for field in batch):
        return len(batch[0])  # tuple(zip(*samples)), as for detection
    rows = [_rows(field) for field in batch]
    kinds = {(field.ndim, field.dtype) if hasattr(field, "ndim") else type(field) for field in batch}
    if set(rows) <= {None} or (len(kinds) == 1 and len(set(rows)) > 1):
        return len(batch)  # numbers, texts, or tensors of different lengths
    return _first(batch)
