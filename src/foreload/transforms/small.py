"""Transforms of small images in memory, which keep their pixels: pad, crop, flip, cover a part, normalise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from foreload import _native
from foreload._torch import draw_seed
from foreload.checks import check_bool, check_int
from foreload.normalize.normalize import IMAGENET_MEAN, IMAGENET_STD
from foreload.transforms.arrays import Jitter, Size, check_colors, check_flip, check_jitter, rgb_array, size_pair

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["SmallImageTransform", "train_small", "val_small"]


@dataclass(frozen=True, kw_only=True)
class SmallImageTransform:
    """A transform of small images to tensors, without resizing; see :func:`train_small`, :func:`val_small`.

    The steps, in their order: pad, crop, flip, colours, cutout, normalise.

    Attributes:
        crop: where the crop is: ``"random"``, anywhere with the same probability, or ``"center"``.
        size: (height, width) of the crop in pixels.
        padding: black pixels that are added on each side first; fewer than the crop has.
        hflip: the probability of mirroring an image.
        color_jitter: (brightness, contrast, saturation, hue) as for torchvision's ``ColorJitter``, or None.
        cutout: the side of a square that gets the colour ``mean``, to the nearest byte (DeVries & Taylor, 2017);
            its middle is any pixel, so that a part of it may be outside. 0: none.
        normalize: float32, ``(x / 255 - mean) / std``; otherwise uint8, for :class:`Normalize` on a GPU perhaps.
        channels_last: samples lie in memory as height x width x 3 (the shape stays 3 x height x width).
    """

    crop: Literal["random", "center"]
    size: tuple[int, int]
    padding: int = 0
    hflip: float = 0.0
    color_jitter: Jitter | None = None
    cutout: int = 0
    normalize: bool = True
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    channels_last: bool = False

    def __post_init__(self) -> None:
        """Check the values, and make the native transform of them.

        Raises:
            ValueError, TypeError: a value makes no sense; the message names it.
        """
        if self.crop not in ("random", "center"):
            raise ValueError(f"crop must be 'random' or 'center', got {self.crop!r}")
        object.__setattr__(self, "size", size_pair(self.size))
        for name in ("padding", "cutout"):
            object.__setattr__(self, name, check_int(name, getattr(self, name)))
        if not 0 <= self.padding < min(self.size):
            raise ValueError(f"padding must be from 0 to less than the crop of {self.size}, got {self.padding}")
        check_flip(self.hflip)
        for name in ("normalize", "channels_last"):
            check_bool(name, getattr(self, name))
        if not 0 <= self.cutout <= 2 * max(self.size):
            raise ValueError(f"cutout must be from 0 to twice the crop of {self.size}, got {self.cutout}")
        check_colors(self.mean, self.std)
        jitter = check_jitter(self.color_jitter)
        for name in ("mean", "std"):  # which may come from JSON, that is, as lists
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        object.__setattr__(self, "color_jitter", tuple(map(float, jitter)) if self.color_jitter else None)
        self.__dict__["native"] = _native.SmallTransform(
            random=self.crop == "random",
            size=self.size,
            padding=self.padding,
            flip=self.hflip,
            cutout=self.cutout,
            jitter=jitter,
            mean=self.mean,
            std=self.std,
            normalize=self.normalize,
            channels_last=self.channels_last,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments; the native transform is made again from them."""
        arguments = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return _rebuild, (arguments,)

    @property
    def native(self) -> _native.SmallTransform:
        """The native transform of these values."""
        made: _native.SmallTransform = self.__dict__["native"]
        return made

    @property
    def random(self) -> bool:
        """Whether an image may look different in another epoch."""
        return self.crop == "random" or self.hflip > 0 or self.color_jitter is not None or self.cutout > 0

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the result: float32 or uint8."""
        return torch.float32 if self.normalize else torch.uint8

    def check_size(self, height: int, width: int) -> None:
        """Raise ValueError if the crop does not fit into padded images of this size."""
        if height + 2 * self.padding < self.size[0] or width + 2 * self.padding < self.size[1]:
            raise ValueError(
                f"a crop of {self.size} does not fit into images of {(height, width)} with "
                f"padding={self.padding}; pad them by more, or resize them first"
            )

    def job(
        self, images: torch.Tensor, indices: np.ndarray[Any, Any], key: tuple[int, int], memory: torch.Tensor
    ) -> tuple[_native.SmallImageJob, torch.Tensor]:
        """Return the job that transforms some images, and the batch that it writes.

        Args:
            images: uint8 of count x 3 x height x width, with any strides.
            indices: int64, of the images.
            key: (seed, epoch); the random numbers of an image are those of (seed, epoch, index).
            memory: for the batch; contiguous, with as many values.
        """
        self.check_size(*images.shape[2:])
        out = memory.view(-1).view(torch.uint8).numpy()
        job = _native.SmallImageJob(images.numpy(), self.native, indices, *key, out)
        height, width = self.size
        if self.channels_last:
            return job, memory.view(len(indices), height, width, 3).permute(0, 3, 1, 2)
        return job, memory.view(len(indices), 3, height, width)

    def __call__(self, image: Image.Image | np.ndarray[Any, Any] | torch.Tensor) -> torch.Tensor:
        """Transform one image, with random numbers from torch's global generator.

        Args:
            image: a Pillow image, or uint8 of height x width x 3 (ndarray) or 3 x height x width (tensor).

        Returns:
            Tensor of 3 x height x width.

        Raises:
            ValueError: the crop does not fit into the image.

        >>> train_small(32, padding=4)(np.zeros((32, 32, 3), np.uint8)).shape
        torch.Size([3, 32, 32])
        """
        images = torch.from_numpy(np.array(rgb_array(image))).permute(2, 0, 1)[None]
        memory = torch.empty(3 * self.size[0] * self.size[1], dtype=self.dtype, device="cpu")
        key = (draw_seed() if self.random else 0, 0)
        job, batch = self.job(images, np.zeros(1, np.int64), key, memory)
        job.run_here()
        return batch[0]


def _rebuild(arguments: dict[str, Any]) -> SmallImageTransform:
    return SmallImageTransform(**arguments)


def train_small(
    size: Size = 32,
    *,
    padding: int = 4,
    hflip: float = 0.5,
    color_jitter: Jitter | None = None,
    cutout: int = 0,
    normalize: bool = True,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
    channels_last: bool = False,
) -> SmallImageTransform:
    """Return the usual transform for training on CIFAR: pad, crop at random, flip, normalise.

    Args:
        size: (height, width) of the crop in pixels, or one number for both.
        padding: black pixels that are added on each side first; fewer than the crop has.
        hflip: the probability of mirroring an image.
        color_jitter: (brightness, contrast, saturation, hue) as for torchvision's ``ColorJitter``, or None.
        cutout: the side of a square that gets the colour ``mean``; 0: none.
        normalize: float32, ``(x / 255 - mean) / std``; otherwise uint8 as it is.
        mean: what is subtracted of red, green and blue, from 0 to 1.
        std: what they are divided by.
        channels_last: samples lie in memory as height x width x 3 (the shape stays 3 x height x width).

    Raises:
        ValueError, TypeError: a value makes no sense; the message names it.

    >>> train_small(32, cutout=16).padding
    4
    """
    return SmallImageTransform(
        crop="random",
        size=size_pair(size),
        padding=padding,
        hflip=hflip,
        color_jitter=color_jitter,
        cutout=cutout,
        normalize=normalize,
        mean=mean,
        std=std,
        channels_last=channels_last,
    )


def val_small(
    size: Size = 32,
    *,
    normalize: bool = True,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
    channels_last: bool = False,
) -> SmallImageTransform:
    """Return the transform for validation that goes with :func:`train_small`: the middle, normalised.

    Args:
        size: (height, width) of the middle in pixels, or one number for both.
        normalize: float32, ``(x / 255 - mean) / std``; otherwise uint8 as it is.
        mean: what is subtracted of red, green and blue, from 0 to 1.
        std: what they are divided by.
        channels_last: samples lie in memory as height x width x 3 (the shape stays 3 x height x width).

    Raises:
        ValueError, TypeError: a value makes no sense; the message names it.

    >>> val_small(32).random
    False
    """
    return SmallImageTransform(
        crop="center",
        size=size_pair(size),
        normalize=normalize,
        mean=mean,
        std=std,
        channels_last=channels_last,
    )
