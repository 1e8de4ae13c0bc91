"""JPEG training input from a tiled pack, against the loose files: uint8, antialiased random crops."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from typing import Any

from common import ROOT, Record, images, median, parser, take_turns

import foreload as fl

BATCH = 64
SEEDS = itertools.count(1)


def epoch(dataset: Any) -> Callable[[], float]:
    """Images per second of one epoch."""

    def run() -> float:
        loader = fl.DataLoader(dataset, batch_size=BATCH, shuffle=True, seed=next(SEEDS), num_workers=2)
        started = time.perf_counter()
        for _ in loader:
            pass
        return len(dataset) / (time.perf_counter() - started)

    return run


def main() -> None:
    options = parser(__doc__, 9).parse_args()
    record = Record("tiled")
    folder = images()
    packs = {}
    for name in ("tiled", "packed"):
        target = ROOT / "data" / f"{folder.name}-{name}"
        shutil.rmtree(target, ignore_errors=True)
        packs[name] = fl.pack(folder, target, tiled=name == "tiled")
    transform = fl.transforms.train(224, normalize=False)
    contestants = {
        name: fl.ImageDataset(source, transform=transform, cache_size=0)
        for name, source in {
            "loose files": folder,
            "packed": ROOT / "data" / f"{folder.name}-packed",
            "packed and tiled": ROOT / "data" / f"{folder.name}-tiled",
        }.items()
    }
    for dataset in contestants.values():
        for index in range(len(dataset)):
            dataset._files.keep(index)  # into the page cache
    samples = take_turns({name: epoch(dataset) for name, dataset in contestants.items()}, options.rounds)
    record.samples(samples, "images/s")
    tiled = packs["tiled"]
    record.verdict("size of the pack against the files", tiled.bytes_after / tiled.bytes_before, 1.03, most=True)
    record.verdict(
        "tiled against loose", median(samples, "packed and tiled") / median(samples, "loose files"), 1.3
    )
    record.write()


if __name__ == "__main__":
    main()
