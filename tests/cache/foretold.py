"""Datasets whose loads are counted, and orders that a cache is told of."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.utils.data import Dataset, RandomSampler

import foreload as fl

N, EPOCHS = 120, 3


class Base(Dataset[Any]):
    """Counts its calls, over all processes."""

    def __init__(self, size: int = N, shift: int = 0) -> None:
        self.size = size
        self.shift = shift
        self.calls = torch.zeros(size, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self.size

    def make(self, index: Any) -> tuple[torch.Tensor, int]:
        self.calls[int(index)] += 1
        return torch.full((10,), float(index + self.shift)), int(index)


class Third(Base):
    @fl.OPTCache(maxsize=N // 3)
    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        return self.make(index)


def foretell(seed: int = 0, epochs: int = EPOCHS) -> tuple[torch.Generator, list[int]]:
    """A generator, told of, and the sequence that torch makes of it."""
    generator = torch.Generator().manual_seed(seed)
    fl.OPTInit(RandomSampler, generator, N, epochs=epochs)
    other = RandomSampler(range(N), replacement=True, generator=torch.Generator().manual_seed(seed))
    return generator, [index for _ in range(epochs) for index in other]


def run(make: Any, dataset: Any, drawn: torch.Generator, epochs: int = EPOCHS, **arguments: Any) -> list[int]:
    sampler = RandomSampler(dataset, replacement=True, generator=drawn)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        loader = make(dataset, sampler=sampler, **arguments)
        accesses = []
        for _ in range(epochs):
            for x, y in loader:
                assert (x == (y + dataset.shift)[:, None]).all()
                accesses += y.tolist()
    return accesses
