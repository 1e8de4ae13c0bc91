"""The training loop of slow_dataloader.py without the four mistakes: same files, same model inputs.

    python fast_dataloader.py data/profiling

Only make_loader differs, and the copies to the GPU, which the loader makes now. The changes are numbered as
the mistakes there. The model is a stand-in for a GPU: a step takes --step-ms, and the CPU is free meanwhile.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from loop import milliseconds, parser, report, watch
from synthetic_dataset import MEAN, SHORTER, SIZE, STD

import foreload as fl


def make_loader(folder: Path, batch_size: int = 32) -> fl.DataLoader[tuple[torch.Tensor, int]]:
    # 3: the loader is told what the model needs, and does it in the right order, in native code, a batch at a
    #    time: decode and shrink, crop, and normalise the 9,216 pixels that are left.
    transform = fl.transforms.val(SIZE, resize=SHORTER, mean=MEAN, std=STD)
    images = fl.ImageDataset(folder, transform=transform)
    device = "cuda" if torch.cuda.is_available() else None
    return fl.DataLoader(
        images,
        batch_size=batch_size,
        shuffle=True,
        seed=0,
        # 1: num_workers is "auto" where it is not given: threads make the next batches while the model computes.
        # 2: batches are page-locked, and copied on a stream of their own, one ahead of the loop.
        device=device,
        # 4: what an epoch has decoded is kept, as much as fits into a quarter of the memory there is.
        cache="25%",
    )


def main() -> None:
    arguments_of = parser(__doc__)
    arguments_of.add_argument("--step-ms", type=milliseconds, default=20.0, help="how long a step takes (20)")
    arguments = arguments_of.parse_args()
    epochs = []
    with make_loader(arguments.data, arguments.batch_size) as loader:
        for number in range(arguments.epochs):
            epochs.append(watch(loader, lambda images, labels: time.sleep(arguments.step_ms / 1e3)))
            print(f"epoch {number + 1}: {epochs[-1]}", flush=True)
        kept = loader.stats()["cache"]
    report(epochs, arguments.json, cache=kept)


if __name__ == "__main__":
    main()
