"""Stage ``transform``: what a native :class:`~foreload.transforms.ImageTransform` does to pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from foreload import _native

if TYPE_CHECKING:
    from foreload.transforms import ImageTransform

__all__ = ["draw_seed", "shaped", "transform_array"]


def draw_seed(generator: torch.Generator | None = None) -> int:
    """Draw 63 random bits from torch's generator, as its DataLoader draws its base seed."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def transform_array(transform: ImageTransform, image: np.ndarray[Any, Any]) -> torch.Tensor:
    """Apply ``transform`` to uint8 of height x width x 3, with random numbers from torch's global generator."""
    out = torch.empty(transform.shape(1), dtype=transform.dtype)
    seed = draw_seed() if transform.random else 0
    _native.transform_rgb(transform.native, image, seed, out.view(-1).view(torch.uint8).numpy())
    return shaped(transform, out, 1)[0]


def shaped(transform: ImageTransform, memory: torch.Tensor, count: int) -> torch.Tensor:
    """See memory that was written natively as a batch: count x 3 x height x width."""
    height, width = transform.size
    if transform.channels_last:
        return memory.view(count, height, width, 3).permute(0, 3, 1, 2)
    return memory.view(count, 3, height, width)
