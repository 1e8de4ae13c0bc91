"""The work before an epoch: import, the first of 100 million samples, going on from a kept state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.peers.work import Batches, Work, array, require, require_all
from benchmarks.peers.workloads.files import as_bytes, make_files
from benchmarks.peers.workloads.images import check_crops
from benchmarks.peers.workloads.images import make as make_photos


def make(folder: Path, count: int) -> None:
    """Nothing: samples are their numbers."""


def check_numbers(work: Work, batches: Batches) -> None:
    """Different numbers, from all over the range."""
    order = require_all(work, [array(batch) for batch in batches])
    require(order.max() > work.count // 2, "the order is not shuffled over all samples")


def check_resume(work: Work, batches: Batches) -> None:
    """Each file once, over both halves."""
    numbers = [
        np.array([int.from_bytes(content[:8], "little") for content in as_bytes(batch)]) for batch in batches
    ]
    require_all(work, numbers)


WORKLOADS = [
    Work("first batch, photos", "train", "the first batch of train, uint8, from the loader's construction on",
         make_photos, check_crops, "photos", 2000, 192, shows="first", unit="ms",
         options={"size": 224, "normalize": False}),
    Work("first batch of 100 million", "many", "a dataset that gives the number of a sample, shuffled and seeded",
         make, check_numbers, "nothing", 100_000_000, 1_000_000, batches=20, shows="first", unit="ms"),
    Work("resume", "resume", "8 KiB files, shuffled; half an epoch, its state in a new loader, the next batch",
         make_files, check_resume, "files", 20_000, 1000, batch_size=50, shows="resume", unit="ms"),
    Work("import", "import", "the import beyond torch's, in a fresh process",
         make, lambda work, batches: None, "nothing", 1, 1, shows="import", unit="ms"),
]  # fmt: skip
