"""JPEG training input: against stock torch, the fastest peer, and what libjpeg-turbo allows."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from common import ROOT, Record, images, median, parser, take_turns
from peer import SimplejpegOpenCV
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload.bench.stock import StockImages

BATCH = 64


def epoch_of(make: Callable[[], Iterable[Any]], count: int) -> Callable[[], float]:
    """Images per second of one epoch."""

    def run() -> float:
        started = time.perf_counter()
        for _ in make():
            pass
        return count / (time.perf_counter() - started)

    return run


def first_of(make: Callable[[], Iterable[Any]]) -> Callable[[], float]:
    """Milliseconds from iter() to the first batch."""

    def run() -> float:
        started = time.perf_counter()
        iterator = iter(make())
        next(iterator)
        milliseconds = 1e3 * (time.perf_counter() - started)
        del iterator
        return milliseconds

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


def main() -> None:
    options = parser(__doc__, 5).parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    folder = images()
    count = len(list(folder.glob("*/*.jpg")))
    record = Record("images")
    limit = build_limit()

    def ours(normalize: bool) -> Any:
        transform = fl.transforms.train(224, color_jitter=None, normalize=normalize)
        dataset = fl.ImageDataset(folder, transform=transform)
        return fl.DataLoader(dataset, BATCH, shuffle=True, num_workers=2)

    def stock(normalize: bool, workers: int) -> Any:
        return TorchDataLoader(StockImages(folder, normalize=normalize), BATCH, shuffle=True, num_workers=workers)

    print("normalised float32")
    contestants = {f"stock, {workers} workers": stock(True, workers) for workers in (0, 1, 2, 3)}
    runs = {name: epoch_of(lambda loader=loader: loader, count) for name, loader in contestants.items()}
    float_loader = ours(True)
    speeds = take_turns({**runs, "foreload": epoch_of(lambda: float_loader, count)}, options.rounds)
    record.samples(speeds, "images/s")
    best = max(median(speeds, name) for name in contestants)
    record.verdict("float32, against stock at its best", median(speeds, "foreload") / best, 5)

    print("uint8, antialiased")
    byte_loader = ours(False)
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
        options.rounds,
    )
    record.samples(speeds, "images/s")
    reached = median(speeds, "foreload, uint8")
    record.verdict(
        "uint8, against the limit", reached / median(speeds, "limit: libjpeg-turbo crop decode, resize"), 0.9
    )
    record.verdict(
        "uint8, against the peer", reached / median(speeds, "threads, simplejpeg, OpenCV INTER_AREA"), 1.6
    )

    print("per image, one thread, against libjpeg-turbo's crop decode of the same boxes")
    parts = {key: [detail[key] for detail in details[1:]] for key in ("crop_decode_ms", "uint8_ms", "float32_ms")}
    record.samples(parts, "ms")
    decode = statistics.median(parts["crop_decode_ms"])
    for key, target in (("uint8_ms", 0.15), ("float32_ms", 0.22)):
        added = statistics.median(parts[key]) / decode - 1
        record.verdict(f"{key}: added to the crop decode", added, target, most=True)

    print("first batch, float32")
    firsts = take_turns(
        {
            "stock, 2 workers, first": first_of(lambda: contestants["stock, 2 workers"]),
            "foreload, first": first_of(lambda: float_loader),
        },
        3 * options.rounds,
    )
    record.samples(firsts, "ms")
    sooner = median(firsts, "stock, 2 workers, first") / median(firsts, "foreload, first")
    record.verdict("first batch, times sooner than stock with 2 workers", sooner, 10)
    record.write()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
