"""The memory that this process may use, and how much of it is in use."""

from __future__ import annotations

import warnings
from typing import SupportsIndex

from foreload.checks import check_int, check_share
from foreload.machine import available_memory, granted_memory

__all__ = ["MemoryMonitor"]

_GIB = 1 << 30


class MemoryMonitor:
    """Watches the memory that this process may use: its container's, if one limits it (cgroup v1, v2).

    The page cache counts as available, because the kernel gives it up when memory is needed.

    Args:
        max_memory_usage: the share of the memory that may be in use, above 0 and at most 1. When more is,
            :meth:`update` warns, once.

    Raises:
        ValueError: ``max_memory_usage`` is not such a share.

    >>> monitor = MemoryMonitor()
    >>> monitor.start_monitoring()
    >>> monitor.update()["percent"] <= monitor.get_memory_stats()["peak_percent"] <= 100
    True
    >>> monitor.check_memory_constraint(1 << 60)
    False
    """

    def __init__(self, max_memory_usage: float = 1.0) -> None:
        self.max_memory_usage = check_share(max_memory_usage)
        self._warned = False
        self.start_monitoring()

    def start_monitoring(self) -> None:
        """Forget the peak and the average so far."""
        self._readings = 0
        self._sum = self._peak = 0

    def update(self) -> dict[str, float]:
        """Read the memory now, and return it.

        Returns:
            ``used_gb``, ``available_gb`` and ``total_gb`` in GiB (2**30 bytes); ``percent`` used, of 100.
        """
        total = granted_memory()
        available = available_memory()
        used = total - available
        self._readings += 1
        self._sum += used
        self._peak = max(self._peak, used)
        if used > self.max_memory_usage * total and not self._warned:
            self._warned = True
            warnings.warn(
                f"{used / _GIB:.1f} of the {total / _GIB:.1f} GiB of memory that this process may use are in use, "
                f"more than max_memory_usage={self.max_memory_usage:g} allows; use fewer workers, a smaller "
                "batch_size or cache, or give the container more memory",
                stacklevel=2,
            )
        return {
            "used_gb": used / _GIB,
            "available_gb": available / _GIB,
            "total_gb": total / _GIB,
            "percent": 100 * used / total,
        }

    def get_memory_stats(self) -> dict[str, float]:
        """Read the memory now, and return what :meth:`update` returns and a summary since the start.

        Returns:
            Also ``peak_gb``, ``average_gb``, ``peak_percent``, ``average_percent``; and ``readings``, the
            number of readings.
        """
        now = self.update()
        average = self._sum / self._readings
        return {
            **now,
            "peak_gb": self._peak / _GIB,
            "average_gb": average / _GIB,
            "peak_percent": 100 * self._peak / granted_memory(),
            "average_percent": 100 * average / granted_memory(),
            "readings": self._readings,
        }

    def check_memory_constraint(self, required_bytes: SupportsIndex = 0) -> bool:
        """Return whether ``required_bytes`` more can be taken without exceeding ``max_memory_usage``.

        Raises:
            ValueError, TypeError: ``required_bytes`` is negative or not an int.
        """
        wanted = check_int("required_bytes", required_bytes, 0)
        total = granted_memory()
        return total - available_memory() + wanted <= self.max_memory_usage * total
