"""Views of decoded images, cropped and resized on their device."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["Plan", "resample"]


class Plan(NamedTuple):
    """What is taken of an image, as :func:`foreload._native.plan_view` returns it.

    Attributes:
        orientation: by Exif, from 1 to 8.
        width, height: of the upright image.
        x, y, box_width, box_height: the box of it that is resized.
        full_height, full_width: the size that the box is resized to.
        top, left: where the result begins in that.
        mirrored: whether it is flipped left to right.
    """

    orientation: int
    width: int
    height: int
    x: int
    y: int
    box_width: int
    box_height: int
    full_height: int
    full_width: int
    top: int
    left: int
    mirrored: int

    @property
    def stored_shape(self) -> tuple[int, int, int]:
        """The shape of the image as it is stored: 3 x height x width, before it is turned upright."""
        sides = (self.height, self.width) if self.orientation < 5 else (self.width, self.height)
        return (3, *sides)


def resample(image: torch.Tensor, plan: Plan, out: torch.Tensor, *, mirrored: bool) -> None:
    """Write the view of an image to ``out``: Pillow's antialiased bilinear resize, rounded once.

    The CPU rounds after each of the two directions, so that its values differ by 1 at most.

    Args:
        image: uint8 of ``plan.stored_shape``, with any strides.
        plan: the view.
        out: uint8 of 3 x height x width, with any strides, on the same device.
        mirrored: whether to flip it.
    """
    _, height, width = out.shape
    x, y = plan.x, plan.y
    box = _upright(image, plan.orientation)[:, y : y + plan.box_height, x : x + plan.box_width]
    # A user's autocast would make these products those of shorter numbers, whose errors are visible.
    with torch.no_grad(), torch.autocast(image.device.type, enabled=False):
        rows = _weights(plan.box_height, plan.full_height, plan.top, height, image.device)
        columns = _weights(plan.box_width, plan.full_width, plan.left, width, image.device)
        if mirrored:
            columns = columns.flip(0)
        out.copy_((rows @ box.float() @ columns.T).round_().clamp_(0, 255))


def _upright(image: torch.Tensor, orientation: int) -> torch.Tensor:
    """Turn a stored image by its Exif orientation."""
    if orientation >= 5:
        image = image.transpose(1, 2)
    # After the transposition, if there is one: rows that run upwards, columns that run to the left.
    sides = [side for side, flipped in ((1, (3, 4, 7, 8)), (2, (2, 3, 6, 7))) if orientation in flipped]
    return image.flip(sides) if sides else image


def _weights(length: int, full: int, start: int, count: int, device: torch.device) -> torch.Tensor:
    """Return what each output of an axis takes of each input: float32, count x length.

    The filter is a triangle, as wide as an output if that is wider than an input.
    """
    scale = length / full
    outputs = torch.arange(start, start + count, device=device, dtype=torch.float64)
    inputs = torch.arange(length, device=device, dtype=torch.float64)
    distances = (inputs + 0.5) - ((outputs + 0.5) * scale)[:, None]
    weights = (1 - distances.abs() / max(scale, 1.0)).clamp_(min=0)
    return (weights / weights.sum(1, keepdim=True)).float()
