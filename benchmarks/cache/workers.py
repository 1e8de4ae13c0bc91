"""One cache for all workers: the same hits with two as with one, in the memory of one; OPTCache in stock torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from experiment import Record, draw, median, parser, take_turns
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, RandomSampler

import foreload as fl
from foreload.cache.plan import compile_plan
from foreload.record.usage import tree_bytes

SAMPLES, EPOCHS, BATCH, ITEM = 600, 4, 20, 5e-3
FLOATS = 25_000  # 100 KB


class Slow(Dataset[Any]):
    """Items of 5 ms."""

    def __init__(self, seconds: float = ITEM) -> None:
        self.seconds = seconds
        self.calls = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return SAMPLES

    def load(self, index: int) -> tuple[torch.Tensor, int]:
        self.calls += 1
        time.sleep(self.seconds)
        return torch.full((FLOATS,), float(index)), index

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.load(index)


class Oracle(Slow):
    """Is slow exactly where the best possible cache misses, and otherwise has the sample at hand."""

    def __init__(self, accesses: np.ndarray) -> None:
        super().__init__()
        hits = compile_plan(accesses, SAMPLES, SAMPLES // 2).hits
        places = [np.flatnonzero(accesses == index) for index in range(SAMPLES)]
        self.hits = [hits[where].tolist() for where in places]
        self.asked = torch.zeros(SAMPLES, dtype=torch.int64).share_memory_()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        use = int(self.asked[index])
        self.asked[index] += 1
        if use < len(self.hits[index]) and self.hits[index][use]:
            return torch.full((FLOATS,), float(index)), index
        return self.load(index)


class SlowWithCache(Slow):
    @fl.OPTCache(maxsize=SAMPLES // 2)
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.load(index)


def run(kind: Callable[[], Slow], workers: int) -> tuple[float, int]:
    """Seconds and loads of a training run in the stock loader."""
    generator = torch.Generator().manual_seed(0)
    fl.OPTInit(RandomSampler, generator, SAMPLES, epochs=EPOCHS)
    dataset = kind()
    sampler = RandomSampler(dataset, replacement=True, generator=generator)
    loader: Any = TorchDataLoader(
        dataset, BATCH, sampler=sampler, num_workers=workers, persistent_workers=workers > 0
    )
    started = time.perf_counter()
    for _ in range(EPOCHS):
        for _ in loader:
            pass
    return time.perf_counter() - started, int(dataset.calls)


def shared(workers: int, how: str) -> tuple[int, float]:
    """Hits of the loader's cache, and PSS of all processes with it, less than without."""
    dataset = Slow(0.0)
    sampler = RandomSampler(dataset, replacement=True, generator=torch.Generator().manual_seed(0))
    budget = SAMPLES // 2 * (FLOATS * 4 + 512)
    used = []
    for cache in (None, budget):
        loader = fl.DataLoader(
            dataset,
            BATCH,
            sampler=sampler,
            num_workers=workers,
            workers=how,
            persistent_workers=True,
            cache=cache,  # type: ignore[arg-type]
        )
        for _ in range(EPOCHS):
            for _ in loader:
                pass
        used.append(tree_bytes())
        hits = 0 if cache is None else loader.stats()["cache"]["hits"]
        loader.close()
        loader._iterator = None
    return hits, (used[1] - used[0]) / 2**20


def main() -> None:
    options = parser(__doc__, 3).parse_args()
    record = Record("cache_workers")
    generator = torch.Generator().manual_seed(0)
    sampler = RandomSampler(range(SAMPLES), replacement=True, generator=generator)  # type: ignore[arg-type]
    accesses = np.concatenate([list(sampler) for _ in range(EPOCHS)])
    misses = int((~compile_plan(accesses, SAMPLES, SAMPLES // 2).hits).sum())

    seconds = take_turns(
        {
            "stock, 2 workers": lambda: run(Slow, 2)[0],
            "stock, 2 workers, slow at misses only": lambda: run(lambda: Oracle(accesses), 2)[0],
            "stock with OPTCache, 2 workers": lambda: run(SlowWithCache, 2)[0],
        },
        options.rounds,
    )
    record.samples(seconds, "s")
    loads = {workers: run(SlowWithCache, workers)[1] for workers in (0, 1, 2)}
    print(f"  loads: {loads}; least possible: {misses}")
    for workers, count in loads.items():
        record.verdict(f"loads with {workers} workers, of the least possible", count / misses, 1.0, most=True)
    # Beside the misses, there is what the stock loader does in any case.
    allowed = median(seconds, "stock, 2 workers, slow at misses only")
    record.verdict(
        "OPTCache, 2 workers: time, of that which the optimal hit rate allows",
        median(seconds, "stock with OPTCache, 2 workers") / allowed,
        1.05,
        most=True,
    )
    found = {(workers, how): shared(workers, how) for how in ("threads", "processes") for workers in (1, 2)}
    for (workers, how), (hits, used) in found.items():
        print(f"  {workers} {how}: {hits} hits, {used:.1f} MiB more than without a cache")
    for how in ("threads", "processes"):
        one, two = found[1, how], found[2, how]
        record.verdict(f"hits with two {how}, of those with one", two[0] / one[0], 0.98)
        record.verdict(f"memory of the cache with two {how}, of that with one", two[1] / one[1], 1.1, most=True)
    record.samples({f"{n} {how}, hits": [float(v[0])] for (n, how), v in found.items()}, "hits")
    record.samples({f"{n} {how}, memory": [v[1]] for (n, how), v in found.items()}, "MiB")
    lines = {name: (range(len(values)), values) for name, values in seconds.items()}
    draw("cache_workers", {f"{EPOCHS} epochs, items of 5 ms": lines}, "run", "seconds")
    record.write()


if __name__ == "__main__":
    main()
