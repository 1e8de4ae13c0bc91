"""Datasets whose samples depend on random numbers, or on who loads them, and in which order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import StackDataset, Subset, get_worker_info

from tests.workers.ordinary_datasets import RECORD, SIZE, Sized, as_tensor


class Drawn(Sized):
    """Draws from all three global generators."""

    def __getitem__(self, index: int) -> tuple[int, float, float, float, torch.Tensor]:
        return index, torch.rand(()).item(), np.random.rand(), random.gauss(0, 1), torch.randn(3)


class DrawnRarely(Sized):
    """Draws for a few samples only."""

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        if index % 13 == 5:
            return index, random.random(), float(np.random.normal())
        return index, 0.0, 0.0


class Augmented(Sized):
    """Noise, crop and flip as augmentations draw them."""

    def __getitem__(self, index: int) -> torch.Tensor:
        image = torch.full((3, 8, 8), float(index)) + torch.randn(3, 8, 8)
        top, left = torch.randint(0, 4, (2,)).tolist()
        if random.random() < 0.5:
            image = image.flip(-1)
        return image[:, top : top + 4, left : left + 4] * np.random.uniform(0.5, 1.5)


def stacked(folder: Path) -> Any:
    """Make a dataset of several, each of which torch asks for all samples of a batch before the next one."""
    inner = StackDataset(one=DrawnRarely(folder), two=Subset(Drawn(folder), list(range(SIZE))[::-1]))
    return Subset(StackDataset(Drawn(folder), inner, Augmented(folder)), list(range(0, SIZE, 2)))


RANDOM: list[Callable[[Path], Any]] = [Drawn, DrawnRarely, Augmented, stacked]


class Counted(Sized):
    """Counts its samples."""

    calls = 0

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.calls += 1
        return index, self.calls


class OwnGenerator(Sized):
    """Draws from generators of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.numpy = np.random.default_rng(3)
        self.python = random.Random(4)
        self.torch = torch.Generator().manual_seed(5)

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, self.numpy.random(), self.python.random(), torch.rand((), generator=self.torch).item()


class OpenFile(Sized):
    """Opens its file at once; processes forked from this one would share its position."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = open(folder / "records.bin", "rb")  # noqa: SIM115

    def __getitem__(self, index: int) -> torch.Tensor:
        self.file.seek(index * RECORD)
        return as_tensor(self.file.read(RECORD))


class Successive(Sized):
    """Takes what an iterator gives next."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.numbers = itertools.count()

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, next(self.numbers)


class ByWorker(Sized):
    """Asks which worker it is in."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        info = get_worker_info()
        return index, -1 if info is None else info.id


STATEFUL: list[Callable[[Path], Any]] = [Counted, OwnGenerator, OpenFile, Successive, ByWorker]
