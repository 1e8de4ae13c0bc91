"""Tests that need a system that tells whether memory has been written to."""

from __future__ import annotations

import numpy as np
import pytest

from foreload import _native


def tells() -> bool:
    memory = np.zeros(1 << 20, np.uint8)
    return _native.watch_writes(memory.__array_interface__["data"][0], memory.nbytes) is not None


needs_writes = pytest.mark.skipif(not tells(), reason="the system does not tell of writes (Linux 6.11 does)")
