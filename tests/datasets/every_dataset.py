"""A small dataset of every class, and the batches that its samples make."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch.utils.data import default_collate

import foreload as fl

COUNT = 12


def image_bytes(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def write(folder: Path) -> None:
    """Write what the datasets are of."""
    (folder / "images" / "cat").mkdir(parents=True)
    (folder / "files" / "cat").mkdir(parents=True)
    (folder / "texts" / "cat").mkdir(parents=True)
    with tarfile.open(folder / "data.tar", "w") as shard:
        for number in range(COUNT):
            (folder / "images" / "cat" / f"{number:02}.jpg").write_bytes(image_bytes(number))
            (folder / "files" / "cat" / f"{number:02}.bin").write_bytes(bytes([number] * 8))
            (folder / "texts" / "cat" / f"{number:02}.txt").write_text(f"text {number}")
            for name, content in ((f"{number:02}.jpg", image_bytes(number)), (f"{number:02}.cls", b"%d" % number)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
    pq.write_table(pa.table({"a": np.arange(COUNT), "b": np.arange(COUNT) / 2}), folder / "data.parquet")
    with h5py.File(folder / "data.h5", "w") as file:
        file["data"], file["target"] = np.arange(2 * COUNT).reshape(COUNT, 2) / 2, np.arange(COUNT)
    (folder / "data.txt").write_text("".join(f"word {number} and more\n" for number in range(COUNT)))


def tensor_of(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((8, 8))))


def number_of(sample: dict[str, Any]) -> int:
    return int(sample["cls"])


Make = Callable[[type, Path], Any]
DATASETS: dict[str, tuple[type, Make]] = {
    "images": (fl.ImageDataset, lambda kind, folder: kind(folder / "images", transform=fl.transforms.val(32))),
    "images, one kept": (
        fl.ImageDataset,
        lambda kind, folder: kind(folder / "images", transform=fl.transforms.val(32), cache_size=0),
    ),
    "images, Python": (fl.ImageDataset, lambda kind, folder: kind(folder / "images", transform=tensor_of)),
    "images in shards": (
        fl.ImageDataset,
        lambda kind, folder: kind(folder / "data.tar", transform=fl.transforms.val(32)),
    ),
    "images, ready-made": (
        fl.HighPerformanceDataset,
        lambda kind, folder: kind(folder / "images", transform=fl.transforms.val(32)),
    ),
    "files": (fl.FileDataset, lambda kind, folder: kind(folder / "files")),
    "files, transformed": (
        fl.FileDataset,
        lambda kind, folder: kind(folder / "files", transform=torch.Tensor.float),
    ),
    "files, kept": (
        fl.FileDataset,
        lambda kind, folder: kind(folder / "files", loading_mode=fl.LoadingMode.EAGER),
    ),
    "tar": (fl.TarDataset, lambda kind, folder: kind(folder / "data.tar", number_of)),
    "parquet": (fl.ParquetDataset, lambda kind, folder: kind(folder / "data.parquet")),
    "hdf5": (fl.HDF5Dataset, lambda kind, folder: kind(folder / "data.h5", target_name="target")),
    "text": (fl.TextDataset, lambda kind, folder: kind(folder / "data.txt")),
    "text, kept": (
        fl.TextDataset,
        lambda kind, folder: kind(folder / "data.txt", loading_mode=fl.LoadingMode.CACHED),
    ),
    "text files": (fl.TextDataset, lambda kind, folder: kind(folder / "texts")),
    "any": (fl.MemoryEfficientDataset, lambda kind, folder: kind(folder / "files")),
    "any, images": (
        fl.MemoryEfficientDataset,
        lambda kind, folder: kind(folder / "images", transform=fl.transforms.val(32)),
    ),
}


def batches_of(samples: list[Any], order: list[int], size: int) -> list[Any]:
    """The batches of samples in an order, as ``default_collate`` makes them."""
    parts = [order[begin : begin + size] for begin in range(0, len(order), size)]
    return [default_collate([samples[index] for index in part]) for part in parts]
