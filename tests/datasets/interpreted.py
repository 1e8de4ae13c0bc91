"""The Triton kernel that crops and resizes, interpreted, against torch's operations: with TRITON_INTERPRET=1."""

from __future__ import annotations

import itertools
import random

import torch

from foreload.datasets.images import resample_kernel
from foreload.datasets.images.resample import View, ViewPlan, resample, table_row

STORED = [(13, 21), (31, 9), (1, 1)]


def views_of(size: tuple[int, int], draw: random.Random) -> list[View]:
    """An image of each shape and orientation, in both layouts, with a random box of it."""
    views = []
    cases = itertools.product(STORED, range(1, 9), (False, True))
    for place, ((height, width), orientation, interleaved) in enumerate(cases):
        pixels = torch.randint(0, 256, (3, height, width), dtype=torch.uint8)
        image = pixels.permute(1, 2, 0).contiguous().permute(2, 0, 1) if interleaved else pixels
        upright = (width, height) if orientation < 5 else (height, width)
        x, y = (draw.randrange(side) for side in upright)
        box = (draw.randint(1, upright[0] - x), draw.randint(1, upright[1] - y))
        top, left = draw.randrange(3), draw.randrange(3)
        full = (size[0] + top + draw.randrange(3), size[1] + left + draw.randrange(3))
        plan = ViewPlan(orientation, *upright, x, y, *box, *full, top, left, draw.randrange(2))
        assert tuple(image.shape) == plan.stored_shape
        views.append(View(image, plan, place))
    draw.shuffle(views)  # each place is written by its own
    return views


def main() -> None:
    torch.manual_seed(0)
    draw = random.Random(0)
    count = 0
    for size, layout in (((5, 3), torch.contiguous_format), ((2, 66), torch.channels_last)):
        views = views_of(size, draw)
        wanted = torch.empty(len(views), 3, *size, dtype=torch.uint8).contiguous(memory_format=layout)
        found = torch.empty_like(wanted)
        resample(views, wanted)
        resample_kernel.resample(torch.tensor([table_row(view) for view in views]), found)
        difference = (wanted.int() - found.int()).abs()
        # Sums of another order fall on the other side of a half now and then.
        assert difference.max() <= 1, difference.amax((1, 2, 3))
        assert (difference > 0).float().mean() < 0.01, (difference > 0).float().mean()
        count += len(views)
    print(count, "views are the same")


if __name__ == "__main__":
    main()
