"""The stock contestant: the dataset and transforms of PyTorch's ImageNet example.

``ImageFolder`` with ``RandomResizedCrop(224)``, ``RandomHorizontalFlip()``, ``ToTensor()`` and ``Normalize()``,
operation for operation as torchvision performs them on Pillow images; written out because torchvision may not be
installed.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from foreload.datasets.folders import IMAGES, list_files
from foreload.errors import DecodeError
from foreload.transforms import IMAGENET_MEAN, IMAGENET_STD

__all__ = ["StockImages"]


class StockImages(Dataset[tuple[torch.Tensor, int]]):
    """Images in class folders.

    Args:
        normalize: float32, by ToTensor and Normalize; otherwise uint8 of 3 x 224 x 224.
    """

    def __init__(self, folder: str | Path, *, normalize: bool = True) -> None:
        listing = list_files(folder, None, IMAGES)  # the files of every contestant
        self.samples = list(zip(listing.paths, listing.targets.tolist(), strict=True))
        self.normalize = normalize

    def __len__(self) -> int:
        """Count the images."""
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Load one image."""
        path, target = self.samples[index]
        with open(path, "rb") as file:
            try:
                image = Image.open(file).convert("RGB")
            except OSError as error:
                raise DecodeError(f"{path}: {error}") from None
        image = _random_resized_crop(image)
        if torch.rand(1) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image, np.uint8, copy=True))
        pixels = pixels.view(image.size[1], image.size[0], 3).permute((2, 0, 1)).contiguous()
        if not self.normalize:
            return pixels, target
        return _normalize(pixels.to(dtype=torch.get_default_dtype()).div(255)), target


def _random_resized_crop(image: Image.Image) -> Image.Image:
    left, top, width, height = _box(*image.size)
    image = image.crop((left, top, left + width, top + height))
    return image.resize((224, 224), Image.Resampling.BILINEAR)


def _box(width: int, height: int) -> tuple[int, int, int, int]:
    """Draw the crop box: left, top, width, height."""
    area = height * width
    log_ratio = torch.log(torch.tensor((3 / 4, 4 / 3)))
    for _ in range(10):
        target_area = area * torch.empty(1).uniform_(0.08, 1.0).item()
        aspect_ratio = torch.exp(torch.empty(1).uniform_(float(log_ratio[0]), float(log_ratio[1]))).item()
        w = round(math.sqrt(target_area * aspect_ratio))
        h = round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(torch.randint(0, height - h + 1, size=(1,)).item())
            left = int(torch.randint(0, width - w + 1, size=(1,)).item())
            return left, top, w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def _normalize(image: torch.Tensor) -> torch.Tensor:
    image = image.clone()
    mean = torch.as_tensor(IMAGENET_MEAN, dtype=image.dtype, device=image.device)
    std = torch.as_tensor(IMAGENET_STD, dtype=image.dtype, device=image.device)
    if (std == 0).any():
        raise ValueError("a std of 0 cannot be divided by")
    return image.sub_(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1))
