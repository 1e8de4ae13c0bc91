"""Batches of loaders with a short timeout, within which workers may not even have started on a busy machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

__all__ = ["next_however_late"]

B = TypeVar("B")


def next_however_late(iterator: Iterator[B]) -> B:
    """Return the next batch; as long as it is late, request it again."""
    while True:
        try:
            return next(iterator)
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise
