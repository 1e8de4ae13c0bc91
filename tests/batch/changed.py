"""Objects with a part that pickling changes, and images with what it may lose."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pandas
import torch
from PIL import Image, ImageOps


class Compressed:
    """Has a part that becomes another one where it is pickled."""

    def __init__(self, part: Any, change: Callable[[Any], Any]) -> None:
        self.part, self.change = part, change

    def __getstate__(self) -> Any:
        return {"part": self.change(self.part), "change": self.change}


def same(part: Any) -> Any:
    return part


def rounded(table: Any) -> Any:
    return table.round(0)


def shortened(table: Any) -> Any:
    return table.iloc[:1]


def halved(tensor: Any) -> Any:
    return tensor.half().float()


def darkened(image: Any) -> Any:
    return image.point(lambda value: value // 2)


def emptied(_: Any) -> Any:
    return io.BytesIO()


def seeded(generator: Any) -> Any:
    return torch.Generator().manual_seed(1)


TABLE = pandas.DataFrame({"a": [1.1, 2.2]})
SPARSE = torch.tensor([[0.1, 0.0], [0.0, 0.3]]).to_sparse()


def turned(index: int) -> Any:
    """Return an image that was turned as its EXIF data say."""
    image, file = Image.new("RGB", (8, 4)), io.BytesIO()
    exif = image.getexif()
    exif[0x0112], exif[0x010E] = 6, "a"
    image.save(file, "JPEG", exif=exif)
    return ImageOps.exif_transpose(Image.open(file))


def part_of(sample: Any) -> Any:
    """Return what can be compared of a compressed sample."""
    part = sample.part
    if isinstance(part, Image.Image):
        return part.tobytes()
    return part.getvalue() if isinstance(part, io.BytesIO) else str(part)


def sticker(index: int) -> Any:
    return Image.new("RGBA", (8, 8), (200, 10, index, 77)).quantize(4)
