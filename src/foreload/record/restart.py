"""A worker process that was replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Restart"]


@dataclass(frozen=True)
class Restart:
    """A worker process that ended before its time, and was replaced.

    Attributes:
        worker: its number.
        pid: the id of its process.
        exitcode: minus the signal that killed it, or its exit code; None: not known, as on another machine.
        indices: the indices of its unfinished batches, which were loaded again.
        node: the address of its machine, for workers on a Ray cluster.
    """

    worker: int
    pid: int
    exitcode: int | None
    indices: list[Any]
    node: str = ""
