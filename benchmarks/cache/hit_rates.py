"""Hit rates over the cache's size, for every policy and order; and the hits of real loaders."""

from __future__ import annotations

import numpy as np
import torch
from experiment import Record, draw, parser
from torch.utils.data import Dataset, DistributedSampler, RandomSampler

import foreload as fl
from foreload.bench.curves import OrderKind, draw_order
from foreload.cache.plan import compile_plan
from foreload.cache.serialize import serialize
from foreload.cache.store import block_size
from foreload.options import POLICIES
from foreload.order.ranks import Router
from foreload.order.samplers import global_batches

SAMPLES, EPOCHS = 10_000, 9
SHARES = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9]
RANKS, BATCH = 4, 64


def warm_rate(epochs: list[np.ndarray], capacity: int, policy: str) -> float:
    """Hits after the first epoch."""
    plan = compile_plan(np.concatenate(epochs), SAMPLES, capacity, policy)  # type: ignore[arg-type]
    return float(plan.hits[len(epochs[0]) :].mean())


def routed_rate(ranks: int, capacity: int, seed: int) -> float:
    """Hits of rank 0 when samples go where they are kept."""
    router = Router(SAMPLES, ranks)
    held = router.held(0, capacity)
    sampler = DistributedSampler(range(SAMPLES), ranks, 0, seed=seed)  # type: ignore[arg-type]
    parts = [
        parts[0] for epoch in range(1, EPOCHS) for parts in global_batches(sampler, epoch, BATCH, False, router)
    ]
    return float(held[np.concatenate(parts)].mean())


class Counted(Dataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size
        self.calls = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.calls += 1
        return index


def measured(size: int) -> tuple[float, float]:
    """Hit rates after the first epoch (replacement, C = N/2): of a real loader, and of the best plan."""
    dataset = Counted(size)
    generator = torch.Generator().manual_seed(1)
    sampler = RandomSampler(dataset, replacement=True, generator=generator)
    loader = fl.DataLoader(
        dataset, BATCH, sampler=sampler, num_workers=0, cache=size // 2 * block_size(sum(map(len, serialize(0))))
    )
    accesses, misses = [], []
    for _ in range(EPOCHS):
        accesses.append([int(i) for batch in loader for i in batch])
        misses.append(dataset.calls)
    hits = 1 - (misses[-1] - misses[0]) / (size * (EPOCHS - 1))
    best = compile_plan(np.concatenate(accesses), size, size // 2)
    return hits, float(best.hits[size:].mean())


def main() -> None:
    options = parser(__doc__, 3).parse_args()
    record = Record("cache_hit_rates")
    panels = {}
    kinds: list[tuple[str, OrderKind, int]] = [
        *((kind, kind, 1) for kind in ("permutation", "replacement", "weighted", "zipf")),  # type: ignore[list-item]
        (f"{RANKS} ranks", "permutation", RANKS),
    ]
    for title, kind, ranks in kinds:
        lines = {}
        for policy in POLICIES:
            rates = []
            for share in SHARES:
                capacity = int(share * SAMPLES / ranks)
                seeds = [
                    warm_rate(draw_order(kind, SAMPLES, EPOCHS, ranks, seed), capacity, policy)
                    for seed in range(options.rounds)
                ]
                rates.append(float(np.median(seeds)))
                if share == 0.5:
                    record.samples({f"{title}, {policy}, C = N/{2 * ranks}": seeds}, "hits")
            lines[policy] = (SHARES, rates)
        if ranks > 1:
            rates = [routed_rate(ranks, int(share * SAMPLES / ranks), 0) for share in SHARES]
            lines["routed"] = (SHARES, rates)
            record.samples({f"{title}, routed, C = N/{2 * ranks}": [rates[SHARES.index(0.5)]]}, "hits")
            record.verdict("4 ranks, C = N/8 each: hits with routing", rates[SHARES.index(0.5)], 0.49)
        panels[title] = lines
    middle = SHARES.index(0.5)
    record.verdict("replacement, C = N/2: opt", panels["replacement"]["opt"][1][middle], 0.80)
    record.verdict("replacement, C = N/2: lru", panels["replacement"]["lru"][1][middle], 0.51, most=True)
    hits, best = measured(2000)
    record.samples({"a loader's hits": [hits], "the best plan for its order": [best]}, "hits")
    record.verdict("a loader's hits of the best possible", hits / best, 0.999)
    draw(
        "cache_hit_rates",
        panels,
        "cache, share of the data (all ranks together)",
        "hit rate, first epoch left out",
    )
    record.write()


if __name__ == "__main__":
    main()
