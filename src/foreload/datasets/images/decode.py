"""Decoding of images to RGB pixels: sound JPEGs by native code, everything else by Pillow."""

from __future__ import annotations

import io
import re
import warnings

from foreload import _native
from foreload.checks import Array
from foreload.errors import DecodeError
from foreload.transforms import rgb_array

__all__ = ["decode_image", "decode_with_pillow"]

# As in the native decoder: each scan may take as long as a picture, in a few bytes.
_MOST_SCANS = 500

# Markers of a JPEG that segments follow, or its end.
_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")


def decode_image(data: bytes, path: str = "<bytes>") -> Array:
    """Decode an encoded image, upright, to uint8 of height x width x 3.

    Args:
        data: the encoded image.
        path: the name of the image in an error.

    Raises:
        DecodeError: the bytes are damaged, cut short or of no known format.
    """
    return _native.decode_rgb(path, data, decode_with_pillow)


def decode_with_pillow(path: str, data: bytes) -> Array:
    """Decode what the native decoder leaves to others (PNG, WebP, BMP, GIF, TIFF, CMYK or damaged JPEG, ...).

    Raises:
        DecodeError: Pillow cannot read it either, or it is a JPEG of too many scans.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if data.startswith(b"\xff\xd8") and _has_endless_scans(data):
        raise DecodeError(f"{path}: the picture has more than {_MOST_SCANS} scans; if it is real, encode it again")
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(data)) as image:
            # Large images are fine; Pillow raises an error for those that are too large.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image.load()
            ImageOps.exif_transpose(image, in_place=True)  # a copy would not know its format
            return rgb_array(image)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        kind = "no image format that Pillow knows" if isinstance(error, UnidentifiedImageError) else str(error)
        raise DecodeError(f"{path}: {kind}") from error


def _has_endless_scans(jpeg: bytes) -> bool:
    scans, at = 0, 2
    while scans <= _MOST_SCANS and (found := _MARKER.search(jpeg, at)) is not None and found[0] != b"\xff\xd9":
        scans += found[0] == b"\xff\xda"
        at = found.end() + int.from_bytes(jpeg[found.end() : found.end() + 2], "big")
    return scans > _MOST_SCANS
