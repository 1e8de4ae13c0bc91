"""What this machine grants the process: a container's share, not the host's."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["granted_cores", "granted_memory"]

_CGROUP = Path("/sys/fs/cgroup")


def granted_cores() -> int:
    """Count the cores that this process may use: by affinity, and by the container's CPU quota (cgroup v1, v2).

    >>> granted_cores() >= 1
    True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota(_CGROUP)
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def granted_memory() -> int:
    """Give the bytes of memory that this process may use: the machine's, or the container's limit if it is less.

    >>> granted_memory() > 1 << 20
    True
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _memory_limit(_CGROUP)
    return memory if limit is None else min(memory, limit)


def _own_folders(root: Path, controller: str) -> list[Path]:
    """List the cgroup folders that bind this process, the root's and those on the way to its own."""
    base = root / controller if controller else root
    folders = [base]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            for part in Path(path.lstrip("/")).parts:
                folders.append(folders[-1] / part)
    return folders


def _cpu_quota(root: Path) -> float | None:
    quotas = []
    for folder in _own_folders(root, ""):
        match _words(folder / "cpu.max"):
            case [quota, period] if quota != "max":
                quotas.append(int(quota) / int(period))
    for folder in _own_folders(root, "cpu"):
        quota_v1, period_v1 = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
        if quota_v1 and period_v1 and int(quota_v1[0]) > 0:
            quotas.append(int(quota_v1[0]) / int(period_v1[0]))
    return min(quotas, default=None)


def _memory_limit(root: Path) -> int | None:
    files = [folder / "memory.max" for folder in _own_folders(root, "")]
    files += [folder / "memory.limit_in_bytes" for folder in _own_folders(root, "memory")]
    limits = [int(words[0]) for words in map(_words, files) if words and words[0] != "max"]
    return min(limits, default=None)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
