"""Transforms of any library, applied to one decoded image."""

from __future__ import annotations

from typing import Any

from foreload._torch import draw_seed
from foreload.batch.generators.keyed import take_epoch
from foreload.checks import Array, inherits
from foreload.transforms import ImageTransform, SmallImageTransform, transform_array

__all__ = ["apply_transform", "key_of_batch", "key_of_loader", "makes_samples"]


def makes_samples(dataset: Any, kind: type) -> bool:
    """Whether a dataset's samples are those of ``kind``, its class, not of a subclass or a Python transform."""
    return inherits(dataset, kind, "__getitems__") and dataset.__getitems__ is not None


def key_of_loader(dataset: Any, kind: type) -> tuple[int, int] | None:
    """Return the (seed, epoch) of what native transforms draw for the loader that asks for samples, if one does.

    Those are then the samples of the batches that the loader makes natively. A subclass that makes samples may ask
    for any image, several times and in place of another one, and is to get other random numbers each time.
    """
    return take_epoch(dataset) if makes_samples(dataset, kind) else None


def key_of_batch(dataset: Any, kind: type, transform: ImageTransform | SmallImageTransform) -> tuple[int, int]:
    """Return the (seed, epoch) of a batch: without a loader, the seed is drawn from torch's global generator."""
    return (key_of_loader(dataset, kind) or (draw_seed(), 0)) if transform.random else (0, 0)


def apply_transform(transform: Any, array: Array, key: tuple[int, int] | None = None, index: int = 0) -> Any:
    """Transform an image in the form that the transform takes: foreload's and Albumentations' the array itself.

    Args:
        transform: one of :mod:`foreload.transforms`, of Albumentations, or a callable that takes a Pillow image.
        array: uint8, height x width x 3.
        key: (seed, epoch) of what a native transform draws; by default it draws a seed as other transforms do.
        index: of the image, if there is a key.
    """
    from PIL import Image

    if isinstance(transform, ImageTransform):
        return transform_array(transform, array, key, index)
    if type(transform).__module__.partition(".")[0] == "albumentations":
        # (It takes arrays that it may write to; what is decoded may be kept for the next time.)
        return transform(image=array if array.flags.writeable else array.copy())["image"]
    return transform(Image.fromarray(array))
