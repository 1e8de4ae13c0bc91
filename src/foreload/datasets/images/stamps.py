"""The states of image files when they were last looked at, in memory that worker processes share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from foreload import _native
from foreload.checks import Array

__all__ = ["FileStamps"]


class FileStamps:
    """Tells which files have changed, or are looked at for the first time.

    Args:
        images: the number of files.
    """

    def __init__(self, images: int) -> None:
        self._known = torch.zeros(images, dtype=torch.int64, device="cpu")  # 0: not known
        try:
            self._known.share_memory_()  # type: ignore[no-untyped-call]
        except (RuntimeError, OSError):  # no shared memory: each process looks for itself
            return

    def changed(self, files: _native.ImageFiles, indices: Any) -> Array:
        """Return those of ``indices`` (int64) whose files may have changed since the last look at them.

        A file that is gone has not changed.
        """
        known = self._known.numpy()
        now = np.empty(len(indices), np.int64)
        files.states(indices, now)
        before = known[indices]
        now = np.where(now < 0, before, now)
        # A worker may still be loading what a file was before it changed, so the next look is a first one.
        known[indices] = np.where((before == 0) | (before == now), now, 0)
        changed: Array = indices[before != now]
        return changed
