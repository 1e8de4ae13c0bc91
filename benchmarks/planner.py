"""Time and memory until the first batch of one rank, in a process that does nothing else; prints JSON.

Run by scale.py, which says what the kinds are.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, DistributedSampler, RandomSampler

import foreload as fl

KINDS = ("order", "unshuffled", "cache", "routed", "resumed", "resumed, routed", "torch", "repeats")
STEPS = 200
BATCH = 64


class Index(Dataset[torch.Tensor]):
    """Samples of 256 bytes, made when they are loaded."""

    thread_safe = True

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((32,), index)


def memory(field: str) -> float:
    """Return a figure of this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def make(kind: str, samples: int, ranks: int) -> Any:
    """Return a loader of one rank."""
    data, rank = Index(samples), min(3, ranks - 1)
    seeded: dict[str, Any] = {"seed": 0, "group": (rank, ranks)} if ranks > 1 else {"seed": 0}
    caches: dict[str, Any] = {
        "cache": fl.Cache("1GiB"),
        "routed": fl.Cache("1GiB", route=True),
        "resumed, routed": fl.Cache("1GiB", route=True),
        "repeats": fl.Cache("1GiB"),
    }
    how: dict[str, Any] = {"batch_size": BATCH, "num_workers": 0, "cache": caches.get(kind)}
    if kind == "torch":
        how["sampler"] = DistributedSampler(data, ranks, rank)
    elif kind == "repeats":
        generator = torch.Generator().manual_seed(0)
        how["sampler"] = RandomSampler(data, replacement=True, generator=generator)
    else:
        how |= {"shuffle": kind != "unshuffled", **seeded}
    return fl.DataLoader(data, **how)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kind", required=True, choices=KINDS)
    options.add_argument("--samples", type=int, required=True)
    options.add_argument("--ranks", type=int, default=8)
    arguments = options.parse_args()
    for name in ("samples", "ranks"):
        if getattr(arguments, name) < 1:
            options.error(f"--{name} must be 1 or more, got {getattr(arguments, name)}")
    kind, samples, ranks = arguments.kind, arguments.samples, arguments.ranks
    list(fl.DataLoader(Index(100), 64, shuffle=True, seed=0, num_workers=0, cache="1MiB"))  # imports
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    before, started = memory("VmRSS"), time.perf_counter()
    loader = make(kind, samples, ranks)
    if kind.startswith("resumed"):
        # Half of the epoch was delivered, to three ranks more.
        state = loader.state_dict()
        world = ranks + 3
        half = samples // 2 // (world * BATCH) * (world * BATCH)
        loader.load_state_dict({**state, "begun": True, "order_drawn": True, "given": [[0, half]], "ranks": world})
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - started
    started, count = time.perf_counter(), 0
    for _ in range(STEPS):
        count += next(batches, None) is not None
    each = (time.perf_counter() - started) / max(1, count)
    peak = memory("VmHWM") - before
    print(json.dumps({"first batch, ms": 1e3 * first, "peak, MiB": peak, "batch, us": 1e6 * each}))


if __name__ == "__main__":
    main()
