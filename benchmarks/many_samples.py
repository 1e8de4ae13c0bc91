"""Large orders: tensors of 100 floats at batch 1,024; the first of 100 million samples, with a cache too."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from common import Record, Samples, median, parser, take_turns
from torch.utils.data import Dataset, TensorDataset

import foreload as fl

BATCH = 1024
ROWS = 64 * BATCH
SAMPLES = 100_000_000
X = torch.empty(0)
THREADS = torch.get_num_threads()


class Bare:
    """Rows copied by a permutation into one buffer, nothing else, by so many of torch's threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __iter__(self) -> Iterator[Any]:
        torch.set_num_threads(self.threads)
        order = torch.randperm(ROWS)
        out = torch.empty(BATCH, 100)
        for start in range(0, ROWS, BATCH):
            yield torch.index_select(X, 0, order[start : start + BATCH], out=out)
        torch.set_num_threads(THREADS)


class Rows(Dataset[torch.Tensor]):
    """Samples of 2,000 bytes, made when they are loaded."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((250,), index)


def per_batch(loader: Iterable[Any]) -> Callable[[], float]:
    """Microseconds per batch, over an epoch."""

    def run() -> float:
        started = time.perf_counter()
        count = sum(1 for _ in loader)
        return 1e6 * (time.perf_counter() - started) / count

    return run


def resident() -> float:
    """The MiB of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def begin(dataset: Any, cache: str | None) -> None:
    """Print milliseconds to the first batch and the MiB that it took, in a process of its own."""
    torch.utils.data.default_collate([torch.zeros(1)])
    list(fl.DataLoader(range(100), batch_size=64, shuffle=True, seed=0))  # imports
    memory, started = resident(), time.perf_counter()
    loader = fl.DataLoader(dataset, batch_size=64, shuffle=True, seed=0, cache=cache)
    next(iter(loader))
    took = time.perf_counter() - started
    memory = resident() - memory
    started = time.perf_counter()
    loader.indices(3, 1_000_000)
    print(1e3 * took, memory, 1e3 * (time.perf_counter() - started))


def first_batches(rounds: int) -> dict[str, Samples]:
    """Measure each contestant in fresh processes."""
    kinds = {"range": "a range", "rows": "a Python dataset", "cached": "the same, cache='1GiB'"}
    figures: dict[str, Samples] = {"ms": {}, "MiB": {}, "ms to indices(3, 1_000_000)": {}}
    for _ in range(rounds):
        for kind, name in kinds.items():
            command = [sys.executable, "-W", "ignore", __file__, "--begin", kind]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            for samples, value in zip(figures.values(), map(float, said), strict=True):
                samples.setdefault(f"first batch of {SAMPLES:,}, {name}", []).append(value)
    return figures


def main() -> None:
    options = parser(__doc__, 7)
    options.add_argument("--begin", choices=("range", "rows", "cached"), help="measure one first batch")
    arguments = options.parse_args()
    if arguments.begin:
        samples: Any = range(SAMPLES) if arguments.begin == "range" else Rows()
        begin(samples, "1GiB" if arguments.begin == "cached" else None)
        return
    global X
    X = torch.randn(ROWS, 100)
    record = Record("many_samples")
    contestants: dict[str, Callable[[], float]] = {
        "bare index_select(out=)": per_batch(Bare(THREADS)),
        "the same, in one thread": per_batch(Bare(1)),
    }
    for name, dataset in (
        ("TensorDataset", TensorDataset(X)),
        ("CachedDataset", fl.CachedDataset(X)),
        ("a tensor", X),
    ):
        for seed in (None, 0):
            loader = fl.DataLoader(dataset, batch_size=BATCH, shuffle=True, seed=seed)
            contestants[f"{name}, {'torch order' if seed is None else 'seed=0'}"] = per_batch(loader)
    times = take_turns(contestants, 10 * arguments.rounds)
    record.samples(times, "us/batch")
    # The fastest rounds: two threads of the bare loop suffer most from anything else that runs.
    bare = min(times["bare index_select(out=)"])
    for name in list(times)[2:]:
        record.verdict(f"{name}, of the bare loop", min(times[name]) / bare, 1.3, most=True)
    targets = {"a range": 20.0, "a Python dataset": 2000.0, "the same, cache='1GiB'": 2000.0}
    figures = first_batches(arguments.rounds)
    for unit, values in figures.items():
        record.samples({f"{name} [{unit}]": each for name, each in values.items()}, unit.split()[0])
    for name, most in targets.items():
        key = f"first batch of {SAMPLES:,}, {name}"
        record.verdict(f"{key}, ms", median(figures["ms"], key), most, most=True)
        record.verdict(f"{key}, MiB", median(figures["MiB"], key), 300, most=True)
    record.write()


if __name__ == "__main__":
    main()
