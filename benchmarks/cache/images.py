"""Epochs of JPEGs with half of them in memory, against none; the cost of a hit; mixed data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiment import Record, draw, images, median, parser, take_turns
from PIL import Image

import foreload as fl
from foreload import _native
from foreload.cache.forms import ENCODED, PLANES, RGB
from foreload.cache.store import SampleStore
from foreload.datasets.images.decode import decode_with_pillow

COUNT = 1000
DECODED = 500 * 375 * 3


def epoch(loader: Any) -> float:
    started = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - started


def warmed(data: fl.ImageDataset, cache: fl.Cache | None, order: dict[str, Any] | None = None) -> Any:
    loader = fl.DataLoader(data, 64, num_workers=2, cache=cache, **(order or {"shuffle": True, "seed": 0}))
    for _ in range(2):
        epoch(loader)
    return loader


def hit_costs(folder: Path, rounds: int, record: Record) -> None:
    """One thread, a batch of 64 at a time: random crop, resize, flip, normalise."""
    data = fl.ImageDataset(folder)
    transform = fl.transforms.train(224)
    out = torch.empty(64 * 3 * 224 * 224, dtype=torch.float32).view(torch.uint8).numpy()

    def contestant(form: int) -> Any:
        store = SampleStore(len(data), 64 * 2 * DECODED) if form else None
        forms = np.full(len(data), form, np.uint8)

        def run() -> float:
            started = time.perf_counter()
            for _ in range(4):
                where = np.arange(64)
                native = None if store is None else store.native
                arguments = data._files, transform.native, where, 0, 0, out, decode_with_pillow
                job = _native.ImageJob(*arguments, native, forms if form else None)
                job.run_here()
                assert not job.failures()
            return (time.perf_counter() - started) / 256 * 1e6

        return run

    forms = {"no cache": 0, "hit, file's bytes": ENCODED, "hit, 4:2:0 planes": PLANES, "hit, RGB": RGB}
    costs = take_turns({name: contestant(form) for name, form in forms.items()}, rounds)
    record.samples(costs, "us/image")
    for form in ("hit, RGB", "hit, 4:2:0 planes"):
        record.verdict(
            f"{form}: times cheaper than reading and decoding", median(costs, "no cache") / median(costs, form), 3
        )


def mixed(folder: Path) -> Path:
    """Small and large, smooth and noisy: from 40 KB to 2 MB decoded, cheap and dear to decode."""
    (folder / "x").mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for i in range(600):
        file = folder / "x" / f"{i:04}.jpg"
        width, height, smooth, quality = [(160, 120, 16, 60), (500, 375, 2, 92), (1000, 700, 40, 40)][i % 3]
        if file.exists():
            continue
        low = random.integers(0, 255, (height // smooth + 2, width // smooth + 2, 3), np.uint8)
        image = Image.fromarray(low).resize((width, height), Image.Resampling.BICUBIC)
        image.save(file, quality=quality, subsampling=2 if i % 2 else 0)
    return folder


def main() -> None:
    options = parser(__doc__, 7).parse_args()
    record = Record("cache_images")
    folder = images(COUNT)
    hit_costs(folder, options.rounds, record)

    data = fl.ImageDataset(
        folder, transform=fl.transforms.train(224, color_jitter=(0.2, 0.2, 0.2, 0.1)), cache_size=0
    )
    half = COUNT // 2 * DECODED
    caches = {
        "no cache": None,
        "opt, auto": fl.Cache(half),
        "opt, decoded": fl.Cache(half, keep="decoded"),
        "opt, encoded": fl.Cache(half, keep="encoded"),
        "lru, auto": fl.Cache(half, policy="lru"),
    }
    loaders = {name: warmed(data, cache) for name, cache in caches.items()}
    seconds = take_turns(
        {name: lambda loader=loader: epoch(loader) for name, loader in loaders.items()}, options.rounds
    )
    record.samples(seconds, "s/epoch")
    for name, loader in loaders.items():
        if loader.cache is not None:
            counts = loader.stats()["cache"]
            print(f"  {name}: {counts['samples']} of {COUNT} images in {counts['used'] / 2**20:.0f} MiB")
    share = median(seconds, "opt, auto") / median(seconds, "no cache")
    record.verdict("epoch with auto, budget of half the decoded images, of one without", share, 0.7, most=True)
    # The same, where no planes help: half of the images fit, as RGB.
    del loaders

    data = fl.ImageDataset(
        mixed(folder.parent / "mixed"),
        transform=fl.transforms.train(224, color_jitter=(0.2, 0.2, 0.2, 0.1)),
        cache_size=0,
    )
    budget = 150 << 20
    names = {"mixed, auto": "auto", "mixed, decoded": "decoded", "mixed, encoded": "encoded"}
    loaders = {name: warmed(data, fl.Cache(budget, keep=keep)) for name, keep in names.items()}  # type: ignore[arg-type]
    loaders["mixed, no cache"] = warmed(data, None)
    times = take_turns(
        {name: lambda loader=loader: epoch(loader) for name, loader in loaders.items()}, options.rounds
    )
    record.samples(times, "s/epoch")
    best = min(median(times, "mixed, decoded"), median(times, "mixed, encoded"))
    record.verdict(
        "mixed data: auto against the better of the two, time",
        median(times, "mixed, auto") / best,
        1.03,
        most=True,
    )
    lines = {name: ([0, 1], [0, median(seconds, name)]) for name in seconds}
    draw("cache_images", {"epoch, budget of half the decoded images": lines}, "epochs", "seconds")
    record.write()


if __name__ == "__main__":
    main()
