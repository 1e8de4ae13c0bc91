"""What transforms of rows draw that are read many at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

import foreload as fl

COUNT = 6


def _add_noise(sample: Any) -> Any:
    if isinstance(sample, dict):
        return {name: _add_noise(value) for name, value in sample.items() if name != "__key__"}
    return torch.as_tensor(0 if isinstance(sample, bytes) else sample) + torch.rand(1).item()


def _drop_characters(text: str) -> list[int]:
    return [ord(character) for character in text if torch.rand(1).item() < 0.5]


class _Views(fl.HDF5Dataset):
    """Two views of each sample."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), super().__getitem__(index)

    def __getitems__(self, indices: Any) -> Any:  # type: ignore[override]
        load: Any = self._load_batch
        return list(zip(load(indices), load(indices), strict=True))


def _rows(folder: Path, kind: str) -> Any:
    if kind == "hdf5 within":
        _rows(folder, "hdf5")
        return fl.MemoryEfficientDataset(folder / "rows.h5", transform=_add_noise)
    if kind == "hdf5":
        with pytest.importorskip("h5py").File(folder / "rows.h5", "w") as file:
            file["data"] = np.arange(COUNT, dtype=np.float32)[:, None]
        return fl.HDF5Dataset(folder / "rows.h5", transform=_add_noise)
    if kind == "parquet":
        parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        parquet.write_table(arrow.table({"a": [float(row) for row in range(COUNT)]}), folder / "rows.parquet")
        return fl.ParquetDataset(folder / "rows.parquet", transform=_add_noise)
    if kind.startswith("text"):
        (folder / "texts.csv").write_text(
            "text,label\n" + "".join(f"{'ab' * row}c,{row}\n" for row in range(COUNT))
        )
        return fl.TextDataset(
            folder / "texts.csv",
            tokenizer=_drop_characters if kind == "text tokenizer" else None,
            target_transform=_add_noise,
            max_length=20,
            padding=kind != "texts of any length",
        )
    (folder / "files").mkdir()
    for row in range(COUNT):
        (folder / "files" / f"{row}.bin").write_bytes(bytes(row))
    fl.pack(folder / "files", folder / "shards")
    return fl.TarDataset(folder / "shards", transform=_add_noise)


@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize(
    "kind", ["hdf5", "hdf5 within", "parquet", "tar", "text", "text tokenizer", "texts of any length"]
)
def test_transforms_of_rows_that_are_read_together_draw_by_the_sample(
    kind: str, is_part: bool, tmp_path: Path
) -> None:
    dataset = _rows(tmp_path, kind)
    if is_part:
        dataset = Subset(dataset, [5, 3, 1, 4, 3, 0])

    def epochs(**options: Any) -> list[Any]:
        options = {"batch_size": 4, "num_workers": 0} | options
        with fl.DataLoader(dataset, seed=3, shuffle=True, collate_fn=list, **options) as loader:
            return [str(sample) for _ in range(2) for batch in loader for sample in batch]

    expected = epochs(batch_size=1)
    for way in ({}, {"batch_size": 3}, {"cache": "1MiB"}, {"num_workers": 2, "workers": "threads"}):
        assert epochs(**way) == expected, way


def test_a_batch_that_is_loaded_twice_draws_twice(tmp_path: Path) -> None:
    _rows(tmp_path, "hdf5")
    dataset = _Views(tmp_path / "rows.h5", transform=_add_noise)
    with fl.DataLoader(dataset, seed=3, batch_size=COUNT, num_workers=0, collate_fn=list) as loader:
        for batch in loader:
            assert all(one != other for one, other in batch)
