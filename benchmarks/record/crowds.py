"""A check of the advice to use fewer workers, against the rates measured with fewer."""

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

HERE = Path(__file__)
FILE = RESULTS / "record_crowds.json"
COUNTS = (1, 2, 4, 8, 16)
LOADERS = ("torch", "foreload")

# The samples of an epoch, so that it takes about a second with two workers on two cores.
SIZES = {"Numpy": 2000, "Pillow": 800, "Sleeping": 400, "Tiny": 50_000}

# A gain from which on the advice must have been given, and one below which it must not.
CLEAR, NONE = 1.25, 1.03


def loop(kind: str, name: str, count: int, epochs: int) -> None:
    """Run the loop itself, and print what an epoch takes, from its beginning until its workers are gone."""
    import datasets
    import torch

    torch.set_num_threads(1)
    data = getattr(datasets, name)()
    data.size = SIZES[name]
    options: dict[str, Any] = {"batch_size": 16 if name != "Tiny" else 256, "num_workers": count}
    if kind == "torch":
        loader: Any = torch.utils.data.DataLoader(data, **options)
    else:
        import foreload

        loader = foreload.DataLoader(data, workers="processes", **options)
    times = []
    for _ in range(epochs):
        began = time.perf_counter()
        for _ in loader:
            pass
        times.append(time.perf_counter() - began)
    print("EPOCH", min(times))


def command(kind: str, name: str, count: int, epochs: int) -> list[str]:
    return [str(HERE), "--loop", kind, name, str(count), str(epochs)]


def seconds(kind: str, name: str, count: int, epochs: int) -> float:
    done = subprocess.run(
        [sys.executable, *command(kind, name, count, epochs)], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split("EPOCH")[1])


def told(kind: str, name: str, count: int, epochs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        profile = [sys.executable, "-m", "foreload", "profile", "--json", str(path)]
        subprocess.run([*profile, *command(kind, name, count, epochs)], capture_output=True, check=True)
        found = json.loads(path.read_text())
    (report,) = found["loaders"]
    return dict(report)


def measure(kind: str, name: str, count: int, rounds: int, epochs: int) -> dict[str, Any]:
    verdicts, advised = [], []
    for _ in range(rounds):
        report = told(kind, name, count, epochs)["verdict"]
        verdicts.append(report["kind"])
        changes = [re.match(r"num_workers=(\d+) instead", advice["change"]) for advice in report["advice"]]
        found = [
            (int(match[1]), advice["gain"])
            for match, advice in zip(changes, report["advice"], strict=True)
            if match
        ]
        advised.append(found[0] if found else None)
    fewer = [advice[0] for advice in advised if advice and advice[0] < count]
    other = statistics.mode(fewer) if fewer else min(2, count)
    gains = [seconds(kind, name, count, epochs) / seconds(kind, name, other, epochs) for _ in range(rounds)]
    gain = statistics.median(gains)
    crowded = [verdict == "too-many-workers" for verdict in verdicts]
    good = not (gain >= CLEAR and not all(crowded)) and not (gain <= NONE and any(crowded))
    print(
        f"{'good  ' if good else 'MISSED'} {kind:8} {name:8} {count:2}: {verdicts} {advised}; "
        f"with {other} measured {gain:.2f} ({min(gains):.2f} to {max(gains):.2f})",
        flush=True,
    )
    return {"verdicts": verdicts, "advised": advised, "tried": other, "gains": gains, "gain": gain, "good": good}


def main() -> None:
    if "--loop" in sys.argv:
        sys.path.insert(0, str(HERE.parents[1] / "workers"))
        kind, name, count, epochs = sys.argv[sys.argv.index("--loop") + 1 :]
        loop(kind, name, int(count), int(epochs))
        return
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument(
        "--only", default="", help="loader, dataset and count such as torch-Numpy-16; nothing is kept"
    )
    chosen = options.parse_args()
    found = {}
    for kind in LOADERS:
        for name in SIZES:
            for count in COUNTS:
                key = f"{kind}-{name}-{count}"
                if re.search(chosen.only, key):
                    found[key] = measure(kind, name, count, chosen.rounds, chosen.epochs)
    print(f"{sum(entry['good'] for entry in found.values())} of {len(found)} told rightly")
    if not chosen.only:
        record = {"command": " ".join(["python", *sys.argv]), "machine": machine(), "loaders": found}
        FILE.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
