"""Memory on the JPEG work: PSS over the process tree, less that of a process which only imports torch.

Each contestant runs in a process of its own; this program, called with --child, is that process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
from typing import Any

BATCH = 64


def loader(name: str, folder: str) -> Any:
    normalize = name.endswith("float32")
    if name.startswith("stock"):
        from torch.utils.data import DataLoader

        from foreload.bench.stock import StockImages

        return DataLoader(StockImages(folder, normalize=normalize), BATCH, shuffle=True, num_workers=2)
    import foreload as fl

    transform = fl.transforms.train(224, normalize=normalize)
    return fl.DataLoader(
        fl.ImageDataset(folder, transform=transform, cache_size=0), BATCH, shuffle=True, num_workers=2
    )


def child(name: str, count: int, epochs: int) -> list[float]:
    """Give the largest PSS within each epoch, in MiB."""
    from common import images

    from foreload.record.usage import tree_bytes

    batches = loader(name, str(images(count)))
    peaks = []
    for _ in range(epochs):
        done = threading.Event()
        seen: list[int] = []

        def watch(done: threading.Event = done, seen: list[int] = seen) -> None:
            while not done.wait(0.05):
                seen.append(tree_bytes())

        watcher = threading.Thread(target=watch)
        watcher.start()
        for _ in batches:
            pass
        done.set()
        watcher.join()
        peaks.append(max(seen) / 2**20)
    return peaks


def measure(*arguments: object) -> Any:
    """Run this program as a child; no other process may have torch mapped, or they share its pages."""
    command = [sys.executable, "-W", "ignore", __file__, "--child", *map(str, arguments)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


ONLY_TORCH = "import os, psutil, torch; print(psutil.Process(os.getpid()).memory_full_info().pss / 2**20)"


def only_torch() -> float:
    return float(subprocess.run([sys.executable, "-c", ONLY_TORCH], check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
        return
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3, help="how often each contestant has its turn")
    options.add_argument("--epochs", type=int, default=50, help="how many epochs must not grow")
    chosen = options.parse_args()
    names = [f"{who}, 2 workers, {what}" for what in ("uint8", "float32") for who in ("stock", "foreload")]
    measure(names[1], 2000, 1)
    base = [only_torch() for _ in range(chosen.rounds)]
    peaks: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(chosen.rounds):
        for name in names:
            peaks[name].append(max(measure(name, 2000, 2)) - statistics.median(base))
    growth = measure("foreload, 2 workers, float32", 400, chosen.epochs)

    from common import Record

    record = Record("memory")
    record.samples({"only torch": base, **peaks}, "MiB")
    for what in ("uint8", "float32"):
        ours, stock = (statistics.median(peaks[f"{who}, 2 workers, {what}"]) for who in ("foreload", "stock"))
        record.verdict(f"memory, {what}, of stock's", ours / stock, 0.5, most=True)
    record.samples({f"foreload, each of {chosen.epochs} epochs": growth}, "MiB")
    early, late = statistics.median(growth[5:15]), statistics.median(growth[-10:])
    record.verdict("growth from epochs 5-15 to the last ten, in MiB", late - early, 2, most=True)
    record.write()


if __name__ == "__main__":
    main()
