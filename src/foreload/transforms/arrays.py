"""Images of any kind as arrays, and checks of what all transforms take."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import torch

from foreload.checks import Array, check_int
from foreload.normalize.normalize import pixels_are_finite

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "Jitter",
    "Size",
    "check_colors",
    "check_flip",
    "check_jitter",
    "check_range",
    "check_shorter",
    "rgb_array",
    "size_pair",
]

Size = int | tuple[int, int]
Jitter = tuple[float, float, float, float]

_BITS_PER_SAMPLE = 258  # a tag of TIFF
_MOST_PIXELS = 16384  # of a side of the result
_LONGEST_SIDE = 2**31 - 1  # native code counts pixels in an int


def size_pair(size: Size, name: str = "size") -> tuple[int, int]:
    """Return (height, width).

    Args:
        size: both, or one number for both.
        name: of the argument, for messages.

    Raises:
        ValueError, TypeError: it is neither one int nor two, or no size that images have.

    >>> size_pair(32)
    (32, 32)
    """
    sides: Any = (size, size) if isinstance(size, SupportsIndex) else size
    if not isinstance(sides, Sequence) or isinstance(sides, str):
        raise TypeError(f"{name} must be one number or (height, width), got {size!r}")
    if len(sides) != 2:
        raise ValueError(f"{name} must be one number or (height, width), got {size}")
    pair = check_int(name, sides[0]), check_int(name, sides[1])
    if min(pair) < 1 or max(pair) > _MOST_PIXELS:
        raise ValueError(f"{name} must be from 1 to {_MOST_PIXELS} pixels a side, got {pair}")
    return pair


def check_shorter(name: str, value: Any, least: int) -> int:
    """Return the length that a shorter side is resized to; raise TypeError or ValueError if it makes no sense.

    Args:
        name: of the argument, for messages.
        value: the argument.
        least: the longer side of the crop.
    """
    number = check_int(name, value)
    if not least <= number <= _LONGEST_SIDE:
        raise ValueError(
            f"{name} must be from {least} to {_LONGEST_SIDE} pixels, got {number}: it is the shorter side before "
            "the crop"
        )
    return number


def check_range(name: str, values: tuple[float, float], most: float) -> None:
    """Raise ValueError unless an argument is a pair of numbers above 0, up to ``most``, the lower one first."""
    try:
        is_pair = isinstance(values, Sequence) and not isinstance(values, (str, bytes)) and len(values) == 2
        is_range = is_pair and 0 < values[0] <= values[1] <= most
    except (TypeError, ValueError, RuntimeError):  # of an array or a tensor of many numbers too
        is_range = False
    if not is_range:
        raise ValueError(f"{name} must be (low, high), numbers with 0 < low <= high <= {most}, got {values!r}")


def check_jitter(jitter: Jitter | None) -> Jitter:
    """Return a ``color_jitter``, or one that changes nothing.

    Raises:
        ValueError: it makes no sense.
    """
    values = jitter or (0.0, 0.0, 0.0, 0.0)
    if not _are_finite(values, 4) or min(values) < 0 or values[3] > 0.5:
        raise ValueError(
            "color_jitter must be (brightness, contrast, saturation, hue), finite in float32, none negative, hue "
            f"at most 0.5, got {jitter}"
        )
    return values


def check_colors(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Raise ValueError unless there are three numbers of each that images can be normalised with."""
    if (
        not _are_finite(mean, 3)
        or not _are_finite(std, 3)
        or not pixels_are_finite(*(tuple(map(float, one)) for one in (mean, std)))
    ):
        raise ValueError(
            f"mean and std need three finite numbers each, std above 0, got {mean} and {std}; so must be, in "
            "float32, what becomes of pixels"
        )


def check_flip(hflip: float) -> None:
    """Raise TypeError or ValueError unless it is a probability."""
    if not isinstance(hflip, numbers.Real):
        raise TypeError(f"hflip must be a number from 0 to 1, got {hflip!r}")
    if not 0 <= hflip <= 1:
        raise ValueError(f"hflip is a probability, from 0 to 1, got {hflip}")


def _are_finite(values: Any, count: int) -> bool:
    """Whether there are so many numbers, finite as native code holds them: in float32."""
    try:
        if len(values) != count or not all(map(math.isfinite, values)):
            return False
    except (TypeError, OverflowError):
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.array(list(map(float, values)), np.float32)).all())


def rgb_array(image: Image.Image | Array | torch.Tensor) -> Array:
    """Return any image as uint8 of height x width x 3: grey is repeated, alpha dropped, 16 bits scaled to 8.

    Grey of 16 bits (Pillow's ``I;16``; ``I`` of PNG and PGM files) is divided by 257, that of 12 bits in TIFF by
    4095 / 255, whatever the values. Other integers (``I``) and floats (``F``) are refused: which of their values
    is white is not known.

    Raises:
        TypeError: ``image`` is not an image, or its dtype is not uint8.
        ValueError: it is a Pillow image of 32-bit integers or floats.

    >>> rgb_array(np.zeros((2, 4), np.uint8)).shape
    (2, 4, 3)
    """
    if isinstance(image, torch.Tensor):
        image = image.permute(1, 2, 0).numpy() if image.ndim == 3 else image.numpy()
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8:
            raise TypeError(f"an image must be uint8, got {image.dtype}; convert it, or transform it yourself")
        if image.ndim == 2:
            image = image[:, :, None]
        if image.ndim != 3 or image.shape[2] not in (1, 3, 4):
            raise TypeError(f"an image must have 1, 3 or 4 channels, got the shape {image.shape}")
        image = image.repeat(3, axis=2) if image.shape[2] == 1 else image[:, :, :3]
        return np.ascontiguousarray(image)
    if not hasattr(image, "convert"):
        raise TypeError(f"an image must be a Pillow image, an ndarray or a tensor, got {type(image).__name__}")
    if image.mode.startswith("I") or image.mode == "F":
        return rgb_array(_to_8_bits(image))
    return np.ascontiguousarray(np.asarray(image.convert("RGB")))


def _to_8_bits(image: Image.Image) -> Array:
    # Pillow's own conversion clips at 255, which turns a 16-bit image white.
    if image.mode.startswith("I;16"):
        (bits, *_) = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,))
    elif image.mode == "I" and image.format in ("PNG", "PPM"):
        bits = 16
    else:
        kind = "floats" if image.mode == "F" else "32-bit integers"
        raise ValueError(
            f"an image of {kind} (Pillow's mode {image.mode!r}) has no known white; convert it to 8 or 16 bits"
        )
    values: Array = np.rint(np.asarray(image) * 255.0 / (2**bits - 1))
    return values.astype(np.uint8)
