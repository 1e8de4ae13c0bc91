"""Put the optimal cache under a dataset of your own, in torch's own loader, and count what it saves.

python own_dataset.py --samples 1000 --keep 300
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

import foreload as fl


class Expensive(Dataset[torch.Tensor]):
    """Samples that take 2 ms each, and are counted over all workers."""

    loads: Any = multiprocessing.Value("i", 0)

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def load(self, index: int) -> torch.Tensor:
        with self.loads.get_lock():
            self.loads.value += 1
        time.sleep(0.002)
        return torch.full((100,), float(index))

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.load(index)


def measure(name: str, dataset: Dataset[torch.Tensor], generator: torch.Generator, epochs: int) -> float:
    """Run the epochs; return the sum of all samples, which no cache may change."""
    generator.manual_seed(0)
    Expensive.loads.value = 0
    sampler = RandomSampler(dataset, replacement=True, generator=generator)  # as weighted samplers draw, too
    loader = DataLoader(dataset, batch_size=50, sampler=sampler, num_workers=2)
    began = time.perf_counter()
    total = sum(batch.sum().item() for _ in range(epochs) for batch in loader)
    seconds = time.perf_counter() - began
    requests = epochs * len(dataset)  # type: ignore[arg-type]
    print(f"{name:10} {Expensive.loads.value:6} loads of {requests} requests, {seconds:.1f} s")
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description="The optimal cache under a dataset of your own.")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--keep", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args()
    generator = torch.Generator().manual_seed(0)

    class WithLRU(Expensive):
        @fl.cached(maxsize=given.keep, policy="lru")
        def __getitem__(self, index: int) -> torch.Tensor:
            return self.load(index)

    fl.OPTInit(RandomSampler, generator, given.samples)

    class WithOPT(Expensive):
        @fl.OPTCache(maxsize=given.keep)
        def __getitem__(self, index: int) -> torch.Tensor:
            return self.load(index)

    totals = {
        measure(name, kind(given.samples), generator, given.epochs)
        for name, kind in (("no cache", Expensive), ("LRU", WithLRU), ("OPTCache", WithOPT))
    }
    print("the same samples each time" if len(totals) == 1 else "the samples differ")


if __name__ == "__main__":
    main()
