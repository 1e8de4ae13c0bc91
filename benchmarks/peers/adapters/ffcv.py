"""FFCV: the same JPEGs in a .beton file, its compiled pipelines.

https://docs.ffcv.io/making_dataloaders.html: OrderOption.RANDOM, os_cache=True for what fits into memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import benchmarks.peers.torchvision_stub  # noqa: F401
import numpy as np
from benchmarks.peers.adapters import loads
from benchmarks.peers.work import CORES, Work
from benchmarks.peers.workloads.images import MEAN, STD
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import CenterCropRGBImageDecoder, IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.fields.rgb_image import SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, RandomTranslate, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image


class Samples:
    """Images and their numbers, for the writer."""

    def __init__(self, work: Work) -> None:
        cifar = work.family == "cifar"
        self.images: Any = np.load(work.folder / "images.npy") if cifar else work.files

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> Any:
        image = self.images[number]
        return (image if isinstance(image, np.ndarray) else Image.open(image)), number


def _beton(work: Work, mode: str) -> Path:
    def write(folder: Path) -> None:
        fields = {"image": RGBImageField(write_mode=mode, jpeg_quality=93), "number": IntField()}
        DatasetWriter(str(folder / "data.beton"), fields, num_workers=CORES).from_indexed_dataset(Samples(work))

    return work.converted(f"beton-{mode}", write) / "data.beton"


def _loader(work: Work, mode: str, image: list[Any]) -> Any:
    order = OrderOption.SEQUENTIAL if work.family == "validation" else OrderOption.RANDOM
    return Loader(
        str(_beton(work, mode)),
        batch_size=work.batch_size,
        num_workers=CORES,
        order=order,
        os_cache=True,
        drop_last=False,
        pipelines={"image": image, "number": [IntDecoder(), ToTensor()]},
    )


def _finish(work: Work) -> list[Any]:
    if not work.options.get("normalize"):
        return [ToTensor()]
    return [NormalizeImage(255 * MEAN, 255 * STD, np.float32), ToTensor(), ToTorchImage()]


class Flat:
    """Numbers come as a column; batches are passed on as they are otherwise."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return ((images, numbers.reshape(-1)) for images, numbers in self.loader)


def _train(work: Work, mode: str) -> Any:
    size = work.options["size"]
    image = [RandomResizedCropRGBImageDecoder((size, size)), RandomHorizontalFlip(), *_finish(work)]
    return Flat(_loader(work, mode, image))


@loads("train", "JPEGs in a .beton")
def train(work: Work) -> Any:
    return _train(work, "jpg")


@loads("decoded", "raw pixels in a .beton")
def decoded(work: Work) -> Any:
    return _train(work, "raw")


@loads("validation", "JPEGs in a .beton")
def validation(work: Work) -> Any:
    size = work.options["size"]
    return Flat(_loader(work, "jpg", [CenterCropRGBImageDecoder((size, size), 224 / 256), *_finish(work)]))


@loads("cifar", "raw pixels in a .beton")
def cifar(work: Work) -> Any:
    image = [SimpleRGBImageDecoder(), RandomHorizontalFlip(), RandomTranslate(padding=4), ToTensor()]
    return Flat(_loader(work, "raw", image))
