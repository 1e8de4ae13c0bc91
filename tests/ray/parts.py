"""Datasets whose samples tell how they were loaded, and a Ray cluster of several nodes on this machine."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import foreload as fl


class Drawn(Dataset[Any]):
    """Samples that are large, and have random numbers in them; one may fail."""

    def __init__(self, size: int = 60, fails: frozenset[int] = frozenset(), side: int = 64) -> None:
        self.size, self.fails, self.side = size, fails, side

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.fails:
            raise ValueError(f"no such picture: {index}")
        return {
            "index": index,
            "picture": torch.full((3, self.side, self.side), float(index)),
            "array": np.full(5, index),
            "drawn": [random.random(), float(np.random.rand()), float(torch.rand(()))],
        }


class Part(IterableDataset[int]):
    """Each worker's part of the numbers, with a state."""

    def __init__(self, size: int) -> None:
        self.size, self.at = size, 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        numbers = range(number, self.size, count)
        while self.at < len(numbers):
            self.at += 1
            yield numbers[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Counting(Dataset[Any]):
    """Counts the samples that its copy has loaded, and has that as a state."""

    def __init__(self, size: int) -> None:
        self.size, self.loaded = size, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.loaded += 1
        return index, self.loaded

    def state_dict(self) -> dict[str, Any]:
        return {"loaded": self.loaded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["loaded"]


class Lethal(Drawn):
    """Ends the process that loads one of its samples, as a crash in a library does."""

    def __getitem__(self, index: int) -> Any:
        if index in self.fails:
            os._exit(3)
        return super().__getitem__(index)


class Touched(Dataset[Any]):
    """Notes each sample that is loaded in a folder."""

    def __init__(self, folder: str, size: int) -> None:
        self.folder, self.size = folder, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(f"{self.folder}/loaded", "a") as file:
            file.write(f"{index}\n")
        return torch.full((100,), index)


def plain(batches: Any) -> list[Any]:
    """Return batches as values that compare."""
    return [_plain(batch) for batch in batches]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


@contextmanager
def running_cluster(nodes: int = 2) -> Iterator[Any]:
    """A cluster of a head without CPUs and nodes with one CPU each; this process is connected to it."""
    import ray
    from ray.cluster_utils import Cluster

    head = {
        "num_cpus": 0,
        "include_dashboard": False,
        # A node that is killed is noticed sooner than on a real cluster.
        "_system_config": {"health_check_period_ms": 500, "health_check_failure_threshold": 4},
    }
    cluster = Cluster()
    try:
        cluster.add_node(**head)
        for _ in range(nodes):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(Path(tempfile.gettempdir()) / "ray", ignore_errors=True)


def on_ray(dataset: Any, workers: Any = 2, **options: Any) -> fl.DataLoader[Any]:
    """A loader that fails where its workers hang, with an error that says what each is doing."""
    return fl.DataLoader(dataset, **{"num_workers": workers, "workers": "ray", "timeout": 240, **options})


def here(dataset: Any, **options: Any) -> fl.DataLoader[Any]:
    options.pop("persistent_workers", None)
    return fl.DataLoader(dataset, num_workers=0, **options)


def pids(loader: Any) -> list[int]:
    return [worker.process.pid for worker in loader.crew.pool.workers]
