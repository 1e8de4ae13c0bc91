"""Private copies of what this process shares with others, for a fork of which nothing is to be seen."""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["unshare"]

# Memory without a file that is open is copied if it is small: locks, counters, flags.
_MOST_BYTES = 1 << 20

_FIXED = 0x10  # MAP_FIXED of Linux, which Python does not name
_FAILED = ctypes.c_void_p(-1).value

# Foreload's own memory, which has its own rules; that of devices, and of the system's interfaces.
_OTHERS = ("/memfd:foreload", "anon_inode:", "/dev/", "/proc/", "/sys/", "socket:")
_LOCKS = "/dev/shm/sem."
_PLAIN = ("/dev/shm/", "/dev/zero")


class _Mapping(NamedTuple):
    """A range of this process' memory, and the file that it is part of, if there is one."""

    begin: int
    size: int
    offset: int
    file: tuple[int, int]
    path: str


def unshare(*, with_locks: bool) -> list[range]:
    """Let this process write to memory that it shares with others without their seeing it, and keep where it is.

    Tensors and arrays in shared memory, values and locks of ``multiprocessing``, and mapped files are the same
    objects as before. Nothing is copied before it is written to, if the file that it is part of is open.

    Args:
        with_locks: whether locks (events, semaphores) are no longer those of other processes either.

    Returns:
        The addresses of what is still shared.
    """
    open_files = None
    left = []
    for mapping in _shared_mappings():
        if mapping.path.startswith(_LOCKS) and not with_locks:
            continue
        if open_files is None:
            open_files = _open_files()
        if not _made_private(mapping, open_files.get(mapping.file)):
            left.append(range(mapping.begin, mapping.begin + mapping.size))
    return left


def _shared_mappings() -> list[_Mapping]:
    """Return what can be written to, such that others see it."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # a system without that
        return []
    found = []
    for line in lines:
        addresses, access, offset, device, inode, *rest = line.split(maxsplit=5)
        path = rest[0] if rest else ""
        if access[1] != "w" or access[3] != "s":
            continue
        if path.startswith(_OTHERS) and not path.startswith(_PLAIN):
            continue
        begin, end = (int(address, 16) for address in addresses.split("-"))
        major, minor = (int(part, 16) for part in device.split(":"))
        file = os.makedev(major, minor), int(inode)
        found.append(_Mapping(begin, end - begin, int(offset, 16), file, path))
    return found


def _open_files() -> dict[tuple[int, int], int]:
    found = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # it has been closed
            about = os.fstat(number)
            if stat.S_ISREG(about.st_mode):
                found[about.st_dev, about.st_ino] = number
    return found


def _made_private(mapping: _Mapping, file: int | None) -> bool:
    private = mmap.MAP_PRIVATE | _FIXED
    if file is not None:
        return _map(mapping, private, file, mapping.offset)
    with suppress(OSError):
        file = os.open(mapping.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            about = os.fstat(file)
            if (about.st_dev, about.st_ino) == mapping.file:
                return _map(mapping, private, file, mapping.offset)
        finally:
            os.close(file)
    if mapping.size > _MOST_BYTES:
        return False
    content = ctypes.string_at(mapping.begin, mapping.size)
    if not _map(mapping, private | mmap.MAP_ANONYMOUS, -1, 0):
        return False
    ctypes.memmove(mapping.begin, content, mapping.size)
    return True


def _map(mapping: _Mapping, flags: int, file: int, offset: int) -> bool:
    access = mmap.PROT_READ | mmap.PROT_WRITE
    return bool(_mmap()(mapping.begin, mapping.size, access, flags, file, offset) != _FAILED)


@cache
def _mmap() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    return function
