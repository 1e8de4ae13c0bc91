"""The gain that profiles of torch's loaders promise for foreload's, against what the change then gives."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pipelines import RESULTS

from foreload.bench.show import machine
from foreload.tune.pace import measured_pace
from foreload.tune.predict import predict

HERE = Path(__file__)
FILE = RESULTS / "record_swap.json"
LOW, HIGH = 0.85, 1.15

# Dataset, samples in an epoch, batch size, workers.
PIPELINES = {
    "numbers, small batches": ("Tiny", 8_000, 4, 2),
    "numbers": ("Tiny", 60_000, 64, 2),
    "numbers, large batches": ("Tiny", 200_000, 1024, 2),
    "numbers, one worker": ("Tiny", 60_000, 64, 1),
    "text in Python": ("PurePython", 2_000, 16, 2),
    "arrays": ("Numpy", 2_000, 16, 2),
    "arrays, large batches": ("Numpy", 2_000, 128, 2),
    "arrays, four workers": ("Numpy", 2_000, 16, 4),
    "images": ("Pillow", 800, 16, 2),
    "images, batches of one": ("Pillow", 400, 1, 2),
    "compressed": ("Native", 1_500, 16, 2),
    "waiting": ("Sleeping", 400, 8, 4),
    "waiting, small batches": ("Sleeping", 400, 1, 4),
    "samples of megabytes": ("Huge", 200, 4, 2),
}


def loop(kind: str, name: str, size: int, batch: int, workers: int, epochs: int) -> None:
    """Run the loop, and print the samples per second of the best epoch, from its beginning to its last batch."""
    import datasets
    import torch

    torch.set_num_threads(1)
    data = getattr(datasets, name)()
    data.size = size
    options: dict[str, Any] = {"batch_size": batch, "num_workers": workers}
    if kind == "torch":
        loader: Any = torch.utils.data.DataLoader(data, **options)
    else:
        import foreload

        loader = foreload.DataLoader(data, **options)
    times = []
    for _ in range(epochs):
        began = time.perf_counter()
        for _ in loader:
            last = time.perf_counter()
        times.append(last - began)
    print("PACE", size / min(times))


def command(kind: str, pipeline: tuple[Any, ...], epochs: int) -> list[str]:
    return [str(HERE), "--loop", kind, *map(str, pipeline), str(epochs)]


def pace(kind: str, pipeline: tuple[Any, ...], epochs: int) -> float:
    done = subprocess.run(
        [sys.executable, *command(kind, pipeline, epochs)], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split("PACE")[1])


def promised(pipeline: tuple[Any, ...], epochs: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        profile = [sys.executable, "-m", "foreload", "profile", "--json", str(path)]
        subprocess.run([*profile, *command("torch", pipeline, epochs)], capture_output=True, check=True)
        (report,) = json.loads(path.read_text())["loaders"]
    stats = report["stats"]
    assert measured_pace(stats) > 0
    return predict(stats, loader="foreload") / predict(stats)


def measure(name: str, pipeline: tuple[Any, ...], rounds: int, epochs: int) -> dict[str, Any]:
    told = [promised(pipeline, epochs) for _ in range(rounds)]
    gains = []
    for _ in range(rounds):
        before, after = pace("torch", pipeline, epochs), pace("foreload", pipeline, epochs)
        gains.append(after / before)
    ratio = statistics.median(told) / statistics.median(gains)
    good = LOW <= ratio <= HIGH
    print(
        f"{'good  ' if good else 'MISSED'} {name:26} promised {statistics.median(told):5.2f} "
        f"({min(told):.2f} to {max(told):.2f}), measured {statistics.median(gains):5.2f} "
        f"({min(gains):.2f} to {max(gains):.2f}): {ratio:.2f}",
        flush=True,
    )
    return {"promised": told, "gains": gains, "ratio": ratio, "good": good}


def main() -> None:
    if "--loop" in sys.argv:
        sys.path.insert(0, str(HERE.parents[1] / "workers"))
        kind, name, *numbers = sys.argv[sys.argv.index("--loop") + 1 :]
        loop(kind, name, *map(int, numbers))
        return
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--only", default="", help="a pattern; nothing is kept")
    chosen = options.parse_args()
    found = {
        name: measure(name, pipeline, chosen.rounds, chosen.epochs)
        for name, pipeline in PIPELINES.items()
        if re.search(chosen.only, name)
    }
    print(f"{sum(entry['good'] for entry in found.values())} of {len(found)} within {LOW} to {HIGH}")
    if not chosen.only:
        record = {"command": " ".join(["python", *sys.argv]), "machine": machine(), "pipelines": found}
        FILE.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
