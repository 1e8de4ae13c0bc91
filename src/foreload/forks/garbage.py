"""Garbage collections, and blocks without any: each looks through all that torch has made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["uncollected"]


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage in this block.

    New classes and functions count as what a collection is due for. After ``import torch`` a few dozen modules are
    enough for one of everything (70 ms), which an epoch that imports them when it first needs them would wait for.

    >>> with uncollected():
    ...     gc.isenabled()
    False
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
