"""The size from which caching pays: the cost of a hit against that of loading, over the sample's size."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from experiment import Record, draw, parser

from foreload.cache.store import SampleStore

SIZES = [1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 23]


def each(action: Any, count: int) -> float:
    """Microseconds."""
    started = time.perf_counter()
    for i in range(count):
        action(i)
    return (time.perf_counter() - started) / count * 1e6


def main() -> None:
    options = parser(__doc__, 5).parse_args()
    record = Record("cache_worth")
    hits, first, copies = [], [], []
    for size in SIZES:
        count = max(8, min(2000, (256 << 20) // size))
        sample = torch.zeros(size // 4)
        others = [torch.zeros(size // 4) for _ in range(count)]

        def one(store: SampleStore, index: int, sample: torch.Tensor = sample) -> Any:
            return store.load(index, lambda index: (sample, index))

        hit, miss, copy = [], [], []
        for _ in range(options.rounds):
            store = SampleStore(count, count * (size + 1024))
            miss.append(each(lambda i, store=store: one(store, i), count))
            hit.append(each(lambda i, store=store: one(store, i), count))
            copy.append(each(lambda i, others=others: others[i].clone(), count))
        record.samples(
            {
                f"{size:,} bytes, hit": hit,
                f"{size:,} bytes, first time": miss,
                f"{size:,} bytes, plain copy": copy,
            },
            "us",
        )
        hits.append(statistics.median(hit))
        first.append(statistics.median(miss))
        copies.append(statistics.median(copy))
    print("  a sample that takes less than the first line to make is better not cached:")
    for size, cost, fill in zip(SIZES, hits, first, strict=True):
        print(f"    {size:>10,} bytes: {cost:8.1f} us for a hit, {fill:8.1f} us to keep it")
    record.verdict("a hit of 8 MiB, of a plain copy", hits[-1] / copies[-1], 2, most=True)
    sizes = [float(size) for size in SIZES]
    lines = {"hit": (sizes, hits), "first time": (sizes, first), "plain copy": (sizes, copies)}
    draw("cache_worth", {"a tensor and an int": lines}, "bytes", "microseconds")
    record.write()


if __name__ == "__main__":
    main()
