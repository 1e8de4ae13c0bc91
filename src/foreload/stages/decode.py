"""Stage ``decode``: encoded bytes to RGB pixels. JPEG natively, everything else through Pillow."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from foreload import _native
from foreload.errors import DecodeError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["decode_image", "decode_with_pillow", "rgb_array"]

Array = np.ndarray[Any, Any]


def decode_image(data: bytes, path: str = "<bytes>") -> Array:
    """Decode an encoded image, upright, to uint8 of height x width x 3.

    Args:
        data: the encoded image.
        path: what to call it in an error.

    Raises:
        DecodeError: the bytes are damaged, cut short or of no known format.
    """
    return _native.decode_rgb(path, data, decode_with_pillow)


def decode_with_pillow(path: str, data: bytes) -> Array:
    """Decode what the native decoder does not know (PNG, WebP, BMP, GIF, TIFF, CMYK JPEG, ...).

    Raises:
        DecodeError: Pillow cannot read it either.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(data)) as image:
            # Large is fine; Pillow raises by itself where it is too large.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image.load()
            return rgb_array(ImageOps.exif_transpose(image))
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        kind = "no image format that Pillow knows" if isinstance(error, UnidentifiedImageError) else str(error)
        raise DecodeError(f"{path}: {kind}") from error


def rgb_array(image: Image.Image | Array | torch.Tensor) -> Array:
    """Any image as uint8 of height x width x 3: grey is repeated, alpha dropped, 16 bits cut to 8.

    Raises:
        TypeError: it is not an image, or not of uint8.
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
        return rgb_array(_to_8_bits(np.asarray(image), image.mode))
    return np.ascontiguousarray(np.asarray(image.convert("RGB")))


def _to_8_bits(values: Array, mode: str) -> Array:
    # Pillow's own conversion clips at 255, which turns a 16-bit picture white. Its mode "I" holds 8 or 16 bits.
    if mode.startswith("I;16") or (mode == "I" and values.max(initial=0) > 255):
        values = values / 257
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
