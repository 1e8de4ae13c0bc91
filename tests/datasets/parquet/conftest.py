"""Parquet files for tests, and the samples that they must give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foreload.datasets.parquet.rowgroups import RowGroups

ROWS = 120


def expected(table: Any, vectors: tuple[str, ...] = ("vector", "matrix")) -> list[dict[str, Any]]:
    """Return what the samples must be, from pyarrow's own conversion."""
    pa = pytest.importorskip("pyarrow")
    rows = table.to_pylist()
    for row in rows:
        for name in vectors:
            if name in row:
                kind = table.schema.field(name).type
                while pa.types.is_fixed_size_list(kind):
                    kind = kind.value_type
                row[name] = torch.from_numpy(np.array(row[name], kind.to_pandas_dtype()))
    return rows


def numbers(count: int = ROWS) -> Any:
    pa = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    vector = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(count * 6, np.float32)), 6)
    matrix = pa.FixedSizeListArray.from_arrays(pa.array(rng.integers(-9, 9, count * 6, np.int16)), 3)
    return pa.table(
        {
            "id": pa.array(range(count), pa.int32()),
            "score": rng.random(count),
            "text": [f"row {i}" for i in range(count)],
            "vector": vector,
            "matrix": pa.FixedSizeListArray.from_arrays(matrix, 2),
        }
    )


@pytest.fixture(scope="session")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 rows in two files, in row groups of 7."""
    pq = pytest.importorskip("pyarrow.parquet")
    root = tmp_path_factory.mktemp("parquet")
    table = numbers()
    pq.write_table(table.slice(0, 50), root / "a.parquet", row_group_size=7)
    pq.write_table(table.slice(50), root / "b.parquet", row_group_size=7)
    return root


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The row groups that are decoded."""
    seen: list[tuple[int, int]] = []
    original = RowGroups._decode

    def decode(self: RowGroups, file: int, group: int) -> Any:
        seen.append((file, group))
        return original(self, file, group)

    monkeypatch.setattr(RowGroups, "_decode", decode)
    return seen
