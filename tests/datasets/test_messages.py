"""Errors of datasets say what is wrong, instead of errors of Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import foreload as fl


@pytest.mark.parametrize("index", ["label", 1.0, None, slice(0, 2), [0, 1], np.array([0, 1])], ids=repr)
def test_an_index_that_is_no_int_is_an_error_that_says_so(index: Any, files: list[str], tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [1, 2]}), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("text,label\na,1\n")
    images = fl.ImageArrayDataset(np.zeros((2, 4, 4, 3), np.uint8), [0, 1], fl.transforms.val_small(4))
    datasets: list[Any] = [
        fl.ParquetDataset(tmp_path / "a.parquet"),
        fl.TextDataset(tmp_path / "a.csv"),
        fl.ImageDataset(files, labels=[0, 1]),
        images,
        fl.packing.pack_sequences([[1, 2], [3]], 4),
    ]
    takes_several = isinstance(index, (slice, list, np.ndarray))
    datasets += [] if takes_several else [fl.CachedDataset({"label": torch.arange(3)})]
    for dataset in datasets:
        with pytest.raises(TypeError, match="the index of a dataset must be an int, the number of a sample, got "):
            dataset[index]


def test_an_empty_table_is_named_as_one(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for content in ("", "\n\n", "\ufeff"):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"a\.csv' is empty; the first line of a table has the names"):
            fl.TextDataset(path)
    assert len(fl.TextDataset(path, text_field=0)) == 0


@pytest.mark.parametrize("shards", ["nothing", "nothing.tar", "nothing-{0..2}.tar", ["nothing.tar"]], ids=str)
def test_a_shard_that_is_not_there_is_named_with_its_argument(
    shards: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"shards: there is no such file or folder: '/.*nothing"):
        fl.TarDataset(shards)
    with pytest.raises(FileNotFoundError, match="shards is an empty path"):
        fl.TarDataset("")


def test_tables_of_pandas_are_not_taken_by_label() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match=r"DataFrame of pandas.*data\[name\]\.to_numpy\(\) for name in data"):
        fl.CachedDataset(pandas.DataFrame({"a": [1, 2]}))
    # The row of label 0 is the last.
    with pytest.raises(TypeError, match=r"Series of pandas.*give data\.to_numpy\(\)"):
        fl.CachedDataset(pandas.Series([1, 2], index=[1, 0]))


@pytest.mark.parametrize("images", [np.zeros((0, 8, 8, 3), np.uint8), torch.zeros(0, 3, 8, 8, dtype=torch.uint8)])
def test_no_images_are_not_called_images_of_another_shape(images: Any) -> None:
    with pytest.raises(ValueError, match="images is empty; give at least one image"):
        fl.ImageArrayDataset(images)
