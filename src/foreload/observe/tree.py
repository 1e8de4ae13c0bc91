"""What this process and the processes below it take: memory and time on cores."""

from __future__ import annotations

from typing import Any

from foreload.observe.record import ended_children

__all__ = ["children_seconds", "tree_bytes"]

# A process's beginning is known to the second.
_ROUNDING = 1.0


def tree_bytes(process: int | None = None) -> int:
    """Add up the memory of a process and all below it; what several share counts once (PSS).

    Args:
        process: its number; None: this process.

    Raises:
        psutil.NoSuchProcess: there is none.

    >>> tree_bytes() > 1 << 20
    True
    """
    import psutil

    own = psutil.Process(process)
    return _pss(own) + sum(_pss(child) for child in own.children(recursive=True))


def _pss(process: Any) -> int:
    import psutil

    try:
        used = process.memory_full_info()
        return int(getattr(used, "pss", used.rss))
    except psutil.AccessDenied:
        pass
    except (psutil.Error, OSError):  # it has just ended
        return 0
    try:
        return int(process.memory_info().rss)
    except (psutil.Error, OSError):
        return 0


def children_seconds(since: float, before: float) -> float:
    """Give the CPU seconds of processes below this one that were started since.

    Args:
        since: a time, as ``time.time()`` gives it.
        before: the seconds of those that had ended by then.
    """
    import psutil

    seconds = ended_children() - before
    for child in psutil.Process().children(recursive=True):
        try:
            if child.create_time() >= since - _ROUNDING:
                spent = child.cpu_times()
                seconds += spent.user + spent.system
        except (psutil.Error, OSError):  # it has just ended
            continue
    return max(0.0, seconds)
