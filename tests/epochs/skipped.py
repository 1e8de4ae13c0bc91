"""Loaders with steps and samples to leave out, and their batches in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import Sampler

import foreload as fl

SIZE = 50
WORKERS: dict[str, dict[str, Any]] = {
    "here": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
    "auto": {},
}


class Backwards(Sampler[int]):
    """A user's own sampler."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(SIZE - 1, -1, -1))

    def __len__(self) -> int:
        return SIZE


ORDERS: dict[str, dict[str, Any]] = {
    "sequential": {"batch_size": 4},
    "seed": {"batch_size": 4, "shuffle": True, "seed": 1},
    "drop_last": {"batch_size": 4, "shuffle": True, "seed": 1, "drop_last": True},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "own": {"batch_size": 4, "sampler": Backwards()},
}


def make(order: str, workers: str = "here", **options: Any) -> Any:
    return fl.DataLoader(list(range(SIZE)), **{**WORKERS[workers], **ORDERS[order], **options})  # type: ignore[arg-type]


def plain(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


STEPS, SAMPLES = [0, 3, range(5, 7)], [7, 8, 31, 49]
