"""Samplers in stock loaders, and the fewest loads that their orders need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

import foreload as fl
from tests.cache.belady import belady

N, CAPACITY = 400, 200


class Base(Dataset[Any]):
    """Counts its loads, over all processes."""

    def __init__(self) -> None:
        self.calls = torch.zeros(N, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return N

    def make(self, index: int) -> tuple[torch.Tensor, int]:
        self.calls[index] += 1
        return torch.full((4,), float(index)), int(index)


class Half(Base):
    @fl.OPTCache(maxsize=CAPACITY)
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.make(index)


def is_best(dataset: Base, accesses: list[int]) -> bool:
    """Whether there are at most 0.5% more loads than there have to be."""
    return int(dataset.calls.sum()) <= 1.005 * belady(accesses, CAPACITY)


Make = Callable[[torch.Generator], Any]
SAMPLERS: dict[str, Make] = {
    "replacement": lambda g: RandomSampler(range(N), replacement=True, generator=g),
    "three times": lambda g: RandomSampler(range(N), replacement=True, num_samples=3 * N, generator=g),
    "ten times": lambda g: RandomSampler(range(N), replacement=True, num_samples=10 * N, generator=g),
    "odd": lambda g: RandomSampler(range(N), replacement=True, num_samples=N // 2 + 7, generator=g),
    "few": lambda g: RandomSampler(range(N), replacement=True, num_samples=19, generator=g),
    "shuffled": lambda g: RandomSampler(range(N), generator=g),
    "shuffled, twice and a bit": lambda g: RandomSampler(range(N), num_samples=2 * N + 50, generator=g),
    "weighted": lambda g: WeightedRandomSampler(torch.arange(N) ** 2.0, 2 * N, generator=g),
    "subset": lambda g: SubsetRandomSampler(range(0, N, 1), generator=g),
    "small subset": lambda g: SubsetRandomSampler(range(50, N - 50), generator=g),
}
