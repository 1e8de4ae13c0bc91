"""The check that every contestant gives the same bytes: those of the samples, read in the simplest way."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.storage import data
from benchmarks.storage.work import Work


def expected(work: Work, numbers: Sequence[int]) -> list[bytes]:
    """Return the samples, read in the simplest way."""
    if work.form == "rows":
        return _expected_rows(work, numbers)
    if work.source == "http":
        return [data.padded(b"", number, work.size) for number in numbers]
    if work.form in ("waits", "computes"):
        return [number.to_bytes(8, "little") for number in numbers]
    files = work.files
    if work.form == "image":
        from PIL import Image

        return [np.asarray(Image.open(files[number])).tobytes() for number in numbers]
    if work.form == "array":
        return [np.load(files[number])["x"].tobytes() for number in numbers]
    return [Path(files[number]).read_bytes() for number in numbers]


def _expected_rows(work: Work, numbers: Sequence[int]) -> list[bytes]:
    import pyarrow.parquet as pq

    table = pq.read_table(work.folder)
    values = {
        name: table[name].combine_chunks().flatten().to_numpy().reshape(-1, size)
        for name, size in data.COLUMNS.items()
    }
    return [b"".join(values[name][number].tobytes() for name in data.COLUMNS) for number in numbers]


def contents(work: Work, batch: Any) -> list[bytes]:
    """The samples of a batch, in the form of :func:`expected`."""
    if isinstance(batch, dict) and "bin" in batch:
        return [bytes(part) for part in batch["bin"]]
    if isinstance(batch, dict):
        parts = [np.asarray(batch[name]) for name in data.COLUMNS]
        return [b"".join(part[row].tobytes() for part in parts) for row in range(len(parts[0]))]
    values = np.asarray(batch[0] if isinstance(batch, (list, tuple)) and work.form == "image" else batch)
    if work.form == "image" and values.shape[1] == 3:
        values = values.transpose(0, 2, 3, 1)
    return [np.ascontiguousarray(one).tobytes() for one in values]


def digest(content: bytes) -> str:
    """A name of a sample's bytes."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()
