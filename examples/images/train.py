"""Train a small CNN on JPEGs, with torch's loader and with foreload's: the same accuracy, sooner.

python train.py data --images 1200
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import foreload as fl

SIZE = 64
CLASSES = ("blobs", "checks", "columns", "rows")


def make_images(folder: Path, count: int, seed: int) -> None:
    """Write JPEGs of patterns in random colours, with noise, one folder per class."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:120, 0:160]
    for number in range(count):
        name = CLASSES[number % len(CLASSES)]
        width, phase = rng.uniform(3, 7), rng.uniform(0, 6, 2)
        rows, columns = np.sin(y / width + phase[0]), np.sin(x / width + phase[1])
        patterns = {"rows": rows, "columns": columns, "checks": np.sign(rows * columns), "blobs": rows * columns}
        color = rng.uniform(40, 80, 3)
        pixels = 128 + patterns[name][..., None] * color + rng.normal(0, 15, (120, 160, 3))
        path = folder / name / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, quality=92)


class Photos(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """The usual dataset: Pillow, a random crop, a random flip, normalised."""

    mean = torch.tensor(fl.transforms.IMAGENET_MEAN).view(3, 1, 1)
    std = torch.tensor(fl.transforms.IMAGENET_STD).view(3, 1, 1)

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*/*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.files[index]
        image = Image.open(path).convert("RGB")
        side = (random.uniform(0.08, 1) * image.width * image.height) ** 0.5
        ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3))) ** 0.5
        width, height = min(side * ratio, image.width), min(side / ratio, image.height)
        left, top = random.uniform(0, image.width - width), random.uniform(0, image.height - height)
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, (left, top, left + width, top + height))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return (pixels - self.mean) / self.std, CLASSES.index(path.parent.name)


def stock_loader(folder: Path, seed: int) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    return torch.utils.data.DataLoader(Photos(folder), batch_size=8, shuffle=True, num_workers=2)


def foreload_loader(folder: Path, seed: int) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    dataset = fl.ImageDataset(folder, transform=fl.transforms.train(SIZE))
    return fl.DataLoader(dataset, batch_size=8, shuffle=True, seed=seed)


def make_model() -> nn.Module:
    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()
        )

    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, len(CLASSES)))
    return nn.Sequential(block(3, 16), block(16, 32), block(32, 32), pooled)


def train(loader: Iterable[tuple[torch.Tensor, torch.Tensor]], epochs: int, seed: int) -> tuple[nn.Module, float]:
    """Return the trained model, and how many seconds it took."""
    torch.manual_seed(seed)
    random.seed(seed)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    began = time.perf_counter()
    for _ in range(epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model, time.perf_counter() - began


@torch.inference_mode()
def accuracy(model: nn.Module, folder: Path) -> float:
    model.eval()
    loader = fl.DataLoader(fl.ImageDataset(folder, transform=fl.transforms.val(SIZE)), batch_size=100)
    right = [(model(images).argmax(1) == labels).float() for images, labels in loader]
    return torch.cat(right).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small CNN with torch's loader and with foreload's.")
    parser.add_argument("folder", type=Path, help="for the images, which are made if they are not there")
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    for part, count, seed in (("train", given.images, 0), ("val", given.images // 3, 1)):
        if not (given.folder / part).exists():
            make_images(given.folder / part, count, seed)

    found: dict[str, dict[str, list[float]]] = {}
    for name, make_loader in (("torch", stock_loader), ("foreload", foreload_loader)):
        found[name] = {"accuracy": [], "seconds": []}
        for seed in range(given.seeds):
            model, seconds = train(make_loader(given.folder / "train", seed), given.epochs, seed)
            found[name]["accuracy"].append(accuracy(model, given.folder / "val"))
            found[name]["seconds"].append(seconds)
        rates, times = found[name]["accuracy"], found[name]["seconds"]
        print(
            f"{name:8} accuracy {statistics.mean(rates):.1%} ({min(rates):.1%} to {max(rates):.1%}), "
            f"{statistics.mean(times):.2f} s for {given.epochs} epochs"
        )
    if given.json is not None:
        given.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
