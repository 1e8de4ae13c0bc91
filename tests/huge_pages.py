"""Memory of this process in huge pages, of which a fork copies few entries instead of many."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_COLLAPSE, _SIZE = 25, 2 << 20  # MADV_COLLAPSE of madvise(2), from Linux 6.1 on; bytes of a page
_LIBC = ctypes.CDLL(None)
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def collapse() -> None:
    """Put what the process has allocated so far into huge pages, as far as the system can."""
    if sys.platform != "linux":
        return
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, _, _, file, *name = line.split()
        if rights == "rw-p" and file == "0" and name in ([], ["[heap]"]):
            begin, end = (int(number, 16) for number in place.split("-"))
            # One by one: where one cannot be had, the others still can.
            for page in range(-(-begin // _SIZE) * _SIZE, end - _SIZE + 1, _SIZE):
                _LIBC.madvise(page, _SIZE, _COLLAPSE)
