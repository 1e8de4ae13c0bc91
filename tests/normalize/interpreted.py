"""The Triton kernel, interpreted, against torch's operations; run with TRITON_INTERPRET=1."""

from __future__ import annotations

import itertools

import torch

from foreload.normalize import kernel
from foreload.transforms import IMAGENET_MEAN, IMAGENET_STD, Normalize

SHAPES = [(3, 3, 7, 33), (1, 3, 1, 1), (2, 3, 2, 1500), (2, 1, 5, 6), (1, 3, 3, 256)]
LAYOUTS = [
    lambda x: x,
    lambda x: x.contiguous(memory_format=torch.channels_last),
    lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    lambda x: torch.cat([x, x], -1)[..., ::2],
]


def main() -> None:
    random = torch.Generator().manual_seed(0)
    count = 0
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    for shape, dtype, last, layout, flips in itertools.product(
        SHAPES, dtypes, (False, True), LAYOUTS, (False, True)
    ):
        channels = shape[1]
        normalize = Normalize(
            mean=IMAGENET_MEAN[:channels], std=IMAGENET_STD[:channels], dtype=dtype, channels_last=last
        )
        images = layout(torch.randint(0, 256, shape, dtype=torch.uint8, generator=random))
        flip = torch.rand(len(images), generator=random) < 0.5 if flips else None
        wanted = normalize.apply(images, flip)
        out = torch.empty_like(wanted)
        assert kernel.fits(images)
        kernel.normalize(images, normalize._constants_on(images.device).table, flip, out)
        assert torch.equal(out, wanted), (shape, dtype, last, flips)
        count += 1
    assert not kernel.fits(torch.empty(1, 3, 1 << 16, 1 << 15, dtype=torch.uint8, device="meta"))
    print(count, "cases are the same")


if __name__ == "__main__":
    main()
