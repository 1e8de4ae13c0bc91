"""Any Python dataset whose item costs 1 ms without the GIL: how busy two threads keep two cores."""

from __future__ import annotations

import time
import zlib
from typing import Any

import numpy as np
from common import Record, median, parser, take_turns
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl

COUNT = 1000
BATCH = 50


class Compressed(Dataset[int]):
    """Each item compresses some bytes, which releases the GIL; how many is calibrated to 1 ms."""

    def __init__(self) -> None:
        self.data = np.random.default_rng(0).integers(0, 60, 200_000, dtype=np.uint8).tobytes()
        for _ in range(3):
            started = time.perf_counter()
            for _ in range(100):
                zlib.compress(self.data, 1)
            cost = (time.perf_counter() - started) / 100
            self.data = (self.data * 4)[: int(len(self.data) * 1e-3 / cost)]

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        zlib.compress(self.data, 1)
        return index


def main() -> None:
    options = parser(__doc__, 7).parse_args()
    record = Record("python_items")
    dataset = Compressed()

    def loop() -> float:
        started = time.perf_counter()
        for i in range(COUNT):
            dataset[i]
        return time.perf_counter() - started

    def epoch(loader: Any) -> float:
        started = time.perf_counter()
        for _ in loader:
            pass
        return time.perf_counter() - started

    ours = fl.DataLoader(dataset, BATCH, num_workers=2)
    stock = TorchDataLoader(dataset, BATCH, num_workers=2)
    seconds = take_turns(
        {"plain loop": loop, "foreload, 2 threads": lambda: epoch(ours), "stock, 2 workers": lambda: epoch(stock)},
        options.rounds,
    )
    record.samples(seconds, "s")
    print(f"  an item costs {1e3 * median(seconds, 'plain loop') / COUNT:.3f} ms")
    busy = median(seconds, "plain loop") / 2 / median(seconds, "foreload, 2 threads")
    record.verdict("share of two busy cores", busy, 0.93)
    record.write()


if __name__ == "__main__":
    main()
