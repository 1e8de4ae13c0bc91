"""Worker processes against the stock loader's on eight datasets, from the first epoch on, in wall and CPU time."""

from __future__ import annotations

import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from datasets import DATASETS, Sized
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl

sys.path.append(str(Path(__file__).parent.parent))

from common import Record, Samples, median, parser

# The numbers of workers of which the best is stock's; more than two pay on two cores only where samples wait.
FIXED = {name: (2, 4, 8) if name == "sleeping" else (1, 2) for name in DATASETS}

# Epochs of about half a second, where a start counts.
SIZES = {"sleeping": 400, "tiny": 100_000, "Pillow": 400, "native": 600}


def cpu_seconds() -> float:
    """The CPU seconds of this process and its children that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in both)


def epoch(loader: Any) -> tuple[float, float]:
    """Milliseconds of an epoch: of time, and of CPU time."""
    started, spent = time.perf_counter(), cpu_seconds()
    for _ in loader:
        pass
    return (time.perf_counter() - started) * 1e3, (cpu_seconds() - spent) * 1e3


def main() -> None:
    options = parser(__doc__, 7)
    options.add_argument("--only", choices=DATASETS, action="append", help="only this dataset")
    chosen = options.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    record = Record("workers_processes")
    for name in chosen.only or DATASETS:
        kind, batch_size = DATASETS[name]
        dataset: Sized = kind()
        dataset.size = SIZES.get(name, dataset.size)
        loaders: dict[str, Any] = {
            f"stock, {number}": TorchDataLoader(dataset, batch_size=batch_size, num_workers=number)
            for number in FIXED[name]
        }
        loaders["2 processes"] = fl.DataLoader(dataset, batch_size=batch_size, num_workers=2, workers="processes")
        loaders["auto"] = fl.DataLoader(dataset, batch_size=batch_size, workers="processes")
        loaders["defaults"] = fl.DataLoader(dataset, batch_size=batch_size)
        wall: Samples = {label: [] for label in loaders}
        cpu: Samples = {label: [] for label in loaders}
        for _ in range(chosen.rounds):
            for label, loader in loaders.items():
                taken, spent = epoch(loader)
                wall[label].append(taken)
                cpu[label].append(spent)
        record.samples({f"{name}: {label}": values for label, values in wall.items()}, "ms")
        record.samples({f"{name}: {label}, CPU": values for label, values in cpu.items()}, "ms")
        best = min((f"stock, {number}" for number in FIXED[name]), key=lambda label: median(wall, label))
        if name != "sleeping":
            record.verdict(f"{name}: 2 processes, of {best}", median(wall, best) / median(wall, "2 processes"), 1)
        for label in ("auto", "defaults"):
            record.verdict(f"{name}: {label}, of {best}", median(wall, best) / median(wall, label), 1)
        record.verdict(f"{name}: CPU of {best} over that of auto", median(cpu, best) / median(cpu, "auto"), 1)
    record.write()


if __name__ == "__main__":
    main()
