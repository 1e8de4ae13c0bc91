"""Times or memory of one loader, in a process that does nothing else; prints JSON.

Run by growth.py, which names the axes, the kinds and the points.
"""

from __future__ import annotations

import argparse
import json
import math
import mmap
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import torch
from common import ROOT
from torch.utils.data import Dataset, TensorDataset

import foreload as fl

BATCHES = 32  # of an epoch, for its memory


class Rows(Dataset[torch.Tensor]):
    """Samples of 256 bytes, made when they are loaded."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((32,), index)


def mapped_rows(count: int) -> torch.Tensor:
    """Rows of 64 bytes in a file without content, which takes no room on the disk."""
    path = ROOT / "data" / "growth.bin"
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(64 * count)
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 64 * count, prot=mmap.PROT_READ)
    memory.madvise(mmap.MADV_RANDOM)
    return torch.frombuffer(memory, dtype=torch.int64).view(-1, 8)


def photos(side: int, count: int = 16) -> Path:
    """JPEGs of one size, whose bytes per pixel do not depend on it."""
    import numpy as np
    from PIL import Image

    folder = ROOT / "data" / "growth" / str(side) / "all"
    if len(list(folder.glob("*.jpg"))) != count:
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(side)
        for number in range(count):
            coarse = Image.fromarray(random.integers(0, 256, (side // 8, side // 8, 3), np.uint8))
            smooth = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), float)
            noisy = (smooth + random.normal(0, 8, smooth.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(folder / f"{number}.jpg", quality=90)
    for file in folder.glob("*.jpg"):
        file.read_bytes()
    return folder.parent


def prepare(axis: str, kind: str, point: int) -> Callable[[], Any]:
    """Make the data; return what makes a loader of it."""
    how: dict[str, Any] = {"batch_size": 1024, "shuffle": True, "seed": 0, "num_workers": 0}
    data: Any
    if axis == "samples":
        data = {"range": range, "memory map": mapped_rows}.get(kind, Rows)(point)
        how["cache"] = "4MiB" if kind.endswith("cache") else None
    elif axis == "batch":
        what, _, number = kind.partition(", ")
        data = TensorDataset(torch.zeros(1 << 18, 100)) if what == "tensors" else Rows(1 << 16)
        how["batch_size"] = point
        if number != "no workers":
            how |= {"num_workers": 2, "workers": number.removeprefix("2 ")}
    else:
        side = 384 if axis == "workers" else math.isqrt(point)
        transform = fl.transforms.resize(224) if kind == "whole image" else fl.transforms.train(224)
        data = fl.ImageDataset(photos(side), transform=transform, cache_size=0)
        how |= {"batch_size": 32, "shuffle": None, "sampler": [number % 16 for number in range(2048)]}
        if axis == "workers" and point:
            how |= {"num_workers": point, "workers": kind.removeprefix("photos, ")}
    return lambda: fl.DataLoader(data, **how)


def time_epoch(loader: Any, seconds: float) -> dict[str, float]:
    """Seconds to the first batch, of a batch after it, of a sample of that, and of the epoch.

    Of a long epoch only the beginning is loaded; what is left counts as much as that, sample by sample.
    """
    count, first, started = 0, 0.0, time.perf_counter()
    for count, _ in enumerate(loader, 1):
        elapsed = time.perf_counter() - started
        if count == 1:
            first = elapsed
        elif elapsed > seconds:
            break
    took = time.perf_counter() - started
    each = (took - first) / (count - 1) if count > 1 else took
    rest = (len(loader) - count) * each
    return {"first": first, "batch": each, "sample": each / loader.batch_size, "epoch": took + rest}


def tree_memory() -> int:
    """Bytes of all processes of the tree: PSS, without files that are mapped."""
    total = 0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has just ended
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon", "Pss_Shmem")))
    return total


@contextmanager
def peak_memory(seen: list[int]) -> Iterator[None]:
    """Append the memory of the tree to ``seen``, again and again."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            seen.append(tree_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        seen.append(tree_memory())


def times(make: Callable[[], Any], seconds: float) -> dict[str, float]:
    """Seconds to the first batch of the first epoch; the medians of three more for the rest."""
    loader = make()
    first = time_epoch(loader, seconds)["first"]
    warm = [time_epoch(loader, seconds) for _ in range(3)]
    figures = ("batch", "sample", "epoch")
    return {"first batch": first, **{name: statistics.median(each[name] for each in warm) for name in figures}}


def memory(make: Callable[[], Any]) -> dict[str, float]:
    """The most bytes that were taken during the beginnings of two epochs, beyond those before."""
    before, seen = tree_memory(), [0]
    with peak_memory(seen):
        loader = make()
        for _ in range(2):
            for _ in islice(loader, BATCHES):
                pass
    return {"memory": max(0, max(seen) - before)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("axis")
    options.add_argument("kind")
    options.add_argument("point", type=int)
    options.add_argument("figure", choices=("time", "memory"))
    options.add_argument("--seconds", type=float, default=1, help="the longest part of an epoch that is timed")
    chosen = options.parse_args()
    make = prepare(chosen.axis, chosen.kind, chosen.point)
    list(fl.DataLoader(range(100), batch_size=64, shuffle=True, seed=0, num_workers=0))  # imports
    print(json.dumps(times(make, chosen.seconds) if chosen.figure == "time" else memory(make)))


if __name__ == "__main__":
    main()
