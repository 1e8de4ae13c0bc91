"""Normalisation as one Triton kernel. Importing this needs Triton, which CUDA builds of torch bring."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["fits", "normalize"]

# The most columns of a row that one program writes.
_MOST_COLUMNS = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _normalize_rows(  # type: ignore[no-untyped-def]
    images,
    table,
    flip,
    out,
    height,
    width,
    from_image,
    from_channel,
    from_row,
    from_column,
    to_image,
    to_channel,
    to_row,
    to_column,
    CHANNELS: tl.constexpr,
    FLIP: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write one row of an image, or a part of it, in all channels: ``table[channel, value]``."""
    image = (tl.program_id(0) // height).to(tl.int64)
    row = tl.program_id(0) % height
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    source = column
    if FLIP:
        source = tl.where(tl.load(flip + image) != 0, width - 1 - column, column)
    read = images + image * from_image + row * from_row + source * from_column
    write = out + image * to_image + row * to_row + column * to_column
    for channel in tl.static_range(CHANNELS):
        value = tl.load(read + channel * from_channel, mask=inside, other=0).to(tl.int32)
        tl.store(write + channel * to_channel, tl.load(table + channel * 256 + value), mask=inside)


def fits(images: torch.Tensor) -> bool:
    """Return whether offsets within an image are 32-bit, and the programs for all its rows can be numbered."""
    count, _, height, _ = images.shape
    sides, steps = images.shape[1:], images.stride()[1:]
    span = sum((side - 1) * step for side, step in zip(sides, steps, strict=True))
    return span < 2**31 and images[0].numel() < 2**31 and count * height < 2**31


def normalize(images: torch.Tensor, table: torch.Tensor, flip: torch.Tensor | None, out: torch.Tensor) -> None:
    """Write to ``out`` what ``table`` has for the images.

    Args:
        images: uint8, batch x channels x height x width, with any strides.
        table: channels x 256, contiguous, of the dtype of ``out``.
        flip: bool, one per image: whether it is mirrored; None: none is.
        out: of the shape of ``images``, on the same device.
    """
    count, channels, height, width = images.shape
    columns = min(_MOST_COLUMNS, triton.next_power_of_2(width))
    grid = (count * height, triton.cdiv(width, columns))
    # Triton launches on the current device.
    with torch.cuda.device_of(images):  # type: ignore[no-untyped-call]
        _normalize_rows[grid](
            images,
            table,
            table if flip is None else flip.contiguous().view(torch.uint8),
            out,
            height,
            width,
            *images.stride(),
            *out.stride(),
            CHANNELS=channels,
            FLIP=flip is not None,
            COLUMNS=columns,
        )
