"""JPEG bytes to arrays, as one writes it by hand: what adapters of general loaders share.

All of them resize by area (OpenCV) or antialiased (Pillow, torchvision), as foreload does.
"""

from __future__ import annotations

import io
import math
import random
from typing import Any

import numpy as np
import torch
from benchmarks.peers.work import Work
from benchmarks.peers.workloads.images import MEAN, STD, validation

Array = np.ndarray[Any, Any]


def box(width: int, height: int) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop: left, top, width, height."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (width - w) // 2, (height - h) // 2, w, h


def crop_opencv(data: bytes, work: Work) -> Array:
    """simplejpeg and OpenCV: a random crop, uint8, height x width x 3."""
    import simplejpeg

    return crop_decoded(simplejpeg.decode_jpeg(data), work)


def crop_decoded(image: Array, work: Work) -> Array:
    """OpenCV: a random crop of an array."""
    import cv2

    cv2.setNumThreads(1)
    left, top, width, height = box(image.shape[1], image.shape[0])
    part = image[top : top + height, left : left + width]
    out = cv2.resize(part, (work.options["size"],) * 2, interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(out[:, ::-1]) if random.random() < 0.5 else out


def middle_opencv(data: bytes, work: Work) -> Array:
    """simplejpeg and OpenCV: the middle of the image, for validation."""
    import cv2
    import simplejpeg

    cv2.setNumThreads(1)
    image = simplejpeg.decode_jpeg(data)
    size = work.options["size"]
    height, width = image.shape[:2]
    scale = size * 8 // 7 / min(height, width)
    resized = cv2.resize(image, (round(width * scale), round(height * scale)), interpolation=cv2.INTER_AREA)
    top, left = (round((side - size) / 2) for side in resized.shape[:2])
    return np.ascontiguousarray(resized[top : top + size, left : left + size])


def crop_pillow(data: bytes, work: Work) -> Array:
    """Pillow: a random crop."""
    from PIL import Image

    size = work.options["size"]
    image = Image.open(io.BytesIO(data)).convert("RGB")
    left, top, width, height = box(*image.size)
    edges = (left, top, left + width, top + height)
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=edges)
    return np.array(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image)


def middle_pillow(data: bytes, work: Work) -> Array:
    """Pillow: the middle of the image."""
    from PIL import Image

    return validation(Image.open(io.BytesIO(data)).convert("RGB"), work.options["size"])


def one(data: bytes, work: Work, how: str = "opencv") -> Array:
    """The image that a workload asks for, uint8."""
    part = "middle" if work.family == "validation" else "crop"
    image: Array = {
        "crop opencv": crop_opencv,
        "middle opencv": middle_opencv,
        "crop pillow": crop_pillow,
        "middle pillow": middle_pillow,
    }[f"{part} {how}"](data, work)
    return image


def finish(batch: Any, work: Work) -> torch.Tensor:
    """A batch of uint8 images as the workload wants it: normalised in one go, for a whole batch, if at all."""
    images = torch.from_numpy(np.stack(batch)) if isinstance(batch, (list, tuple)) else torch.as_tensor(batch)
    if not work.options["normalize"]:
        return images
    mean, scale = torch.from_numpy(255 * MEAN), torch.from_numpy(1 / (255 * STD))
    return images.float().sub_(mean).mul_(scale).permute(0, 3, 1, 2)


def collate(samples: list[tuple[Array, int]], work: Work) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of image and number to a batch."""
    images, numbers = zip(*samples, strict=True)
    return finish(images, work), torch.tensor(numbers)
