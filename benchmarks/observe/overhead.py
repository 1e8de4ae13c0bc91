"""What recording spans costs: this version beside an earlier one, built elsewhere, that recorded nothing.

    git worktree add /tmp/before 98e42f2    # the last version without spans; build its native module in place
    python benchmarks/observe/overhead.py --against /tmp/before/src

Each version has a process of its own; they take turns, and each turn's two rates make one ratio. Where things lie
in memory makes one process a tenth faster than the next, so that new ones are started several times. Photos are
what people load; the others are as small as samples get, where every call is a part of the whole.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
SOURCE = HERE.parent.parent.parent / "src"

FILES, FILE_BYTES = 4096, 8192
IMAGES, SIDE = 2000, 48
PHOTOS, WIDTH, HEIGHT = 1024, 500, 375


def make_data(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    (folder / "files").mkdir()
    for number in range(FILES):
        (folder / "files" / f"{number:05}.bin").write_bytes(random.bytes(FILE_BYTES))
    (folder / "images").mkdir()
    for number in range(IMAGES):
        pixels = np.kron(random.integers(0, 255, (6, 6, 3)), np.ones((SIDE // 6, SIDE // 6, 1))).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number:05}.jpg", quality=90)
    (folder / "photos").mkdir()
    for number in range(PHOTOS):
        coarse = Image.fromarray(random.integers(0, 255, (HEIGHT // 12, WIDTH // 12, 3)).astype(np.uint8))
        photo = coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        photo.save(folder / "photos" / f"{number:05}.jpg", quality=90)


class Pillow:
    """What people write themselves."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        import numpy as np
        import torch
        from PIL import Image

        with Image.open(self.paths[index]) as image:
            return torch.from_numpy(np.array(image.convert("RGB").resize((224, 224))))


def loaders(folder: Path) -> dict[str, Any]:
    import torch

    import foreload as fl

    images = fl.ImageDataset(folder / "images", transform=fl.transforms.train(32), labels=[0] * IMAGES)
    photos = fl.ImageDataset(folder / "photos", transform=fl.transforms.train(224), labels=[0] * PHOTOS)
    rows = torch.randn(50_000, 100), torch.arange(50_000)
    keyed: dict[str, Any] = {"batch_size": 64, "shuffle": True, "seed": 0}
    return {
        "photos, 2 threads": fl.DataLoader(photos, num_workers=2, workers="threads", **keyed),
        "photos by Pillow, 2 threads": fl.DataLoader(
            Pillow(folder / "photos"), num_workers=2, workers="threads", **keyed
        ),
        "photos by Pillow, 2 processes": fl.DataLoader(
            Pillow(folder / "photos"), num_workers=2, workers="processes", persistent_workers=True, **keyed
        ),
        "8 KB files, 2 threads": fl.DataLoader(
            fl.FileDataset(folder / "files"), num_workers=2, workers="threads", **keyed
        ),
        "48 x 48 images, 2 threads": fl.DataLoader(images, num_workers=2, workers="threads", **keyed),
        "48 x 48 images, no workers": fl.DataLoader(images, num_workers=0, **keyed),
        "64 rows of tensors": fl.DataLoader(fl.CachedDataset(rows), **keyed),
        "python items, no workers": fl.DataLoader(list(range(50_000)), num_workers=0, **keyed),
        "python items, 2 threads": fl.DataLoader(list(range(50_000)), num_workers=2, workers="threads", **keyed),
        "transformed items, no workers": fl.DataLoader(
            list(range(50_000)), num_workers=0, transform=float, **keyed
        ),
    }


def serve(folder: Path) -> None:
    """Answer with the samples per second of each loader that is named."""
    known = loaders(folder)
    print("ready", flush=True)
    for line in sys.stdin:
        name, seconds = line.rstrip("\n").rsplit("|", 1)
        samples, started = 0, time.perf_counter()
        while (took := time.perf_counter() - started) < float(seconds):
            for _ in known[name]:
                samples += 64
                if not samples % 4096 and time.perf_counter() - started > float(seconds):
                    break
        print(samples / took, flush=True)


class Version:
    def __init__(self, source: Path, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE), "--serve", str(folder)],
            env={**os.environ, "PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{source} cannot be run")

    def rate(self, name: str, seconds: float) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}|{seconds}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--against", type=Path, help="the src folder of the version without spans")
    options.add_argument("--processes", type=int, default=6, help="of each version, one after the other")
    options.add_argument("--rounds", type=int, default=12, help="of each process")
    options.add_argument("--seconds", type=float, default=0.1, help="of each turn")
    options.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--only", default="", help="what the names begin with")
    chosen = options.parse_args()
    if chosen.serve is not None:
        serve(chosen.serve)
        return
    if chosen.against is None:
        options.error("--against is needed")
    sys.path.append(str(HERE.parent.parent))
    from common import Record

    record = Record("observe_overhead")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_data(folder)
        names = [name for name in loaders(folder) if name.startswith(chosen.only)]
        rates: dict[str, list[list[float]]] = {name: [[], []] for name in names}
        for _ in range(chosen.processes):
            versions = [Version(chosen.against.resolve(), folder), Version(SOURCE, folder)]
            for name in names:
                for turn in range(chosen.rounds + 1):
                    for number in (0, 1) if turn % 2 else (1, 0):
                        rate = versions[number].rate(name, chosen.seconds)
                        if turn:
                            rates[name][number].append(rate)
            for version in versions:
                version.close()
        for name, (before, now) in rates.items():
            ratios = [one / other for one, other in zip(now, before, strict=True)]
            record.samples({f"{name}: without": before, f"{name}: with spans": now}, "samples/s")
            record.samples({f"{name}: with, of without": ratios}, "ratio")
            record.verdict(f"{name}: with spans, of without", statistics.median(ratios), 0.99)
    record.write()


if __name__ == "__main__":
    main()
