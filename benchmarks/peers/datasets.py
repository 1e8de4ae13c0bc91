"""Datasets that several adapters load: small images augmented in Python, and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from benchmarks.peers.work import Work
from torch.utils.data import Dataset


class Cifar(Dataset[Any]):
    """The usual augmentation, written for one sample."""

    def __init__(self, work: Work) -> None:
        images = torch.from_numpy(np.load(work.folder / "images.npy")).permute(0, 3, 1, 2)
        self.padded = torch.nn.functional.pad(images, (4, 4, 4, 4))

    def __len__(self) -> int:
        return len(self.padded)

    def __getitem__(self, index: int) -> Any:
        top, left, flip = torch.randint(0, 9, (3,)).tolist()
        image = self.padded[index, :, top : top + 32, left : left + 32]
        return (image.flip(2) if flip > 4 else image), index


class Numbers(Dataset[int]):
    """Sample i is i."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index
