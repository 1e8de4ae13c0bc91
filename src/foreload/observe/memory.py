"""How much memory there is, is used, and was used at most."""

from __future__ import annotations

import operator
import warnings
from typing import SupportsIndex

from foreload.machine import available_memory, granted_memory

__all__ = ["MemoryMonitor"]

_GIB = 1 << 30


class MemoryMonitor:
    """Watches the memory that this process may use: the container's where one limits it (cgroup v1, v2).

    What the kernel keeps of files counts as available, since it gives that up when it is needed.

    Args:
        max_memory_usage: the share of the memory that may be used, above 0 and at most 1. If more is,
            :meth:`update` says so in a warning, once.

    Raises:
        ValueError: it is not such a share.

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
        """Begin anew: peak and average are of what comes from here on."""
        self._readings = 0
        self._sum = self._peak = 0

    def update(self) -> dict[str, float]:
        """Look at the memory, and give what there is now.

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
        """Look at the memory, and give what :meth:`update` gives, with what was seen since the start.

        Returns:
            Also ``peak_gb``, ``average_gb``, ``peak_percent``, ``average_percent``; and ``readings``, how often
            somebody looked.
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
        """Tell whether so many bytes more can be taken with no more than ``max_memory_usage`` in use then.

        Raises:
            ValueError, TypeError: ``required_bytes`` is negative, or no int.
        """
        if isinstance(required_bytes, bool) or not hasattr(required_bytes, "__index__"):
            raise TypeError(f"required_bytes must be an int, got {required_bytes!r}")
        wanted = operator.index(required_bytes)
        if wanted < 0:
            raise ValueError(f"required_bytes must be 0 or more, got {wanted}")
        total = granted_memory()
        return total - available_memory() + wanted <= self.max_memory_usage * total


def check_share(share: float) -> float:
    """Give ``max_memory_usage``; raise ValueError or TypeError unless it is above 0 and at most 1."""
    if isinstance(share, bool) or not isinstance(share, (int, float)):
        raise TypeError(f"max_memory_usage must be a number above 0 and at most 1, got {share!r}")
    if not 0 < share <= 1:
        raise ValueError(f"max_memory_usage is a share, above 0 and at most 1, got {share}")
    return float(share)
