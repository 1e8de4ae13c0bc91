"""Rows of a batch that a dataset makes as a whole are the samples that it gives one by one, types included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, StackDataset

import foreload as fl

COUNT = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for kind in ("images", "files"):
        (folder / kind / "cat").mkdir(parents=True)
    for number in range(COUNT):
        Image.new("RGB", (50, 40), (number, 2, 3)).save(folder / "images" / "cat" / f"{number}.jpg")
        (folder / "files" / "cat" / f"{number}.bin").write_bytes(bytes([number] * 8))
    with h5py.File(folder / "data.h5", "w") as file:
        file["data"], file["target"] = np.zeros((COUNT, 2)), np.arange(COUNT)
    (folder / "data.csv").write_text("text,label\n" + "".join(f"word{n},{n % 2}\n" for n in range(COUNT)))
    return folder


def pixels() -> torch.Tensor:
    return torch.zeros(COUNT, 3, 4, 4, dtype=torch.uint8)


mirrored_later = fl.transforms.train(32, normalize=False, flip_on_device=True)

DATASETS: dict[str, Callable[[Path], Any]] = {
    "images": lambda folder: fl.ImageDataset(folder / "images", 32),
    "images, mirrored later": lambda folder: fl.ImageDataset(folder / "images", transform=mirrored_later),
    "images in memory": lambda _: fl.ImageArrayDataset(pixels(), torch.arange(COUNT)),
    "files": lambda folder: fl.FileDataset(folder / "files"),
    "any": lambda folder: fl.MemoryEfficientDataset(folder / "files"),
    "text": lambda folder: fl.TextDataset(folder / "data.csv"),
    "hdf5": lambda folder: fl.HDF5Dataset(folder / "data.h5", target_name="target"),
    "rows": lambda _: fl.CachedDataset((torch.zeros(COUNT, 2), torch.arange(COUNT))),
    "mixture": lambda folder: fl.Mixture(
        {"a": fl.FileDataset(folder / "files"), "b": fl.FileDataset(folder / "files")}
    ),
    "stack": lambda folder: StackDataset(fl.FileDataset(folder / "files"), list(range(COUNT))),
}


def types(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.Tensor, value.dtype, value.shape
    if isinstance(value, dict):
        return {key: types(part) for key, part in value.items()}
    return list(map(types, value)) if isinstance(value, (tuple, list)) else type(value)


@pytest.mark.parametrize("name", DATASETS)
def test_rows_are_the_samples(folder: Path, name: str) -> None:
    dataset = DATASETS[name](folder)
    assert [types(row) for row in dataset.__getitems__([3, 1])] == [types(dataset[3]), types(dataset[1])]


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("make", [DataLoader, fl.DataLoader], ids=["stock", "ours"])
@pytest.mark.parametrize("cache", [False, True])
def test_collate_fn_gets_samples(folder: Path, name: str, make: Any, cache: bool) -> None:
    if cache and make is DataLoader:
        pytest.skip("torch's loader has no cache")
    dataset = DATASETS[name](folder)
    loader = make(
        dataset,
        batch_size=3,
        collate_fn=lambda samples: list(map(types, samples)),
        **({"cache": "1MiB"} if cache else {}),
    )
    for _ in range(2):
        assert [sample for batch in loader for sample in batch] == [types(dataset[i]) for i in range(len(dataset))]


def test_any_dataset_of_images_with_a_cache(folder: Path) -> None:
    dataset = fl.MemoryEfficientDataset(folder / "images", transform=fl.transforms.val(32))
    loader = fl.DataLoader(dataset, batch_size=3, cache="1MiB")
    for _ in range(2):
        images = torch.cat([images for images, _ in loader])
        assert torch.equal(images, torch.stack([dataset[index][0] for index in range(COUNT)]))
    assert loader.stats()["cache"]["hits"] == COUNT
