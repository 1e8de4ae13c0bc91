"""Datasets written in Python, loaded with nothing but defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peers.work import Batches, Work, array, require, require_all
from PIL import Image, ImageEnhance
from torch.utils.data import Dataset


class Interpreted(Dataset[Any]):
    """Holds the GIL: a loop in Python."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        value = index
        for _ in range(4000):
            value = (value * 1103515245 + 12345) & 0x7FFFFFFF
        return torch.tensor([float(value)] * 16), index


class Vectorised(Interpreted):
    """NumPy, about 64 KiB per sample."""

    def __getitem__(self, index: int) -> Any:
        values = np.random.default_rng(index).standard_normal((128, 128), np.float32)
        return torch.from_numpy(np.tanh(values)), index


class Augmented(Interpreted):
    """Pillow: resized, turned, brighter."""

    def __getitem__(self, index: int) -> Any:
        shade = np.linspace(0, 255, 256 * 192 * 3) + index
        image = Image.fromarray(shade.astype(np.uint8).reshape(192, 256, 3))
        image = ImageEnhance.Brightness(image.rotate(index % 30 - 15).resize((96, 96))).enhance(1.1)
        return torch.from_numpy(np.array(image)), index


DATASETS = {"interpreted": Interpreted, "NumPy": Vectorised, "Pillow": Augmented}


def make(folder: Path, count: int) -> None:
    """Nothing: samples are computed."""


def check(work: Work, batches: Batches) -> None:
    """Each sample once, equal to what the dataset gives."""
    dataset = DATASETS[work.options["dataset"]](work.count)
    numbers = []
    for values, indices in batches:
        values = array(values)
        numbers.append(array(indices))
        for place in range(0, len(values), 16):
            expected = dataset[int(numbers[-1][place])][0].numpy()
            same = np.array_equal(values[place], expected)
            require(same, f"sample {numbers[-1][place]} is not what the dataset gives")
    require_all(work, numbers)


WORKLOADS = [
    Work(
        f"Python dataset, {name}, defaults",
        "python",
        f"{' '.join((kind.__doc__ or '').split())} Shuffled, batch 64, no other argument; (values, numbers)",
        make,
        check,
        "nothing",
        4000,
        256,
        workers=None,
        options={"dataset": name},
    )
    for name, kind in DATASETS.items()
]
