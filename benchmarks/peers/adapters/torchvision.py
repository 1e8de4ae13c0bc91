"""torch's DataLoader with torchvision's decode_jpeg and transforms v2."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peers.adapters import loads
from benchmarks.peers.work import CORES, Work
from benchmarks.peers.workloads.images import MEAN, STD
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2


class Images(Dataset[Any]):
    """Files, decoded and transformed as tensors."""

    def __init__(self, work: Work) -> None:
        size = work.options["size"]
        if work.family == "train":
            steps: list[Any] = [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
        else:
            steps = [v2.Resize(size * 8 // 7, antialias=True), v2.CenterCrop(size)]
        if work.options["normalize"]:
            steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN.tolist(), STD.tolist())]
        self.files, self.transform = work.files, v2.Compose(steps)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        data = torch.from_numpy(np.frombuffer(Path(self.files[index]).read_bytes(), np.uint8).copy())
        return self.transform(decode_jpeg(data, ImageReadMode.RGB)), index


def _images(work: Work, workers: int) -> Any:
    known: Any = {"batch_size": work.batch_size, "shuffle": work.family == "train", "num_workers": workers}
    return DataLoader(Images(work), **known, persistent_workers=workers > 0)


for _family in ("train", "validation"):
    for _workers in (0, CORES):
        loads(_family, f"decode_jpeg, v2, {_workers} workers")(partial(_images, workers=_workers))
