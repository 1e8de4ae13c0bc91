"""What this process and the processes below it take: memory and time on cores."""

from __future__ import annotations

from typing import Any

import torch

from foreload.record.recorder import ended_children

__all__ = ["children_seconds", "idle_share", "tree_bytes"]

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


def idle_share(device: torch.device | None) -> float | None:
    """Give the share of the last moment (up to a second) in which nothing ran on the GPU.

    Args:
        device: which; None: the one in use.

    Returns:
        0 to 1; None where this process uses no GPU, or nvidia-ml-py is not there to ask it.
    """
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    try:
        busy = torch.cuda.utilization(device if device is not None and device.type == "cuda" else None)
    except (ImportError, RuntimeError):  # NVML's own errors are among them
        return None
    return 1 - busy / 100
