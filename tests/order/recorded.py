"""Orders and cache plans as digests, so that they stay what they were for the same arguments.

``python -m tests.order.recorded`` writes those of today to recorded.json, which is only right if a change of order
is meant: then states saved before it do not go on where they were.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, Dataset, DistributedSampler

import foreload as fl
from foreload.order.epoch_order import EpochOrder
from foreload.order.ranks import Router
from foreload.order.resume import BEGINNING, Start
from foreload.order.samplers import KeyedSampler
from foreload.order.skip import LeftOut

__all__ = ["RECORDED", "orders", "plans"]

RECORDED = Path(__file__).with_name("recorded.json")

_SIZES = (1, 7, 64, 256, 257, 1000, 70_001)
_KINDS = ("keyed", "sequential", "distributed", "routed", "routed torch")
_WORLDS = (1, 2, 3, 8)


def orders() -> Iterator[tuple[str, str]]:
    """Yield, for each kind of sampler, size and number of ranks, a digest of many orders."""
    for kind, size, world in product(_KINDS, _SIZES, _WORLDS):
        if world == 1 and kind not in ("keyed", "distributed"):
            continue
        found = (part for case in _cases(size) for part in _batches(kind, size, world, case))
        yield f"{kind}, {size}, {world}", _digest(found)


def _cases(size: int) -> Iterator[tuple[Any, ...]]:
    """Yield batch size, seed, epoch, drop_last, what was delivered, and what is left out."""
    some = np.array([0, 3, 5, 6, size // 2], np.int64)
    starts = (BEGINNING, Start([(0, size // 3)]), Start([(0, size // 4), (size // 3, size // 2)]))
    skips = (None, LeftOut([(1, 3)], some[:0]), LeftOut([(2, 3)], np.unique(some)))
    every = list(product((1, 3, 64), (0, 1, 2**63 - 5), (0, 5), (False, True), starts, skips))
    yield from every[:: 5 if size <= 64 else 23 if size <= 1000 else 89]


def _batches(kind: str, size: int, world: int, case: tuple[Any, ...]) -> Iterator[np.ndarray[Any, Any]]:
    batch_size, seed, epoch, drop_last, start, skip = case
    for rank in sorted({0, world // 2, world - 1}):
        data: Any = range(size)
        sampler: Any
        if kind in ("keyed", "routed"):
            sampler = KeyedSampler(data, seed, num_replicas=world, rank=rank, drop_last=drop_last)
        else:
            shuffle = kind != "sequential"
            sampler = DistributedSampler(data, world, rank, shuffle, seed, drop_last)
        sampler.set_epoch(epoch)
        router = Router(size, world) if kind.startswith("routed") else None
        leave_out: Any = None if skip is None else lambda _: skip
        order = EpochOrder(
            BatchSampler(sampler, batch_size, drop_last), router=router, start=start, skip=leave_out, number=epoch
        )
        yield from order
        yield np.array(order.left_out, np.int64)


class _Rows(Dataset[torch.Tensor]):
    thread_safe = True

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((index % 40,), index)


def plans() -> Iterator[tuple[str, str]]:
    """Yield, for loaders of one rank, a digest of plans and of what is cached after each epoch."""
    for policy, route, size, rank in product(("opt", "fixed", "lru", "lfu"), (False, True), (300, 2000), (0, 2)):
        loader: Any = fl.DataLoader(
            _Rows(size),
            batch_size=16,
            shuffle=True,
            seed=4,
            group=(rank, 3),
            num_workers=0,
            collate_fn=list,
            cache=fl.Cache(size * 60, policy=policy, route=route),  # type: ignore[arg-type]
        )
        found = []
        for _ in range(3):
            for _ in loader:
                pass
            cache = loader.sample_cache
            found.append(cache.store.residents())
            if cache.plan is not None:
                found += [cache.plan.accesses, cache.plan.hits, cache.plan.keep, cache.plan.retained]
        yield f"{policy}, {'routed, ' if route else ''}{size}, rank {rank}", _digest(found)
        loader.close()


def _digest(arrays: Iterable[np.ndarray[Any, Any]]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for array in arrays:
        digest.update(len(array).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    RECORDED.write_text(json.dumps({"orders": dict(orders()), "plans": dict(plans())}, indent=1) + "\n")
