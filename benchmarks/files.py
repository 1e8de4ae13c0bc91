"""Many small files, warm and cold; the same in tar shards; large files past the page cache."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from common import ROOT, Record, median, parser, take_turns
from page_cache import DROP, forget
from torch.utils.data import DataLoader, Dataset

import foreload as fl

COUNT, SIZE, BATCH = 20_000, 8192, 256
LARGE, LARGE_SIZE = 16, 64 << 20


class Plain(Dataset[torch.Tensor]):
    """The dataset that one writes for stock torch."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(self.paths[index], "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


def make_files(folder: Path, count: int, size: int) -> list[str]:
    """Files of random bytes, 100 to a folder."""
    random = Random(0)
    paths = [folder / f"{number // 100:04}" / f"{number:06}.bin" for number in range(count)]
    for path in paths:
        if not path.exists() or path.stat().st_size != size:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(random.randbytes(size))
    os.sync()
    return [str(path) for path in paths]


def build() -> Path:
    """Compile plain_read.cpp."""
    binary = ROOT / "build" / "plain_read"
    binary.parent.mkdir(exist_ok=True)
    source = Path(__file__).with_name("plain_read.cpp")
    subprocess.run(["c++", "-O2", "-std=c++20", source, "-o", binary, "-lpthread"], check=True)
    return binary


def plain(*arguments: object) -> Callable[[], float]:
    """The rate that plain_read reaches."""
    return lambda: float(subprocess.run(list(map(str, arguments)), check=True, capture_output=True).stdout)


def epoch(loader: Any, count: int, cold: list[str] | None = None) -> Callable[[], float]:
    """Samples per second of one epoch."""

    def run() -> float:
        if cold is not None:
            forget(cold)
        started = time.perf_counter()
        seen = sum(len(batch["bin"] if isinstance(batch, dict) else batch) for batch in loader)
        assert seen == count
        return seen / (time.perf_counter() - started)

    return run


def stock(paths: list[str], workers: int) -> Any:
    return DataLoader(Plain(paths), batch_size=BATCH, shuffle=True, num_workers=workers)


def ours(dataset: Any, **more: Any) -> Any:
    return fl.DataLoader(dataset, batch_size=BATCH, shuffle=True, seed=0, num_workers=2, workers="threads", **more)


def best(samples: dict[str, list[float]], start: str) -> float:
    return max(median(samples, name) for name in samples if name.startswith(start))


def main() -> None:
    options = parser(__doc__, 5).parse_args()
    record = Record("files")
    binary = build()
    folder = ROOT / "data" / "files8k"
    paths = make_files(folder, COUNT, SIZE)
    print(f"{COUNT:,} files of {SIZE} bytes, in memory; batch {BATCH}, shuffled")
    for path in paths:
        Path(path).read_bytes()
    warm = {f"stock, {workers} workers": epoch(stock(paths, workers), COUNT) for workers in (0, 1, 2)}
    warm["foreload, 2 threads"] = epoch(ours(fl.FileDataset(paths)), COUNT)
    warm["plain loop in C++, 2 threads"] = plain(binary, "files", folder, 2)
    samples = take_turns(warm, options.rounds)
    record.samples(samples, "files/s")
    mine = median(samples, "foreload, 2 threads")
    record.verdict("warm, against stock at its best", mine / best(samples, "stock"), 5)
    record.verdict("warm, of a plain loop", mine / median(samples, "plain loop in C++, 2 threads"), 0.85)

    names = "nor are their names" if os.access(DROP, os.W_OK) else "but their names are"
    print(f"the same, not in memory, {names}")
    cold = {
        f"stock, {workers} workers, cold": epoch(stock(paths, workers), COUNT, paths) for workers in (0, 2, 4, 8)
    }
    cold["foreload, cold"] = epoch(ours(fl.FileDataset(paths)), COUNT, paths)
    cold["foreload, cold, direct_io"] = epoch(ours(fl.FileDataset(paths, direct_io=True)), COUNT, paths)
    shards = ROOT / "data" / "files8k-tar"
    packed = fl.pack(folder, shards, shard_bytes=32 << 20).shards
    tar = fl.TarDataset(shards, direct_io=True)
    cold["foreload, tar, cold, direct_io"] = epoch(ours(tar), COUNT, packed)
    cold["foreload, tar, cold"] = epoch(ours(fl.TarDataset(shards)), COUNT, packed)
    whole = ROOT / "data" / "random.bin"
    if not whole.exists():
        make_files(whole.parent / "large", LARGE, LARGE_SIZE)
        with whole.open("wb") as out:
            for path in sorted((whole.parent / "large").glob("*/*.bin")):
                out.write(path.read_bytes())
    cold["disk: random reads of 8 KiB, 64 at a time"] = plain(binary, "random", whole, SIZE, 64)
    samples = take_turns(cold, options.rounds)
    record.samples(samples, "files/s")
    mine = best(samples, "foreload, cold")
    record.verdict("cold, against stock at its best", mine / best(samples, "stock"), 3)
    record.verdict("cold, tar against loose files", best(samples, "foreload, tar") / mine, 3)
    disk = median(samples, "disk: random reads of 8 KiB, 64 at a time")
    record.verdict("cold, tar, of the disk's rate", best(samples, "foreload, tar") / disk, 0.8)

    print(f"{LARGE} files of {LARGE_SIZE >> 20} MiB, past the page cache, in order")
    large = make_files(ROOT / "data" / "large", LARGE, LARGE_SIZE)
    loader = fl.DataLoader(fl.FileDataset(large, direct_io=True), batch_size=2, num_workers=2, workers="threads")
    rates = {"foreload": epoch(loader, LARGE, large)}
    sequential = {name: lambda run=run: run() * LARGE_SIZE / 1e6 for name, run in rates.items()}
    for threads in (1, 2, 4, 16, 64):
        run = plain(binary, "sequential", ROOT / "data" / "large", threads)
        sequential[f"plain loop, 1 MiB at a time, {threads} threads"] = lambda run=run: run() / 1e6
    samples = take_turns(sequential, options.rounds)
    record.samples(samples, "MB/s")
    record.verdict("sequential, of the disk's rate", median(samples, "foreload") / best(samples, "plain"), 0.95)
    record.write()


if __name__ == "__main__":
    main()
