"""Memory, CPU time and GPU use of this process and its children."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from foreload._torch import only_cuda_device
from foreload.record.recorder import ended_children

__all__ = ["children_queued", "children_seconds", "idle_share", "queued_seconds", "tree_bytes"]

# The kernel gives the start time of a process to the second.
_START_TIME_ROUNDING = 1.0


def tree_bytes(process: int | None = None) -> int:
    """Return the memory of a process and its children, in bytes; shared memory counts once (PSS).

    Args:
        process: its id; None: this process.

    Raises:
        psutil.NoSuchProcess: there is no such process.

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
    """Return the CPU seconds of this process's children that started after a given time.

    Args:
        since: that time, as from ``time.time()``.
        before: the CPU seconds of children that had ended by then.
    """
    import psutil

    seconds = ended_children() - before
    for child in _children(since):
        with suppress(psutil.Error, OSError):  # it has just ended
            spent = child.cpu_times()
            seconds += spent.user + spent.system
    return max(0.0, seconds)


def children_queued(since: float) -> float:
    """Return how long this process's children that started after a given time, and still run, had no core.

    Args:
        since: that time, as from ``time.time()``.
    """
    return sum(queued_seconds(child.pid) for child in _children(since))


def _children(since: float) -> Iterator[Any]:
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError):
            if child.create_time() >= since - _START_TIME_ROUNDING:
                yield child


def queued_seconds(process: int | str) -> float:
    """Return the seconds in which the main thread of a process was ready to run, but had no core.

    For ``"thread-self"``, that is the calling thread.

    The process may have ended, if nobody has waited for it yet. If the system does not say, it is 0.
    """
    try:
        _, queued, _ = Path(f"/proc/{process}/schedstat").read_text().split()  # proc(5)
    except (OSError, ValueError):
        return 0.0
    return int(queued) * 1e-9


def idle_share(device: torch.device | None) -> float | None:
    """Return the share of the last moment (up to a second) in which nothing ran on the GPU.

    Args:
        device: the GPU; without its number, or None: the one in use.

    Returns:
        0 to 1; None if this process uses no GPU, or if nvidia-ml-py is not installed.
    """
    # (Whether there is one must not be asked: that would make CUDA unusable in children forked later.)
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    try:
        is_named = device is not None and device.type == "cuda" and device.index is not None
        # The current device is one of the thread, and this may be another than that of the loop.
        busy = torch.cuda.utilization(device if is_named else only_cuda_device())
    except Exception:  # without its package, or without a right to ask; NVML's errors have a class of their own
        return None
    return 1 - busy / 100
