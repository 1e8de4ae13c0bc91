"""Views of decoded images, cropped and resized on their device: by a Triton kernel, or torch's operations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

import torch

from foreload.errors import warn_user

__all__ = ["View", "ViewPlan", "resample", "table_row"]


class ViewPlan(NamedTuple):
    """The part of an image to take and its new size, as :func:`foreload._native.plan_view` returns them.

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


class View(NamedTuple):
    """An image, and what is made of it.

    Attributes:
        image: uint8 of ``plan.stored_shape``, with any strides.
        plan: what is taken of it.
        place: its position in the batch.
    """

    image: torch.Tensor
    plan: ViewPlan
    place: int


def resample(views: Sequence[View], out: torch.Tensor) -> None:
    """Write views of images to their places: Pillow's antialiased bilinear resize, rounded once.

    The CPU rounds after each of the two directions, so that its values differ by 1 at most.

    Args:
        views: the images, on the device of ``out``.
        out: uint8 of batch x 3 x height x width, with any strides.
    """
    if views and not (out.is_cuda and _by_kernel(views, out)):
        # A user's autocast would make these products those of shorter numbers, whose errors are visible.
        with torch.no_grad(), torch.autocast(out.device.type, enabled=False):
            for view in views:
                _by_torch(view, out[view.place])


def _by_torch(view: View, out: torch.Tensor) -> None:
    _, height, width = out.shape
    plan, device = view.plan, out.device
    rows_run_up, columns_run_left = _turns(plan.orientation)
    image = view.image if plan.orientation < 5 else view.image.transpose(1, 2)
    sides = [side for side, turned in ((1, rows_run_up), (2, columns_run_left)) if turned]
    image = image.flip(sides) if sides else image
    box = image[:, plan.y : plan.y + plan.box_height, plan.x : plan.x + plan.box_width]
    rows = _weights(plan.box_height, plan.full_height, plan.top, height, device)
    columns = _weights(plan.box_width, plan.full_width, plan.left, width, device)
    columns = columns.flip(0) if plan.mirrored else columns
    out.copy_((rows @ box.float() @ columns.T).add_(0.5).clamp_(0, 255))  # the copy cuts fractions off


def _turns(orientation: int) -> tuple[bool, bool]:
    """Return whether rows run upwards, and columns to the left, in a stored image.

    From 5 on, it is transposed; the answer is for what it is then.
    """
    return orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)


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


_unusable: list[str] = []  # why, in words: an error would keep its frames, and so a batch on the device


def _by_kernel(views: Sequence[View], out: torch.Tensor) -> bool:
    """Write the views by the Triton kernel, if there is one that can."""
    kernel = _kernel()
    if kernel is None or _unusable:
        return False
    # Page-locked, so that the copy waits for nothing; torch uses that memory again when the copy is over.
    rows = [table_row(view) for view in views]
    table = torch.tensor(rows, dtype=torch.int64, device="cpu", pin_memory=True)
    try:
        kernel.resample(table.to(out.device, non_blocking=True), out)
    except Exception as error:  # Triton compiles at the first call, for which it needs a C compiler and more
        _unusable.append(str(error))
        warn_user(f"Triton cannot compile foreload's kernel, torch's operations are used instead: {error}")
        return False
    return True


def table_row(view: View) -> list[int]:
    """Return what the kernel is told of a view; see :data:`foreload.datasets.images.resample_kernel.COLUMNS`."""
    image, plan = view.image, view.plan
    channel, row, column = image.stride()
    if plan.orientation >= 5:
        row, column = column, row
    rows_run_up, columns_run_left = _turns(plan.orientation)
    first = image.data_ptr()
    if rows_run_up:
        first, row = first + (plan.height - 1) * row, -row
    if columns_run_left:
        first, column = first + (plan.width - 1) * column, -column
    first += plan.y * row + plan.x * column
    sides = plan.box_height, plan.box_width, plan.full_height, plan.full_width, plan.top, plan.left
    return [first, row, column, channel, *sides, plan.mirrored, view.place]


@cache
def _kernel() -> ModuleType | None:
    try:
        from foreload.datasets.images import resample_kernel
    except ImportError:  # torch came without Triton
        return None
    return resample_kernel
