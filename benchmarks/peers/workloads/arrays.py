"""Tensors in memory: rows of floats, and small images with augmentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.peers.work import Batches, Work, array, require, require_all

COLUMNS = 100


def make_rows(folder: Path, count: int) -> None:
    """Random floats; the first of each row is its number."""
    rows = np.random.default_rng(0).standard_normal((count, COLUMNS), np.float32)
    rows[:, 0] = np.arange(count)
    np.save(folder / "rows.npy", rows)


def check_rows(work: Work, batches: Batches) -> None:
    """Each row once, with all of its values."""
    rows = np.load(work.folder / "rows.npy")
    given = [array(batch[0] if isinstance(batch, (tuple, list)) else batch) for batch in batches]
    order = require_all(work, [batch[:, 0] for batch in given])
    require((np.concatenate(given) == rows[order]).all(), "rows have other values than those in memory")


def make_cifar(folder: Path, count: int) -> None:
    """Images of 32 x 32 with a colour of their own, from 60 to 200, and some texture."""
    draw = np.random.default_rng(0)
    colours = draw.integers(60, 200, (count, 1, 1, 3))
    np.save(folder / "images.npy", (colours + draw.integers(-30, 31, (count, 32, 32, 3))).astype(np.uint8))


def check_cifar(work: Work, batches: Batches) -> None:
    """Each image once, its colour kept but for at most 4 columns and rows of black padding."""
    images = np.load(work.folder / "images.npy").astype(np.float32)
    numbers, off = [], []
    for batch, labels in batches:
        pixels = array(batch)
        pixels = pixels.transpose(0, 2, 3, 1) if pixels.shape[1] == 3 else pixels
        require(pixels.shape[1:] == (32, 32, 3), f"images have the shape {pixels.shape[1:]}")
        require(pixels.dtype == np.uint8, f"pixels are {pixels.dtype}, not uint8")
        numbers.append(array(labels))
        middle = pixels[:, 8:24, 8:24].astype(np.float32).mean((1, 2))
        off.append(np.abs(middle - images[numbers[-1].astype(int)].mean((1, 2))).max())
    require_all(work, numbers)
    require(max(off) < 12, f"colours are off by {max(off):.0f} of 255")


WORKLOADS = [
    *(
        Work(
            f"tensors in memory, batch {batch:,}",
            "rows",
            f"{COLUMNS} float32 per row, in memory, shuffled; a batch is the rows",
            make_rows,
            check_rows,
            "rows",
            count,
            2000,
            batch_size=batch,
            unit="rows/s",
        )
        for batch, count in ((1, 20_000), (64, 100_000), (1024, 500_000), (4096, 500_000))
    ),
    Work(
        "CIFAR, augmented",
        "cifar",
        "32 x 32 uint8 images in memory; crop with 4 pixels of padding, flip, shuffled; (images uint8, numbers)",
        make_cifar,
        check_cifar,
        "cifar",
        50_000,
        1024,
        batch_size=256,
        unit="images/s",
    ),
]
