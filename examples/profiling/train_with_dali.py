"""The training of train_with_data.py, fed by NVIDIA DALI on the CPU.

    pip install nvidia-dali-cuda120
    python train_with_dali.py data/profiling

With a GPU, DALI decodes there: device="mixed" in decoders.image, and device_id=0 in pipeline_def.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from loop import parser, report
from synthetic_dataset import MEAN, SHORTER, SIZE, STD
from train_with_data import classes_in, train

try:
    from nvidia.dali import fn, pipeline_def, types
except ImportError as error:
    sys.exit(f"train_with_dali.py needs NVIDIA DALI ({error}): pip install nvidia-dali-cuda120")


@pipeline_def
def load(folder: Path) -> Any:
    """Read, decode, resize, crop and normalise, as the other loaders do."""
    files, labels = fn.readers.file(file_root=str(folder), random_shuffle=True, pad_last_batch=True, name="files")
    images = fn.decoders.image(files, device="cpu", output_type=types.RGB)
    images = fn.resize(images, resize_shorter=SHORTER, interp_type=types.INTERP_TRIANGULAR)
    images = fn.crop_mirror_normalize(
        images,
        crop=(SIZE, SIZE),
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
        dtype=types.FLOAT,
        output_layout="CHW",
    )
    return images, labels


class Batches:
    """The batches of an epoch, as tensors, over and over."""

    def __init__(self, folder: Path, batch_size: int) -> None:
        self.size = batch_size
        threads = len(os.sched_getaffinity(0))
        self.pipeline = load(folder, batch_size=batch_size, num_threads=threads, device_id=None, seed=0)
        self.pipeline.build()
        self.samples = self.pipeline.reader_meta("files")["epoch_size"]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        # DALI's batches are all of one size: it fills the last one up with copies, which are left out here.
        for begin in range(0, self.samples, self.size):
            images, labels = (torch.from_dlpack(part.as_tensor()) for part in self.pipeline.run())
            count = min(self.size, self.samples - begin)
            yield images[:count].clone(), labels[:count, 0].long()


def main() -> None:
    arguments = parser(__doc__).parse_args()
    batches = Batches(arguments.data, arguments.batch_size)
    seen, losses = train(lambda number: batches, classes_in(arguments.data), arguments.epochs)
    report(seen, arguments.json, losses=losses)


if __name__ == "__main__":
    main()
