"""A training loop whose data loading makes four classic mistakes.

    python slow_dataloader.py data/profiling

All four are named in the guides of the field: 1 and 2 in PyTorch's Performance Tuning Guide ("Enable asynchronous
data loading and augmentation"), 3 in torchvision's notes on the performance of transforms (small and uint8 as long
as possible), 4 in the performance guide of tf.data ("Caching"). fast_dataloader.py is the same loop without them.

The model is a stand-in for a GPU: a step takes --step-ms, and the CPU is free meanwhile.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from loop import milliseconds, parser, report, watch
from PIL import Image
from synthetic_dataset import MEAN, SHORTER, SIZE, STD, SyntheticImages
from torch.utils.data import DataLoader


def prepare(image: Image.Image) -> torch.Tensor:
    """Turn an image into what the model takes."""
    # MISTAKE 3: the work is done at full size, and what does not matter is thrown away last. All 307,200 pixels
    # become three float32 numbers and are normalised; 9,216 of them (3%) are left when that is done.
    pixels = np.asarray(image).astype(np.float32) / 255
    pixels = (pixels - np.float32(MEAN)) / np.float32(STD)
    width, height = (SHORTER * side // min(image.size) for side in image.size)
    planes = [Image.fromarray(plane) for plane in np.moveaxis(pixels, 2, 0)]
    planes = [plane.resize((width, height), Image.Resampling.BILINEAR) for plane in planes]
    left, top = (width - SIZE) // 2, (height - SIZE) // 2
    crops = [np.asarray(plane.crop((left, top, left + SIZE, top + SIZE))) for plane in planes]
    return torch.from_numpy(np.stack(crops))


def make_loader(folder: Path, batch_size: int = 32) -> DataLoader[tuple[torch.Tensor, int]]:
    # MISTAKE 4: no cache. Each epoch opens, reads and decodes every file again, and gets the same pixels.
    images = SyntheticImages(folder, transform=prepare)
    return DataLoader(
        images,
        batch_size=batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        # MISTAKE 1: the loop itself loads the data, so that loading and computing take turns.
        num_workers=0,
        # MISTAKE 2: batches lie in ordinary memory, from which a GPU cannot copy by itself ...
        pin_memory=False,
    )


def to_device(batch: torch.Tensor, device: torch.device) -> torch.Tensor:
    # ... so the loop stands still during every copy.
    return batch.to(device)


def main() -> None:
    arguments_of = parser(__doc__)
    arguments_of.add_argument("--step-ms", type=milliseconds, default=20.0, help="how long a step takes (20)")
    arguments = arguments_of.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = make_loader(arguments.data, arguments.batch_size)
    epochs = []
    for number in range(arguments.epochs):
        batches = ((to_device(images, device), to_device(labels, device)) for images, labels in loader)
        epochs.append(watch(batches, lambda images, labels: time.sleep(arguments.step_ms / 1e3)))
        print(f"epoch {number + 1}: {epochs[-1]}", flush=True)
    report(epochs, arguments.json)


if __name__ == "__main__":
    main()
