"""Crop and resize of a batch as one Triton kernel. Importing it needs Triton, which CUDA builds of torch bring."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["COLUMNS", "resample"]

# What the kernel is told of each image (int64): the address of the first pixel of its box; the bytes to the next
# row, column and colour of the upright image; the box's height and width; the height and width that it is resized
# to; the top and left of the result in that; whether it is mirrored; its position in the batch.
COLUMNS = 12

_ROWS_OF_A_PROGRAM, _COLUMNS_OF_A_PROGRAM = 4, 64


@triton.jit  # type: ignore[untyped-decorator]
def _resample(  # type: ignore[no-untyped-def]
    table,
    out,
    height,
    width,
    to_image,
    to_channel,
    to_row,
    to_column,
    FIELDS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write a part of an image: each value is a mean of the inputs below a triangle, in both directions."""
    told = table + tl.program_id(0) * FIELDS
    first = tl.load(told).to(tl.pointer_type(tl.uint8))
    step_row, step_column, step_channel = tl.load(told + 1), tl.load(told + 2), tl.load(told + 3)
    box_height, box_width = tl.load(told + 4), tl.load(told + 5)
    scale_y = box_height.to(tl.float32) / tl.load(told + 6).to(tl.float32)
    scale_x = box_width.to(tl.float32) / tl.load(told + 7).to(tl.float32)
    reach_y, reach_x = tl.maximum(scale_y, 1.0), tl.maximum(scale_x, 1.0)

    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    source = tl.where(tl.load(told + 10) != 0, width - 1 - column, column)
    centre_y = ((row + tl.load(told + 8)).to(tl.float32) + 0.5) * scale_y
    centre_x = ((source + tl.load(told + 9)).to(tl.float32) + 0.5) * scale_x
    from_y = tl.floor(centre_y - reach_y - 0.5).to(tl.int64)
    from_x = tl.floor(centre_x - reach_x - 0.5).to(tl.int64)
    taps_y, taps_x = (2 * reach_y).to(tl.int32) + 3, (2 * reach_x).to(tl.int32) + 3

    red = tl.zeros((ROWS, COLUMNS), tl.float32)
    green = tl.zeros((ROWS, COLUMNS), tl.float32)
    blue = tl.zeros((ROWS, COLUMNS), tl.float32)
    sum_y, sum_x = tl.zeros((ROWS,), tl.float32), tl.zeros((COLUMNS,), tl.float32)
    for tap_y in range(taps_y):
        y = from_y + tap_y
        weight_y = tl.maximum(1 - tl.abs(y.to(tl.float32) + 0.5 - centre_y) / reach_y, 0.0)
        weight_y = tl.where((y >= 0) & (y < box_height), weight_y, 0.0)
        sum_y += weight_y
        sum_x = tl.zeros((COLUMNS,), tl.float32)
        for tap_x in range(taps_x):
            x = from_x + tap_x
            weight_x = tl.maximum(1 - tl.abs(x.to(tl.float32) + 0.5 - centre_x) / reach_x, 0.0)
            weight_x = tl.where((x >= 0) & (x < box_width), weight_x, 0.0)
            sum_x += weight_x
            weight = weight_y[:, None] * weight_x[None, :]
            read = first + y[:, None] * step_row + x[None, :] * step_column
            red += weight * tl.load(read, mask=weight > 0, other=0).to(tl.float32)
            green += weight * tl.load(read + step_channel, mask=weight > 0, other=0).to(tl.float32)
            blue += weight * tl.load(read + 2 * step_channel, mask=weight > 0, other=0).to(tl.float32)

    inside = (row < height)[:, None] & (column < width)[None, :]
    total = tl.where(inside, sum_y[:, None] * sum_x[None, :], 1.0)
    write = out + tl.load(told + 11) * to_image + row[:, None].to(tl.int64) * to_row + column[None, :] * to_column
    tl.store(write, tl.minimum(red / total + 0.5, 255.0).to(tl.uint8), mask=inside)
    tl.store(write + to_channel, tl.minimum(green / total + 0.5, 255.0).to(tl.uint8), mask=inside)
    tl.store(write + 2 * to_channel, tl.minimum(blue / total + 0.5, 255.0).to(tl.uint8), mask=inside)


def resample(table: torch.Tensor, out: torch.Tensor) -> None:
    """Write the views of some images to ``out`` (uint8, batch x 3 x height x width, with any strides).

    Args:
        table: int64, images x ``COLUMNS``, on the device of ``out``.
        out: where they go.
    """
    _, _, height, width = out.shape
    grid = (len(table), triton.cdiv(height, _ROWS_OF_A_PROGRAM), triton.cdiv(width, _COLUMNS_OF_A_PROGRAM))
    # Triton launches on the current device.
    with torch.cuda.device_of(out):  # type: ignore[no-untyped-call]
        _resample[grid](
            table,
            out,
            height,
            width,
            *out.stride(),
            FIELDS=COLUMNS,
            ROWS=_ROWS_OF_A_PROGRAM,
            COLUMNS=_COLUMNS_OF_A_PROGRAM,
        )
