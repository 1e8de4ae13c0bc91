"""Samples of different sizes, orders to load them in, and what a loader gives of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from foreload.cache.serialize import serialize

SIZE = 100


def sample_of(index: int, generation: int = 0) -> dict[str, Any]:
    """Of different sizes, from tens to thousands of bytes."""
    count = 10 + (index * 7919 + 31 * generation) % 500
    return {
        "x": torch.arange(count) * index + generation,
        "name": f"sample {index}",
        "array": np.full((index % 3, 4), index, np.int16),
    }


_counting = threading.Lock()


class Varied(Dataset[Any]):
    """Counts its calls, over all processes."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.generation = 0
        self.calls = torch.zeros(size, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        with _counting:  # threads that load one sample at once would count one call
            self.calls[index] += 1
        return sample_of(index, self.generation)


def block(sample: Any) -> int:
    return -(-sum(map(len, serialize(sample))) // 64) * 64 + 64


def plain(value: Any) -> Any:
    """In a form that compares."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return (type(value).__name__, str(value.dtype), tuple(value.shape), value.tolist())
    return value


class Skipping(Sampler[int]):
    """Of the user's own, with a state: each epoch begins one further."""

    def __init__(self) -> None:
        self.asked = 0

    def __iter__(self) -> Iterator[int]:
        self.asked += 1
        return iter([*range(self.asked, SIZE, 3), *range(self.asked, SIZE, 3)])


def listed(samples: list[Any]) -> list[Any]:
    return samples


Orders = dict[str, Callable[[Any, torch.Generator | None], dict[str, Any]]]
ORDERS: Orders = {
    "sequential": lambda d, g: {"batch_size": 7},
    "shuffle": lambda d, g: {"batch_size": 7, "shuffle": True, "generator": g, "drop_last": True},
    "replacement": lambda d, g: {
        "batch_size": 7,
        "sampler": RandomSampler(d, replacement=True, generator=g),
        "drop_last": True,
    },
    "more than there are": lambda d, g: {
        "batch_size": 7,
        "sampler": RandomSampler(d, True, 250, g),
        "generator": g,
    },
    "some of a permutation": lambda d, g: {"batch_size": 7, "sampler": RandomSampler(d, False, 30, g)},
    "weighted": lambda d, g: {
        "batch_size": 7,
        "sampler": WeightedRandomSampler(torch.arange(1.0, SIZE + 1), 130, generator=g),
        "drop_last": True,
    },
    "weighted, once": lambda d, g: {
        "batch_size": 7,
        "sampler": WeightedRandomSampler(torch.arange(1.0, SIZE + 1), 60, replacement=False, generator=g),
    },
    "subset": lambda d, g: {
        "batch_size": 7,
        "sampler": SubsetRandomSampler(range(0, SIZE, 2), g),
        "drop_last": True,
    },
    "distributed": lambda d, g: {
        "batch_size": 7,
        "sampler": DistributedSampler(d, 3, 1, seed=2),
        "drop_last": True,
    },
    "own sampler": lambda d, g: {"batch_size": 7, "sampler": Skipping()},
    "own batches": lambda d, g: {"batch_sampler": [[1, 2], [2], [3, 1, 3], [99]]},
    "batch sampler": lambda d, g: {"batch_sampler": BatchSampler(RandomSampler(d, True, generator=g), 9, True)},
    "one by one": lambda d, g: {"batch_size": None, "sampler": RandomSampler(d, True, generator=g)},
    "one by one, shuffled": lambda d, g: {"batch_size": None, "shuffle": True, "generator": g},
}


def epochs_of(make: Any, dataset: Any, order: str, own: bool, epochs: int, **arguments: Any) -> Any:
    torch.manual_seed(11)
    generator = torch.Generator().manual_seed(4) if own else None
    chosen = ORDERS[order](dataset, generator)
    if chosen.get("batch_size", 1) is not None:
        chosen["collate_fn"] = listed
    loader = make(dataset, **chosen, **arguments)
    sampler = chosen.get("sampler")
    got, states = [], []
    for epoch in range(epochs):
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)
        got.append([plain(batch) for batch in loader])
        states.append(torch.get_rng_state().tolist())
        if generator is not None:
            states.append(generator.get_state().tolist())
    return got, states, loader
