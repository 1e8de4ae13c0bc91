"""Shards, and others of the same size to take their place."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

from tests.remote.web_server import noise, write_shard

SIZES = [400, 2000, 900, 900, 3000, 100, 100, 2000, 700, 50, 1200, 600]
FIRST = noise(999, SIZES[0])


def contents(seed: int, sizes: list[int]) -> list[bytes]:
    """The first one is the same in every shard."""
    return [FIRST] + [noise(seed * 100 + number, size) for number, size in enumerate(sizes[1:], 1)]


# Other shards of the same size, whose first member is the same.
CHANGES: dict[str, Callable[[Path], Path]] = {
    "content": lambda path: write_shard(path, contents(2, SIZES)),
    "labels": lambda path: write_shard(path, contents(1, SIZES), shift=1),
    "sizes": lambda path: write_shard(path, contents(1, [SIZES[0], *reversed(SIZES[1:])])),
    "names": lambda path: rename(write_shard(path, contents(1, SIZES))),
}


def rename(path: Path) -> Path:
    """Give all members but the first sample's other names, without a change of anything else."""
    with tarfile.open(path) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    with tarfile.open(path, "w") as tar:
        for number, (member, content) in enumerate(members):
            member.name = member.name if number < 2 else "9" + member.name[1:]
            tar.addfile(member, io.BytesIO(content))
    return path
