"""Rows of Parquet, MDS and HDF5 files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.work import Batches, Work, array, require, require_all

COLUMNS = 64
GROUP = 500  # rows that Parquet compresses together


def rows(count: int) -> np.ndarray[Any, Any]:
    """Random floats; the first of each row is its number."""
    values = np.random.default_rng(0).standard_normal((count, COLUMNS), np.float32)
    values[:, 0] = np.arange(count)
    return values


def make_parquet(folder: Path, count: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = pa.FixedSizeListArray.from_arrays(pa.array(rows(count).reshape(-1)), COLUMNS)
    table = pa.table({"number": pa.array(np.arange(count)), "values": values})
    for part, first in enumerate(range(0, count, 10_000)):
        pq.write_table(table.slice(first, 10_000), folder / f"part-{part:03}.parquet", row_group_size=GROUP)


def make_hdf5(folder: Path, count: int) -> None:
    import h5py

    with h5py.File(folder / "rows.h5", "w") as file:
        file.create_dataset(
            "data", data=rows(count), chunks=(min(64, count), COLUMNS), compression="gzip", compression_opts=1
        )


def make_mds(folder: Path, count: int) -> None:
    """MDS shards, version 2, uncompressed, one column ``values`` of float32; written without the package."""
    import json

    values, shards = rows(count), []
    columns = {"column_names": ["values"], "column_encodings": [f"ndarray:float32:{COLUMNS}"]}
    columns |= {"column_sizes": [4 * COLUMNS], "format": "mds", "version": 2, "compression": None, "hashes": []}
    columns |= {"size_limit": 1 << 26, "zip_data": None}
    info = json.dumps({key: columns[key] for key in sorted(columns) if key != "zip_data"}).encode()
    for number, first in enumerate(range(0, count, 5000)):
        part = values[first : first + 5000]
        start = 4 + 4 * (len(part) + 1) + len(info)
        offsets = start + 4 * COLUMNS * np.arange(len(part) + 1)
        name = f"shard.{number:05}.mds"
        content = np.uint32(len(part)).tobytes() + offsets.astype(np.uint32).tobytes() + info + part.tobytes()
        (folder / name).write_bytes(content)
        raw = {"basename": name, "bytes": len(content), "hashes": {}}
        shards.append({**columns, "samples": len(part), "raw_data": raw})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def check(work: Work, batches: Batches) -> None:
    """Each row once, with all of its values."""
    expected = rows(work.count)
    given = [array(batch["values"] if isinstance(batch, dict) else batch) for batch in batches]
    order = require_all(work, [batch[:, 0] for batch in given])
    require((np.concatenate(given) == expected[order]).all(), "rows have other values than those in the file")


def _table(name: str, family: str, about: str, make: Any) -> Work:
    return Work(name, family, f"{about}, {COLUMNS} float32 per row, shuffled; the values", make, check, family,
                50_000, 2000, unit="rows/s")  # fmt: skip


WORKLOADS = [
    _table("Parquet", "parquet", f"Parquet files with {GROUP} rows per group", make_parquet),
    _table("MDS", "mds", "MDS shards", make_mds),
    _table("HDF5", "hdf5", "an HDF5 file, chunks of 64 rows, gzip", make_hdf5),
]
