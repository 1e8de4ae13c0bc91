"""Rows of HDF5 files, 40,000 x 2,048 float32 and labels, batch 256, shuffled: rows per second, warm page cache.

Stock is torch's DataLoader over h5py, row by row, the file opened in each worker. It is timed for some batches
after its first one, foreload for whole epochs with their start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from common import ROOT, Record, median, parser, take_turns
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl

ROWS, COLUMNS, BATCH = 40_000, 2_048, 256
LAYOUTS: dict[str, dict[str, Any]] = {
    "gzip": {"chunks": (64, COLUMNS), "compression": "gzip"},
    "gzip+shuffle": {"chunks": (64, COLUMNS), "compression": "gzip", "shuffle": True},
    "lzf": {"chunks": (64, COLUMNS), "compression": "lzf"},
    "chunked": {"chunks": (64, COLUMNS)},
    "contiguous": {},
}


def written(layout: str) -> Path:
    """Noisy waves, as sensors give them: made once, then read once."""
    path = ROOT / "data" / "hdf5" / f"{layout}.h5"
    if not path.exists():
        print(f"making {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        with h5py.File(path.with_suffix(".part"), "w") as file:
            data = file.create_dataset("data", (ROWS, COLUMNS), np.float32, **LAYOUTS[layout])
            for begin in range(0, ROWS, 640):
                waves = np.sin(np.arange(COLUMNS) / rng.uniform(5, 50, (640, 1)))[: ROWS - begin]
                data[begin : begin + 640] = (waves + rng.normal(0, 0.1, waves.shape)).round(3)
            file["labels"] = rng.integers(0, 10, ROWS)
        path.with_suffix(".part").rename(path)
    path.read_bytes()
    return path


class Stock(Dataset[Any]):
    """The HDF5 dataset that is commonly written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: Any = None

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = h5py.File(self.path, "r")
            self.data, self.labels = self.file["data"], self.file["labels"]
        return torch.from_numpy(self.data[index]), int(self.labels[index])


def some(loader: TorchDataLoader[Any], batches: int) -> Callable[[], float]:
    def run() -> float:
        given = iter(loader)
        next(given)
        started = time.perf_counter()
        for _ in range(batches):
            next(given)
        return batches * BATCH / (time.perf_counter() - started)

    return run


def whole(loader: Iterable[Any]) -> Callable[[], float]:
    def run() -> float:
        started = time.perf_counter()
        for _ in loader:
            pass
        return ROWS / (time.perf_counter() - started)

    return run


def main() -> None:
    options = parser(__doc__, 3)
    options.add_argument("--layouts", nargs="*", default=list(LAYOUTS), choices=LAYOUTS)
    arguments = options.parse_args()
    record = Record("hdf5")
    for layout in arguments.layouts:
        path = written(layout)
        dataset = fl.HDF5Dataset(path, target_name="labels")
        batches = 120 if layout in ("contiguous", "chunked") else 15
        contestants: dict[str, Callable[[], float]] = {}
        for workers in (0, 1, 2):
            loader = TorchDataLoader(Stock(path), BATCH, shuffle=True, num_workers=workers)
            contestants[f"{layout}: stock, {workers} workers"] = some(loader, batches)
        stock = list(contestants)
        inside = TorchDataLoader(dataset, BATCH, shuffle=True, num_workers=2)
        contestants[f"{layout}: stock, 2 workers, HDF5Dataset"] = some(inside, batches)
        contestants[f"{layout}: foreload"] = whole(fl.DataLoader(dataset, BATCH, shuffle=True))
        rates = take_turns(contestants, arguments.rounds)
        record.samples(rates, "rows/s")
        best = max(median(rates, name) for name in stock)
        record.verdict(f"{layout}, against the best stock", median(rates, f"{layout}: foreload") / best, 3)
    record.write()


if __name__ == "__main__":
    main()
