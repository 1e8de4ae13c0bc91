"""Epochs of the ready-made loaders of images: nothing kept, a cache that holds everything, preloaded."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from experiment import Record, images, median, parser, take_turns
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload import transforms

COUNT, SIDE, BATCH, WORKERS = 1000, 224, 64, 2

KEPT: dict[str, dict[str, Any]] = {"nothing kept": {"cache_size": 0}, "cache": {}, "preload": {"preload": True}}


def ours(dataset: Any) -> Any:
    return fl.DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS)


def stock(dataset: Any) -> Any:
    return TorchDataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)


def epoch(loader: Any) -> float:
    """Images per second."""
    started = time.perf_counter()
    for _ in loader:
        pass
    return COUNT / (time.perf_counter() - started)


def main() -> None:
    options = parser(__doc__, 7).parse_args()
    record = Record("cache_recipes")
    paths = sorted(images(COUNT).glob("*/*.jpg"))
    labels = [0] * COUNT

    def ready(augment: bool) -> Any:
        return lambda arguments: fl.create_dataloader(
            paths, labels, BATCH, WORKERS, SIDE, augment=augment, **arguments
        )

    def of(transform: Any, load: Any) -> Any:
        return lambda arguments: load(fl.HighPerformanceDataset(paths, labels, transform, **arguments))

    # The bytes that the documents say an image takes: what the transform makes of it, or 4:2:0 planes.
    view = 3 * SIDE * SIDE
    planes = float(np.mean([1.5 * np.prod(Image.open(path).size) for path in paths]))
    makers = {
        "create_dataloader, validation": (ready(augment=False), view),
        "HighPerformanceDataset": (of(None, ours), view),
        "HighPerformanceDataset, stock loader": (of(None, stock), view),
        "random crop and flip": (of(transforms.train(SIDE), ours), planes),
        "create_dataloader, training": (ready(augment=True), planes),
    }
    # More than the number of cores: others were using the machine.
    record.samples({"load average before": [os.getloadavg()[0]]}, "processes")
    for name, (make, size) in makers.items():
        loaders = {f"{name}: {kept}": make(arguments) for kept, arguments in KEPT.items()}
        speeds = take_turns(
            {name: lambda loader=loader: epoch(loader) for name, loader in loaders.items()}, options.rounds
        )
        record.samples(speeds, "images/s")
        none = median(speeds, f"{name}: nothing kept")
        for kept, target in (("cache", 3), ("preload", 3.5)):
            label = f"{name}: {kept}"
            record.verdict(f"{label}, of the speed with nothing kept", median(speeds, label) / none, target)
            stats = loaders[label].dataset.cache_stats()
            bytes_each = stats["bytes"] / stats["size"]
            record.verdict(f"{label}: bytes per image, of those documented", bytes_each / size, 1.01, most=True)
    record.write()


if __name__ == "__main__":
    main()
