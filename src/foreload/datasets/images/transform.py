"""Transforms of any library, applied to one decoded image."""

from __future__ import annotations

from typing import Any

from foreload.checks import Array
from foreload.transforms import ImageTransform, transform_array

__all__ = ["apply_transform"]


def apply_transform(transform: Any, array: Array) -> Any:
    """Transform an image in the form that the transform takes: foreload's and Albumentations' the array itself.

    Args:
        transform: one of :mod:`foreload.transforms`, of Albumentations, or a callable that takes a Pillow image.
        array: uint8, height x width x 3.
    """
    from PIL import Image

    if isinstance(transform, ImageTransform):
        return transform_array(transform, array)
    if type(transform).__module__.partition(".")[0] == "albumentations":
        return transform(image=array)["image"]
    return transform(Image.fromarray(array))
