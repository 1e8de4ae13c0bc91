"""The files that the kernel keeps in memory, and how to read from the disk again."""

from __future__ import annotations

import os
from pathlib import Path

DROP = Path("/proc/sys/vm/drop_caches")


def forget(paths: list[str]) -> None:
    """Drop what is in memory of the disk; who is not root can drop files only, whose names stay there."""
    if os.access(DROP, os.W_OK):
        os.sync()
        DROP.write_text("3")
        return
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
