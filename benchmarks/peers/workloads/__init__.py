"""All workloads, in the order of the table."""

from __future__ import annotations

from benchmarks.peers.work import Work
from benchmarks.peers.workloads import arrays, files, images, python, start, tables, text

ALL: list[Work] = [
    *images.WORKLOADS,
    *arrays.WORKLOADS,
    *files.WORKLOADS,
    *tables.WORKLOADS,
    *text.WORKLOADS,
    *python.WORKLOADS,
    *start.WORKLOADS,
]


def find(name: str) -> Work:
    """The workload of a name."""
    return next(work for work in ALL if work.name == name)
