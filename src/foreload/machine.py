"""Cores and memory that this process may use: those of its container, if one limits them, not the host's."""

from __future__ import annotations

import functools
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "available_memory",
    "container_memory",
    "granted_cores",
    "granted_memory",
    "open_memory",
    "open_process",
    "round_up",
]

_CGROUP = Path("/sys/fs/cgroup")
_PROCESS = Path("/proc/self")


def granted_cores() -> int:
    """Count the cores that this process may use: by affinity, and by the container's CPU quota (cgroup v1, v2).

    >>> granted_cores() >= 1
    True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota(_CGROUP)
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def granted_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or the container's limit if it is less.

    >>> granted_memory() > 1 << 20
    True
    """
    limit = _memory_limit(_CGROUP)
    return _machine_memory() if limit is None else min(_machine_memory(), limit)


def container_memory() -> int | None:
    """Return the container's limit on memory in bytes; None if it is not below the machine's memory."""
    limit = _memory_limit(_CGROUP)
    return None if limit is None or limit >= _machine_memory() else limit


def available_memory() -> int:
    """Return the bytes that can still be allocated without swapping or being killed.

    They are the machine's, or fewer if a container's limit is nearer (cgroup v1, v2). The page cache counts as
    available, because the kernel gives it up when memory is needed.

    >>> 0 <= available_memory() <= granted_memory()
    True
    """
    import psutil

    left = [max(0, limit.bytes - limit.used()) for limit in _memory_limits(_CGROUP)]
    return min([psutil.virtual_memory().available, *left])


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class _Limit(NamedTuple):
    """A limit on memory, and the files in which the kernel reports how much of it is used."""

    bytes: int
    folder: Path
    usage: str  # the file with the bytes in use
    prefix: str  # of those entries of memory.stat that include the groups below

    def used(self) -> int:
        """Return the bytes in use that the kernel cannot give up at once."""
        words = _words(self.folder / "memory.stat")
        stat = dict(zip(words[::2], words[1::2], strict=False))
        files = sum(int(stat.get(f"{self.prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
        return max(0, int((_words(self.folder / self.usage) or ["0"])[0]) - files)


def _own_folders(root: Path, controller: str) -> list[Path]:
    """List the cgroup folders whose limits apply to this process: the root's and those on the way to its own."""
    try:
        return _folders(root, controller, _PROCESS, (_PROCESS / "cgroup").read_text())
    except OSError:
        return [root / controller if controller else root]


# Memory is read many times a second, and a process hardly ever changes its groups.
@functools.lru_cache(maxsize=16)
def _folders(root: Path, controller: str, process: Path, groups: str) -> list[Path]:
    folders = [root / controller if controller else root]
    for controllers, path in _own_groups(process, groups):
        if controller in controllers:
            for part in path.relative_to("/").parts:
                folders.append(folders[-1] / part)
    return folders


def _own_groups(process: Path, text: str) -> list[tuple[list[str], Path]]:
    """List the groups of a process with their controllers, as paths below the mount.

    A container without its own cgroup namespace sees its path on the host, but mounts its own group only
    (cgroups(7), /proc/PID/cgroup; proc(5), the root of a mount in mountinfo).
    """
    groups = [line.split(":", 2) for line in text.splitlines()]
    mounts = [line.split(" - ") for line in (process / "mountinfo").read_text().splitlines()]
    roots = {}  # by controller, "" is version 2
    for before, after in mounts:
        kind, _, options = after.split(" ", 2)
        for controller in {"cgroup": options.split(","), "cgroup2": [""]}.get(kind, []):
            roots[controller] = Path(before.split()[3])
    own = []
    for _, names, path in groups:
        controllers = names.split(",")
        root = roots.get(controllers[0], Path("/"))
        inside = Path(path)
        own.append(
            (controllers, Path("/") / (inside.relative_to(root) if inside.is_relative_to(root) else inside))
        )
    return own


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
    return min((limit.bytes for limit in _memory_limits(root)), default=None)


def _memory_limits(root: Path) -> Iterator[_Limit]:
    for controller, most, usage, prefix in (
        ("", "memory.max", "memory.current", ""),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        for folder in _own_folders(root, controller):
            words = _words(folder / most)
            if words and words[0] != "max":
                yield _Limit(int(words[0]), folder, usage, prefix)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def open_memory(name: str) -> int:
    """Return a descriptor of a new, empty file in memory, which is freed when no process has it open any more."""
    with suppress(AttributeError, OSError):  # some systems lack it or forbid it
        return os.memfd_create(f"foreload-{name}", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def open_process(pid: int) -> int | None:
    """Return a descriptor that can be read from once the process has ended; None if the system has no such thing.

    The sentinel of ``multiprocessing`` is a pipe, which also stays open in processes that the worker forks.
    """
    with suppress(AttributeError, OSError):
        return os.pidfd_open(pid)
    return None


def round_up(size: int) -> int:
    """Return the size of a reusable buffer for ``size`` bytes.

    >>> round_up(1_000_000)
    1015808
    """
    # Steps of a 32nd: batches of nearly the same size share buffers, and little is wasted.
    step = max(64, 1 << max(0, size.bit_length() - 6))
    return -(-size // step) * step
