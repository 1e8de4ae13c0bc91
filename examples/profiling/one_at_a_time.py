"""From the slow loader to the fast one, one change after the other.

    python one_at_a_time.py data/profiling

The figures are those of each loader's last epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fast_dataloader
import slow_dataloader
from loop import milliseconds, parser, report, watch
from synthetic_dataset import MEAN, SHORTER, SIZE, STD, SyntheticImages, to_tensor
from torch.utils.data import DataLoader

import foreload as fl
from foreload.machine import granted_cores


def steps(folder: Path, batch_size: int) -> dict[str, Callable[[], Any]]:
    """Name the loaders on the way, each with one thing changed from the one before."""
    stock = partial(DataLoader, batch_size=batch_size, shuffle=True, num_workers=granted_cores(), pin_memory=False)
    transform = fl.transforms.val(SIZE, resize=SHORTER, mean=MEAN, std=STD)
    return {
        "slow_dataloader.py": partial(slow_dataloader.make_loader, folder, batch_size),
        "one worker per core": lambda: stock(SyntheticImages(folder, slow_dataloader.prepare)),
        "resize and crop first": lambda: stock(SyntheticImages(folder, to_tensor)),
        "foreload, no cache": lambda: fl.DataLoader(
            fl.ImageDataset(folder, transform=transform), batch_size=batch_size, shuffle=True, seed=0
        ),
        "fast_dataloader.py": partial(fast_dataloader.make_loader, folder, batch_size),
    }


def main() -> None:
    arguments_of = parser(__doc__)
    arguments_of.add_argument("--step-ms", type=milliseconds, default=20.0, help="how long a step takes (20)")
    arguments = arguments_of.parse_args()
    last, names = [], []
    for name, make in steps(arguments.data, arguments.batch_size).items():
        loader = make()
        for _ in range(arguments.epochs):
            epoch = watch(loader, lambda images, labels: time.sleep(arguments.step_ms / 1e3))
        print(f"{name}: {epoch}", flush=True)
        last.append(epoch)
        names.append(name)
    report(last, arguments.json, names=names)


if __name__ == "__main__":
    main()
