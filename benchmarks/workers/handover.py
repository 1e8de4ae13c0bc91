"""The cost of handing batches from worker processes to the loop, and the delay of a second epoch's first batch."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload.record.usage import tree_bytes

sys.path.append(str(Path(__file__).parent.parent))

from common import Record, Samples, median, parser, take_turns


class Large(Dataset[Any]):
    """150 KB each, for nothing."""

    def __init__(self) -> None:
        self.sample = torch.randn(38_400)

    def __len__(self) -> int:
        return 100 * 64

    def __getitem__(self, index: int) -> Any:
        return self.sample


class Scalars(Dataset[Any]):
    """Eight numbers, cheap to make."""

    def __len__(self) -> int:
        return 200 * 256

    def __getitem__(self, index: int) -> Any:
        return {
            "a": index,
            "b": 2 * index,
            "c": float(index),
            "d": 1.5,
            "e": index % 7,
            "f": 0.1,
            "g": index // 3,
            "h": 2,
        }


class Objects(Dataset[Any]):
    """A list of five million Python objects."""

    def __init__(self, size: int = 5_000_000) -> None:
        self.items = [(index, float(index)) for index in range(size)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index][0]


PROCESSES: dict[str, Any] = {"workers": "processes"}
THREADS: dict[str, Any] = {"workers": "threads"}


def batches_per_second(kind: Any, dataset: Any, batch_size: int, **more: Any) -> float:
    iterator = iter(kind(dataset, batch_size=batch_size, num_workers=2, **more))
    next(iterator)
    started = time.perf_counter()
    count = sum(1 for _ in iterator)
    return count / (time.perf_counter() - started)


def second_epoch(kind: Any, dataset: Any, **more: Any) -> float:
    """Milliseconds until the first batch of the second epoch."""
    loader = kind(dataset, batch_size=64, num_workers=2, **more)
    for _ in loader:
        pass
    started = time.perf_counter()
    next(iter(loader))
    return (time.perf_counter() - started) * 1e3


def growth(kind: Any, dataset: Any, **more: Any) -> float:
    """MiB that the processes together take more after three epochs than the dataset alone did."""
    gc.collect()
    before = tree_bytes()
    loader = kind(dataset, batch_size=4096, num_workers=2, persistent_workers=True, **more)
    for _ in range(3):
        for _ in loader:
            pass
    after = tree_bytes()
    del loader
    gc.collect()
    return (after - before) / (1 << 20)


def main() -> None:
    options = parser(__doc__, 5)
    options.add_argument("--no-memory", action="store_true", help="leave out the list of five million objects")
    chosen = options.parse_args()
    record = Record("workers_handover")
    for name, dataset, batch_size, target in (
        ("150 KB samples, batch 64", Large(), 64, 2.5),
        ("dicts of 8 scalars, batch 256", Scalars(), 256, 1.5),
    ):

        def run(kind: Any, more: Any, dataset: Any = dataset, batch_size: int = batch_size) -> float:
            return batches_per_second(kind, dataset, batch_size, **more)

        samples: Samples = take_turns(
            {
                f"{name}: stock, 2 workers": lambda run=run: run(TorchDataLoader, {}),
                f"{name}: 2 processes": lambda run=run: run(fl.DataLoader, PROCESSES),
                f"{name}: 2 threads": lambda run=run: run(fl.DataLoader, THREADS),
            },
            chosen.rounds,
        )
        record.samples(samples, "batches/s")
        stock, ours = (median(samples, f"{name}: {who}") for who in ("stock, 2 workers", "2 processes"))
        record.verdict(f"{name}: 2 processes, of stock's", ours / stock, target)
    scalars = Scalars()
    starts: Samples = take_turns(
        {
            "stock": lambda: second_epoch(TorchDataLoader, scalars),
            "processes": lambda: second_epoch(fl.DataLoader, scalars, **PROCESSES),
            "stock, persistent": lambda: second_epoch(TorchDataLoader, scalars, persistent_workers=True),
            "processes, persistent": lambda: second_epoch(
                fl.DataLoader, scalars, persistent_workers=True, **PROCESSES
            ),
            "threads": lambda: second_epoch(fl.DataLoader, scalars, **THREADS),
        },
        chosen.rounds,
    )
    record.samples({f"second epoch, first batch: {who}": values for who, values in starts.items()}, "ms")
    record.verdict("first batch of the second epoch, processes, ms", median(starts, "processes"), 60, most=True)
    for who in ("processes, persistent", "threads"):
        ratio = median(starts, "stock") / median(starts, who)
        record.verdict(f"first batch of the second epoch, {who}: times sooner than stock", ratio, 20)
    if not chosen.no_memory:
        objects = Objects()
        memory: Samples = take_turns(
            {
                "stock": lambda: growth(TorchDataLoader, objects),
                "processes": lambda: growth(fl.DataLoader, objects, **PROCESSES),
                "threads": lambda: growth(fl.DataLoader, objects, **THREADS),
            },
            1,
        )
        record.samples(
            {f"5 million objects, 3 epochs: {who}": values for who, values in memory.items()}, "MiB more"
        )
        ratio = median(memory, "processes") / median(memory, "stock")
        record.verdict("growth of memory with processes, of stock's", ratio, 1, most=True)
        record.verdict("growth of memory with threads, MiB", median(memory, "threads"), 20, most=True)
    record.write()


if __name__ == "__main__":
    main()
