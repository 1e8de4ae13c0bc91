"""Image files of a known size, and transforms for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from foreload import transforms

WIDTH, HEIGHT = 100, 75


def photo(seed: int, width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    low = np.random.default_rng(seed).integers(0, 255, (height // 8, width // 8, 3), np.uint8)
    return Image.fromarray(low).resize((width, height), Image.Resampling.BICUBIC)


def write(folder: Path, count: int = 24) -> list[Path]:
    """Photographs as 4:2:0 and 4:4:4, a PNG, one that lies on its side, and a tall one."""
    folder.mkdir(exist_ok=True)
    paths = []
    for number in range(count):
        kind = number % 6
        path = folder / f"{number:03}.{'png' if kind == 4 else 'jpg'}"
        image = photo(number, 75, 100) if kind == 5 else photo(number)
        options: dict[str, Any] = {} if kind == 4 else {"quality": 90, "subsampling": 0 if kind == 2 else 2}
        if kind == 3:
            exif = Image.Exif()
            exif[0x0112] = 6
            options["exif"] = exif
        image.save(path, **options)
        paths.append(path)
    return paths


def as_array(image: Image.Image) -> np.ndarray[Any, Any]:
    return np.array(image.resize((20, 10)))


TRANSFORMS: dict[str, Any] = {
    "resize": transforms.resize((20, 28)),
    "bytes": transforms.resize(20, normalize=False),
    "channels last": transforms.val(24, channels_last=True),
    "bytes, channels last": transforms.val(24, channels_last=True, normalize=False),
    "fast": transforms.resize(16, mode="fast"),
    "train": transforms.train(24, color_jitter=(0.2, 0.2, 0.2, 0.1)),
    "train, fast": transforms.train(16, scale=(0.5, 1.0), mode="fast", color_jitter=None),
    "flip only": transforms.ImageTransform(crop="none", size=(20, 20), hflip=0.5),
    "python": as_array,
}
