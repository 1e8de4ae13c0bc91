"""Train a small network on the images, with the slow loader or the fast one.

    python train_with_data.py data/profiling --loader slow
    python train_with_data.py data/profiling --loader fast

The network learns the direction of the stripes. Without a GPU it shares the cores with the loading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fast_dataloader
import slow_dataloader
import torch
from loop import Epoch, parser, report, watch
from torch import nn


def network(classes: int) -> nn.Module:
    """Make three convolutions, the mean over the picture, and a linear layer."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def train(
    epoch_of: Callable[[int], Iterable[Any]], classes: int, epochs: int, tell: Callable[[str], object] = print
) -> tuple[list[Epoch], list[float]]:
    """Train on the batches of ``epoch_of(number)``; what each epoch took, and its mean loss."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = network(classes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    seen: list[Epoch] = []
    losses: list[float] = []
    for number in range(epochs):
        total = []

        def step(images: torch.Tensor, labels: torch.Tensor) -> None:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total.append(loss.item())  # noqa: B023

        seen.append(watch(epoch_of(number), step))
        losses.append(sum(total) / len(total))
        tell(f"epoch {number + 1}: loss {losses[-1]:.3f}; {seen[-1]}")
    return seen, losses


def classes_in(folder: Path) -> int:
    return len({file.parent for file in folder.glob("*/*.jpg")})


def main() -> None:
    arguments_of = parser(__doc__)
    arguments_of.add_argument("--loader", choices=("slow", "fast"), required=True)
    arguments = arguments_of.parse_args()
    make = {"slow": slow_dataloader.make_loader, "fast": fast_dataloader.make_loader}[arguments.loader]
    loader: Any = make(arguments.data, arguments.batch_size)
    seen, losses = train(lambda number: loader, classes_in(arguments.data), arguments.epochs)
    report(seen, arguments.json, losses=losses)


if __name__ == "__main__":
    main()
