"""JPEG training input: against stock torch, the fastest peer, and the limit of libjpeg-turbo."""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import ROOT, Record, Samples, images, median, parser, take_turns
from peer import SimplejpegOpenCV
from PIL import Image

import foreload as fl
from foreload.bench.contestants import Work
from foreload.bench.measure import Child

BATCH = 64
SEEDS = itertools.count(1)


def epoch_of(make: Callable[[], Iterable[Any]], count: int) -> Callable[[], float]:
    """Images per second of one epoch."""

    def run() -> float:
        started = time.perf_counter()
        for _ in make():
            pass
        return count / (time.perf_counter() - started)

    return run


def processes(folder: Path) -> dict[str, Child]:
    """Stock with any number of workers, and foreload, each in a process of its own; normalised float32."""
    work = Work(str(folder), BATCH)
    children = {"stock, 0 workers": Child("stock, in the loop", work)}
    for workers in (1, 2, 3):
        children[f"stock, {workers} workers"] = Child("stock, workers", work._replace(workers=workers))
    children["foreload, 2 workers"] = Child("foreload, workers", work)
    return children


def speed_of(child: Child) -> Callable[[], float]:
    """Images per second of one epoch."""

    def run() -> float:
        epoch = child.epoch(next(SEEDS))
        return float(epoch["samples"] / epoch["seconds"])

    return run


def build_limit() -> Path:
    """Compile limit.cpp with the core."""
    build = ROOT / "build" / "benchmarks"
    for command in (
        ["cmake", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DFORELOAD_BUILD_BENCHMARKS=ON"],
        ["cmake", "--build", build, "--parallel", "2", "--target", "limit"],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return build / "limit"


def progressive(folder: Path) -> Path:
    """The same pictures in progressive files: made once, then read once, so that the page cache is warm."""
    target = folder.with_name(f"{folder.name}-progressive")
    for file in sorted(folder.glob("*/*.jpg")):
        copy = target / file.relative_to(folder)
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            Image.open(file).save(copy, "JPEG", quality="keep", progressive=True)
        copy.read_bytes()
    return target


def bytes_against_the_peer(folder: Path, rounds: int) -> Samples:
    """Images per second to uint8: foreload, and threads with simplejpeg's fast DCT and OpenCV."""
    dataset = fl.ImageDataset(folder, transform=fl.transforms.train(224, normalize=False), cache_size=0)
    loader = fl.DataLoader(dataset, BATCH, shuffle=True, num_workers=2)
    peer = SimplejpegOpenCV(folder, BATCH, 2)
    contestants = {
        "progressive, foreload": epoch_of(lambda: loader, len(dataset)),
        "progressive, threads, simplejpeg, OpenCV": epoch_of(lambda: peer, len(dataset)),
    }
    return take_turns(contestants, rounds)


class NumpyAugmented(torch.utils.data.Dataset):
    """CIFAR-like training samples, augmented one by one in NumPy."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        padded = np.pad(self.pixels[index], ((4, 4), (4, 4), (0, 0)))
        top, left, y, x = np.random.randint((9, 9, 32, 32))
        image = padded[top : top + 32, left : left + 32, :: np.random.choice((-1, 1))].astype(np.float32)
        image = (image / 255 - np.float32(fl.transforms.IMAGENET_MEAN)) / np.float32(fl.transforms.IMAGENET_STD)
        image[max(0, y - 4) : y + 4, max(0, x - 4) : x + 4] = 0
        return torch.from_numpy(image).permute(2, 0, 1), index % 10


def small_images(rounds: int) -> Samples:
    """CIFAR-like samples per second: crop with padding, flip, cutout, float32."""
    pixels = np.random.default_rng(0).integers(0, 256, (20000, 32, 32, 3), np.uint8)
    transform = fl.transforms.train_small(32, padding=4, cutout=8)
    ours = fl.ImageArrayDataset(pixels, np.arange(len(pixels)) % 10, transform)
    loader = fl.DataLoader(ours, 512, shuffle=True, seed=0)
    stock = torch.utils.data.DataLoader(NumpyAugmented(pixels), 512, shuffle=True, num_workers=2)
    contestants = {
        "CIFAR-like, foreload, defaults": epoch_of(lambda: loader, len(pixels)),
        "CIFAR-like, stock, 2 workers": epoch_of(lambda: stock, len(pixels)),
    }
    return take_turns(contestants, rounds)


def normalised(record: Record, folder: Path, rounds: int) -> None:
    """Float32, against stock torch: images per second, and the time of the first batch."""
    print("normalised float32, each contestant in a process of its own")
    children = processes(folder)
    try:
        speeds = take_turns({name: speed_of(child) for name, child in children.items()}, rounds)
        firsts = take_turns(
            {
                f"{name}, first batch": lambda name=name: 1e3 * children[name].epoch(next(SEEDS), 1)["first"]
                for name in ("stock, 2 workers", "foreload, 2 workers")
            },
            3 * rounds,
        )
    finally:
        for child in children.values():
            child.close()
    record.samples(speeds, "images/s")
    best = max(median(speeds, name) for name in children if name.startswith("stock"))
    record.verdict("float32, against stock at its best", median(speeds, "foreload, 2 workers") / best, 5)
    record.samples(firsts, "ms")
    sooner = median(firsts, "stock, 2 workers, first batch") / median(firsts, "foreload, 2 workers, first batch")
    record.verdict("first batch, times sooner than stock with 2 workers", sooner, 10)


def as_bytes(record: Record, folder: Path, limit: Path, rounds: int) -> list[dict[str, float]]:
    """Uint8, against the limit and the peer; return what the limit measured in each round."""
    count = len(list(folder.glob("*/*.jpg")))
    print("uint8, antialiased")
    dataset = fl.ImageDataset(folder, transform=fl.transforms.train(224, normalize=False), cache_size=0)
    byte_loader = fl.DataLoader(dataset, BATCH, shuffle=True, num_workers=2)
    details: list[dict[str, float]] = []

    def run_limit() -> float:
        output = subprocess.run([limit, folder, "2"], check=True, stdout=subprocess.PIPE, text=True).stdout
        details.append(json.loads(output))
        return details[-1]["images_per_s"]

    peer = SimplejpegOpenCV(folder, BATCH, 2)
    speeds = take_turns(
        {
            "limit: libjpeg-turbo crop decode, resize": run_limit,
            "foreload, uint8": epoch_of(lambda: byte_loader, count),
            "threads, simplejpeg, OpenCV INTER_AREA": epoch_of(lambda: peer, count),
        },
        rounds,
    )
    record.samples(speeds, "images/s")
    reached = median(speeds, "foreload, uint8")
    record.verdict(
        "uint8, against the limit", reached / median(speeds, "limit: libjpeg-turbo crop decode, resize"), 0.9
    )
    record.verdict(
        "uint8, against the peer", reached / median(speeds, "threads, simplejpeg, OpenCV INTER_AREA"), 1.6
    )
    return details


def main() -> None:
    options = parser(__doc__, 5).parse_args()
    folder = images()
    record = Record("images")
    limit = build_limit()
    normalised(record, folder, options.rounds)
    details = as_bytes(record, folder, limit, options.rounds)

    print("progressive files, uint8")
    speeds = bytes_against_the_peer(progressive(folder), options.rounds)
    record.samples(speeds, "images/s")
    ours, theirs = (median(speeds, name) for name in speeds)
    record.verdict("progressive, uint8, against the peer", ours / theirs, 1.5)

    print("small images in memory, float32")
    speeds = small_images(options.rounds)
    record.samples(speeds, "samples/s")
    ours, theirs = (median(speeds, name) for name in speeds)
    record.verdict("CIFAR-like, against stock with NumPy", ours / theirs, 10)

    print("per image, one thread, against libjpeg-turbo's crop decode of the same boxes")
    parts = {key: [detail[key] for detail in details[1:]] for key in ("crop_decode_ms", "uint8_ms", "float32_ms")}
    record.samples(parts, "ms")
    decode = statistics.median(parts["crop_decode_ms"])
    for key, target in (("uint8_ms", 0.15), ("float32_ms", 0.22)):
        added = statistics.median(parts[key]) / decode - 1
        record.verdict(f"{key}: added to the crop decode", added, target, most=True)
    record.write()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
