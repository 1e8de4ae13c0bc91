"""Memory on the JPEG work: PSS over the process tree, less that of a process which only imports torch.

Each contestant runs in a process of its own; this program, called with --child, is that process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
from typing import Any

from common import Record, images, parser

BATCH = 64


def loader(name: str, folder: str) -> Any:
    normalize = name.endswith("float32")
    if name.startswith("stock"):
        from torch.utils.data import DataLoader

        from foreload.bench.stock import StockImages

        return DataLoader(StockImages(folder, normalize=normalize), BATCH, shuffle=True, num_workers=2)
    import foreload as fl

    transform = fl.transforms.train(224, color_jitter=None, normalize=normalize)
    return fl.DataLoader(fl.ImageDataset(folder, transform=transform), BATCH, shuffle=True, num_workers=2)


def child(name: str, folder: str, epochs: int) -> None:
    """Print the largest PSS within each epoch, in MiB."""
    import torch

    from foreload.bench.measure import tree_memory

    if name == "torch":
        subprocess_free = [tree_memory(os.getpid()) / 2**20]
        print(json.dumps(subprocess_free))
        return
    batches = loader(name, folder)
    peaks = []
    for _ in range(epochs):
        done = threading.Event()
        seen = [0]

        def watch(done: threading.Event = done, seen: list[int] = seen) -> None:
            while not done.wait(0.05):
                seen.append(tree_memory(os.getpid()))

        watcher = threading.Thread(target=watch)
        watcher.start()
        for _ in batches:
            pass
        done.set()
        watcher.join()
        peaks.append(max(seen) / 2**20)
    assert torch
    print(json.dumps(peaks))


def measure(name: str, folder: str, epochs: int) -> list[float]:
    command = [sys.executable, "-W", "ignore", __file__, "--child", name, folder, str(epochs)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    peaks: list[float] = json.loads(output.splitlines()[-1])
    return peaks


def only_torch() -> float:
    code = "import torch, os, psutil; print(psutil.Process(os.getpid()).memory_full_info().pss / 2**20)"
    return float(
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    )


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    options = parser(__doc__, 3)
    options.add_argument("--epochs", type=int, default=50)
    chosen: argparse.Namespace = options.parse_args()
    folder = str(images())
    record = Record("memory")
    names = [f"{who}, 2 workers, {what}" for what in ("uint8", "float32") for who in ("stock", "foreload")]
    base = [only_torch() for _ in range(chosen.rounds)]
    peaks: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(chosen.rounds):
        for name in names:
            peaks[name].append(max(measure(name, folder, 2)) - statistics.median(base))
    record.samples({"only torch": base, **peaks}, "MiB")
    for what in ("uint8", "float32"):
        ours, stock = (statistics.median(peaks[f"{who}, 2 workers, {what}"]) for who in ("foreload", "stock"))
        record.verdict(f"memory, {what}, of stock's", ours / stock, 0.5, most=True)
    small = str(images(400))
    growth = measure("foreload, 2 workers, float32", small, chosen.epochs)
    record.samples({f"foreload, each of {chosen.epochs} epochs": growth}, "MiB")
    early, late = statistics.median(growth[5:15]), statistics.median(growth[-10:])
    record.verdict("growth from epochs 5-15 to the last ten, in MiB", late - early, 2, most=True)
    record.write()


if __name__ == "__main__":
    main()
