"""Orders of every kind and workers of every kind, for epochs that are interrupted."""

from __future__ import annotations

import io
import random
from collections.abc import Container, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

import foreload as fl

SIZE = 53


class Numbers(Dataset[int]):
    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.loaded.append(int(index))
        return int(index)


class Remembering(Sampler[int]):
    """Of a user's own, with a state."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.size:
            self.at += 1
            yield (self.at * 7) % self.size
        self.at = 0

    def __len__(self) -> int:
        return self.size

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Forgetful(Sampler[int]):
    """Of a user's own, without a state, drawing from all that there is."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.size).tolist()
        random.shuffle(order)
        np.random.shuffle(order)
        yield from order

    def __len__(self) -> int:
        return self.size


class OwnBatches(Sampler[list[int]]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.size).tolist()
        while order:
            count = 1 + order[0] % 5
            yield order[:count]
            del order[:count]


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


ORDERS: dict[str, Any] = {
    "sequential": lambda data: {"batch_size": 4},
    "shuffled": lambda data: {"batch_size": 4, "shuffle": True},
    "drop_last": lambda data: {"batch_size": 4, "shuffle": True, "drop_last": True},
    "one by one": lambda data: {"batch_size": None, "shuffle": True},
    "seed": lambda data: {"batch_size": 4, "shuffle": True, "seed": 3},
    "generator": lambda data: {"batch_size": 4, "shuffle": True, "generator": generator()},
    "replacement": lambda data: {"batch_size": 4, "sampler": RandomSampler(data, True, 100, generator())},
    "more": lambda data: {"batch_size": 4, "sampler": RandomSampler(data, num_samples=150)},
    "weighted": lambda data: {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * SIZE, 60)},
    "subset": lambda data: {"batch_size": 4, "sampler": SubsetRandomSampler(range(3, 50), generator())},
    "dealt": lambda data: {"batch_size": 4, "sampler": DistributedSampler(data, 3, 1, seed=2)},
    "remembering": lambda data: {"batch_size": 4, "sampler": Remembering(SIZE)},
    "forgetful": lambda data: {"batch_size": 4, "sampler": Forgetful(SIZE)},
    "own batches": lambda data: {"batch_sampler": OwnBatches(SIZE)},
    "torch's batches": lambda data: {"batch_sampler": BatchSampler(SequentialSampler(data), 6, False)},
    "list": lambda data: {"batch_size": 4, "sampler": [5, 1, 2, 50, 5, 5, 3, 8, 9]},
}
WORKERS: dict[str, dict[str, Any]] = {
    "here": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
}


def make(order: str, workers: str, **arguments: Any) -> fl.DataLoader[Any]:
    data = Numbers()
    return fl.DataLoader(data, **{**ORDERS[order](data), **WORKERS[workers], **arguments})


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """Through a file, as a checkpoint is."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def plain(batches: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


@pytest.mark.filterwarnings("ignore:.*has no state_dict")
def cases(firsts: Iterable[Any], fast: Container[Any]) -> list[Any]:
    """Each of ``firsts`` with every kind of worker; with processes, only those in ``fast`` are fast tests."""
    return [
        pytest.param(first, workers, marks=pytest.mark.slow)
        if workers == "processes" and first not in fast
        else (first, workers)
        for first in firsts
        for workers in WORKERS
    ]


class Stream(IterableDataset[int]):
    read = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, 50 - 11 * first, step):
            Stream.read += 1
            yield number
