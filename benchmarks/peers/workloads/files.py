"""Small binary files: loose, in tar shards, and in tar shards on a slow server."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.page_cache import forget
from benchmarks.peers.work import Batches, Work, array, require, require_all

SIZE = 8192
SHARD = 500  # samples in each tar


def sample(number: int, size: int = SIZE) -> bytes:
    """The content of a file: its number, then bytes that follow from it."""
    return number.to_bytes(8, "little") + np.random.default_rng(number).bytes(size - 8)


def make_files(folder: Path, count: int) -> None:
    for number in range(count):
        path = folder / "files" / f"{number // 100:04}" / f"{number:06}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample(number))


def make_shards(folder: Path, count: int, size: int = SIZE) -> None:
    """Shards in WebDataset's layout, with a member ``bin`` per sample."""
    for first in range(0, count, SHARD):
        with tarfile.open(folder / f"shard-{first // SHARD:06}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(first, min(first + SHARD, count)):
                member = tarfile.TarInfo(f"{number:06}.bin")
                member.size = size
                tar.addfile(member, io.BytesIO(sample(number, size)))


def as_bytes(batch: Any) -> list[bytes]:
    """The samples of a batch: a 2-d array, a list of bytes or arrays, or a dict with one as ``bin``."""
    content = batch["bin"] if isinstance(batch, dict) else batch
    return [part if isinstance(part, bytes) else array(part).tobytes() for part in content]


def check(work: Work, batches: Batches) -> None:
    """Each file once, byte by byte."""
    numbers = []
    size = work.options.get("size", SIZE)
    for batch in batches:
        samples = as_bytes(batch)
        numbers.append(np.array([int.from_bytes(content[:8], "little") for content in samples]))
        for number, content in zip(numbers[-1], samples, strict=True):
            require(content == sample(int(number), size), f"the content of sample {number} is another")
    require_all(work, numbers)


def _tar(kind: str, workers: int) -> Work:
    order = (
        "in a random order of all samples"
        if kind == "random"
        else "streamed, shards shuffled and a buffer of 1,000"
    )
    return Work(
        f"tar, {kind}, {workers} workers",
        f"tar-{kind}",
        f"8 KiB records in tar shards, warm, {order}, {workers} workers; a batch is the bytes",
        make_shards,
        check,
        "tar",
        20_000,
        1000,
        unit="records/s",
        workers=workers,
    )


def _remote(milliseconds: int) -> Work:
    return Work(
        f"tar over HTTP, {milliseconds} ms",
        "remote",
        f"64 KiB records in tar shards on a server that answers after {milliseconds} ms; shuffled; the bytes",
        lambda folder, count: make_shards(folder, count, 65_536),
        check,
        "remote",
        4000,
        1000,
        unit="records/s",
        options={"milliseconds": milliseconds, "size": 65_536},
    )


_WARM = Work(
    "small files, warm",
    "files",
    "8 KiB files, in the page cache, shuffled; a batch is the bytes",
    make_files,
    check,
    "files",
    20_000,
    1000,
    batch_size=256,
    unit="files/s",
)

WORKLOADS = [
    _WARM,
    replace(
        _WARM,
        name="small files, cold",
        about="8 KiB files, dropped from the page cache before each epoch, shuffled; a batch is the bytes",
        before=lambda work: forget(work.files),
    ),
    *(_tar(kind, workers) for kind in ("random", "stream") for workers in (0, 1, 2)),
    *(_remote(milliseconds) for milliseconds in (10, 30, 100)),
]
