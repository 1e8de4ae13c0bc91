"""Transforms of any library, applied to one decoded image."""

from __future__ import annotations

from typing import Any

from foreload._torch import draw_seed
from foreload.batch.generators.keyed import take_epoch
from foreload.checks import Array
from foreload.transforms import ImageTransform, SmallImageTransform, transform_array

__all__ = ["apply_transform", "random_key"]


def random_key(dataset: Any, transform: ImageTransform | SmallImageTransform) -> tuple[int, int]:
    """Return the (seed, epoch) of what a dataset's native transform draws for samples that it is asked for.

    It is that of the loader, as where the loader makes batches natively; outside of one, the seed is drawn from
    torch's global generator.
    """
    if not transform.random:
        return 0, 0
    return take_epoch(dataset) or (draw_seed(), 0)


def apply_transform(transform: Any, array: Array, dataset: Any = None, index: int = 0) -> Any:
    """Transform an image in the form that the transform takes: foreload's and Albumentations' the array itself.

    Args:
        transform: one of :mod:`foreload.transforms`, of Albumentations, or a callable that takes a Pillow image.
        array: uint8, height x width x 3.
        dataset: the dataset that was asked for it.
        index: of the image.
    """
    from PIL import Image

    if isinstance(transform, ImageTransform):
        return transform_array(transform, array, random_key(dataset, transform), index)
    if type(transform).__module__.partition(".")[0] == "albumentations":
        return transform(image=array)["image"]
    return transform(Image.fromarray(array))
