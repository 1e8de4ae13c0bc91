"""JPEGs to batches: training crops, validation, decoded images in the second epoch."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.work import Batches, Work, array, require, require_all
from PIL import Image

MEAN, STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
KNOWN = 32  # images whose validation pixels are compared one by one


def make(folder: Path, count: int, *, side: float = 1, **save: Any) -> None:
    """Photos made by ``foreload synth``, resized by ``side`` and saved as the arguments say."""
    from foreload.bench.synth import synth_images

    files = folder / "files"
    synth_images(files, count)
    means, known = [], []
    for number, path in enumerate(sorted(files.glob("*/*.jpg"))):
        image = Image.open(path)
        if side != 1 or save:
            image = image.resize((round(image.width * side), round(image.height * side)), Image.Resampling.BICUBIC)
            content = io.BytesIO()
            image.save(content, "JPEG", **{"quality": 93, "subsampling": 2, **save})
            path.write_bytes(content.getvalue())
            image = Image.open(path)
        pixels = image.convert("RGB")
        means.append(np.asarray(pixels, np.float32).mean((0, 1)))
        if number < KNOWN and min(image.size) >= 64:
            known.append([validation(pixels, margin=1), cropped_first(pixels, margin=1)])
    np.save(folder / "means.npy", np.stack(means))
    np.save(folder / "known.npy", np.stack(known))


def validation(image: Image.Image, size: int = 224, margin: int = 0) -> np.ndarray[Any, Any]:
    """The shorter side resized to 8/7 of the size, the middle cut out with a margin, as torchvision does it."""
    shorter = size * 8 // 7
    scale = shorter / min(image.size)
    width, height = (shorter if side == min(image.size) else int(side * scale) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return np.asarray(image.crop((left - margin, top - margin, left + size + margin, top + size + margin)))


def cropped_first(image: Image.Image, size: int = 224, margin: int = 0) -> np.ndarray[Any, Any]:
    """The same middle, cut out before it is resized by the mean of each pixel's area, as FFCV does it."""
    side = min(image.size) * 7 // 8
    left, top, more = (image.width - side) // 2, (image.height - side) // 2, margin * side / size
    box = (left - more, top - more, left + side + more, top + side + more)
    return np.asarray(image.resize((size + 2 * margin,) * 2, Image.Resampling.BOX, box=box))


def pixels_of(work: Work, images: Any) -> np.ndarray[Any, Any]:
    """The pixels of a batch as count x height x width x 3, from 0 to 255, whichever way they lie."""
    pixels = array(images)
    size, normalize = work.options["size"], work.options["normalize"]
    require(pixels.ndim == 4, f"a batch has the shape {pixels.shape}")
    if pixels.shape[1] == 3:
        pixels = pixels.transpose(0, 2, 3, 1)
    require(pixels.shape[1:] == (size, size, 3), f"images have the shape {pixels.shape[1:]}")
    wanted = np.float32 if normalize else np.uint8
    require(pixels.dtype == wanted, f"pixels are {pixels.dtype}, not {np.dtype(wanted)}")
    return (pixels * STD + MEAN) * 255 if normalize else pixels


def check_crops(work: Work, batches: Batches) -> None:
    """Each image once, with the colours of its file: a random crop is about as bright as its image."""
    numbers, means, deviations = [], [], []
    for images, labels in batches:
        pixels = pixels_of(work, images).astype(np.float32)
        means.append(pixels.mean((1, 2)))
        deviations.append(pixels.std((1, 2)).mean(1))
        numbers.append(array(labels))
    order = require_all(work, numbers)
    found, expected = np.concatenate(means), np.load(work.folder / "means.npy")[order]
    shift = np.abs(found.mean(0) - expected.mean(0)).max()
    require(shift < 12, f"colours are off by {shift:.0f} of 255 on average")
    alike = np.corrcoef(found.mean(1), expected.mean(1))[0, 1]
    require(alike > 0.5, f"crops are not of the images that their labels name (correlation {alike:.2f})")
    require(np.median(np.concatenate(deviations)) > 8, "images are nearly of one colour")


def _distance(image: np.ndarray[Any, Any], around: np.ndarray[Any, Any]) -> float:
    """The mean difference from the nearer of two references, at the best of nine places.

    What is the middle between two pixels may be either of them.
    """
    size = len(image)
    places = [
        reference[top : top + size, left : left + size]
        for reference in around
        for top in range(3)
        for left in range(3)
    ]
    return min(float(np.abs(image - place).mean()) for place in places)


def check_validation(work: Work, batches: Batches) -> None:
    """Each image once, in order, with Pillow's pixels, except for what another resize makes of them."""
    known = np.load(work.folder / "known.npy").astype(np.float32)
    numbers = []
    for images, labels in batches:
        pixels, labels = pixels_of(work, images), array(labels)
        for image, number in zip(pixels, labels, strict=True):
            if number < len(known):
                off = _distance(image, known[number])
                require(off < 8, f"pixels of image {number} are off by {off:.1f} of 255 on average")
        numbers.append(labels)
    order = require_all(work, numbers, shuffled=False)
    require((np.diff(order) == 1).all(), "the images are not in order")


def _train(
    name: str, about: str, data: str, count: int, *, normalize: bool = False, size: int = 224, **save: Any
) -> Work:
    return Work(
        name,
        "train",
        f"{about}; random resized crop to {size}, flip, {'normalised float32' if normalize else 'uint8'}, "
        "area or antialiased resize, shuffled; a batch is (images, numbers of the samples)",
        partial(make, **save),
        check_crops,
        data,
        count,
        192,
        unit="images/s",
        options={"size": size, "normalize": normalize},
    )


WORKLOADS = [
    _train("train, uint8", "photos, 500 x 375", "photos", 1000),
    _train("train, float32", "photos, 500 x 375", "photos", 1000, normalize=True),
    _train("train, large photos", "photos, 1,200 x 900", "large", 400, side=2.4),
    _train("train, 4:4:4", "photos, 500 x 375, colours at full resolution", "full-colour", 1000, subsampling=0),
    _train("train, progressive", "photos, 500 x 375, progressive JPEG", "progressive", 1000, progressive=True),
    _train("train, small", "photos, 128 x 96", "small", 4000, size=96, side=0.256),
    Work(
        "validation, float32",
        "validation",
        "photos, 500 x 375; shorter side to 256, middle 224, normalised float32, in order; (images, numbers)",
        make,
        check_validation,
        "photos",
        1000,
        192,
        unit="images/s",
        options={"size": 224, "normalize": True},
    ),
    Work(
        "train, uint8, decoded in memory",
        "decoded",
        "the same as train, uint8, but what was decoded in the first epoch is kept; the second epoch is timed",
        make,
        check_crops,
        "photos",
        1000,
        192,
        unit="images/s",
        options={"size": 224, "normalize": False, "later_differs": True},
    ),
]
