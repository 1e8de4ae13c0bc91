"""Transforms of images of any size, which resize them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from foreload import _native
from foreload._torch import draw_seed
from foreload.checks import check_bool
from foreload.normalize.normalize import IMAGENET_MEAN, IMAGENET_STD
from foreload.transforms.arrays import (
    Jitter,
    Size,
    check_colors,
    check_flip,
    check_jitter,
    check_range,
    check_shorter,
    rgb_array,
    size_pair,
)

if TYPE_CHECKING:
    from PIL import Image


__all__ = [
    "ImageTransform",
    "get_train_transforms",
    "get_val_transforms",
    "resize",
    "shaped",
    "train",
    "transform_array",
    "val",
]

Mode = Literal["exact", "fast"]


@dataclass(frozen=True, kw_only=True)
class ImageTransform:
    """A transform of images to tensors of one shape; made by :func:`train`, :func:`val` and :func:`resize`.

    Attributes:
        crop: ``"random"`` (a box of random area and shape), ``"center"`` (shorter side to ``shorter``, then the
            middle) or ``"none"`` (the whole image).
        size: (height, width) of the result in pixels.
        shorter: the length that ``"center"`` resizes the shorter side to.
        scale: the random box's share of the image's area, (low, high).
        ratio: the random box's width / height, (low, high).
        hflip: the probability of mirroring an image.
        color_jitter: (brightness, contrast, saturation, hue) as for torchvision's ``ColorJitter``, or None.
        normalize: float32, ``(x / 255 - mean) / std``; otherwise uint8, for :class:`Normalize` on a GPU perhaps.
        channels_last: samples lie in memory as height x width x 3 (the shape stays 3 x height x width).
        mode: ``"exact"`` agrees with Pillow's antialiased bilinear resize; ``"fast"`` lets the JPEG decoder
            shrink large images while it decodes them.
        flip_on_device: flips are drawn as ever, but left to :class:`Normalize`: batches of :class:`ImageDataset`
            have a third entry, a bool per image, for ``Normalize(flip=2)``. Needs ``normalize=False``.
    """

    crop: Literal["random", "center", "none"]
    size: tuple[int, int]
    shorter: int = 0
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    hflip: float = 0.0
    color_jitter: Jitter | None = None
    normalize: bool = True
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    channels_last: bool = False
    mode: Mode = "exact"
    flip_on_device: bool = False

    def __post_init__(self) -> None:
        """Check the values, and make the native transform of them.

        Raises:
            ValueError, TypeError: a value makes no sense; the message names it.
        """
        object.__setattr__(self, "size", size_pair(self.size))
        least = max(self.size) if self.crop == "center" else 0
        object.__setattr__(self, "shorter", check_shorter("shorter", self.shorter, least))
        check_range("scale", self.scale, 1.0)
        check_range("ratio", self.ratio, float("inf"))
        check_flip(self.hflip)
        for name in ("normalize", "channels_last", "flip_on_device"):
            check_bool(name, getattr(self, name))
        jitter = check_jitter(self.color_jitter)
        check_colors(self.mean, self.std)
        for name in ("scale", "ratio", "mean", "std"):  # which may come from JSON, that is, as lists
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        object.__setattr__(self, "color_jitter", tuple(map(float, jitter)) if self.color_jitter else None)
        if self.mode not in ("exact", "fast"):
            raise ValueError(f"mode must be 'exact' or 'fast', got {self.mode!r}")
        if self.flip_on_device and self.normalize:
            raise ValueError(
                "flip_on_device=True needs normalize=False: what mirrors images on the device, Normalize(flip=2), "
                "normalises them too"
            )
        self.__dict__["native"] = _native.Transform(
            crop=self.crop,
            size=self.size,
            shorter=self.shorter,
            scale=self.scale,
            ratio=self.ratio,
            flip=self.hflip,
            jitter=jitter,
            mean=self.mean,
            std=self.std,
            normalize=self.normalize,
            channels_last=self.channels_last,
            fast=self.mode == "fast",
            leave_flip=self.flip_on_device,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments; the native transform is made again from them."""
        arguments = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return _rebuild, (arguments,)

    @property
    def native(self) -> _native.Transform:
        """The native transform of these values."""
        made: _native.Transform = self.__dict__["native"]
        return made

    @property
    def random(self) -> bool:
        """Whether an image may look different in another epoch."""
        return self.crop == "random" or self.hflip > 0 or self.color_jitter is not None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the result: float32 or uint8."""
        return torch.float32 if self.normalize else torch.uint8

    def shape(self, count: int) -> tuple[int, int, int, int]:
        """Return the shape of a batch of ``count`` images: (count, 3, height, width)."""
        return (count, 3, *self.size)

    def __call__(self, image: Image.Image | np.ndarray[Any, Any] | torch.Tensor) -> torch.Tensor:
        """Transform one image, with random numbers from torch's global generator.

        It is mirrored here even for ``flip_on_device``, which is for batches.

        Args:
            image: a Pillow image, or uint8 of height x width x 3 (ndarray) or 3 x height x width (tensor).

        Returns:
            Tensor of 3 x height x width.

        >>> val(8)(np.zeros((20, 30, 3), np.uint8)).shape
        torch.Size([3, 8, 8])
        """
        return transform_array(self, rgb_array(image))


def _rebuild(arguments: dict[str, Any]) -> ImageTransform:
    return ImageTransform(**arguments)


def train(
    size: Size = 224,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    hflip: float = 0.5,
    color_jitter: Jitter | None = None,
    normalize: bool = True,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
    channels_last: bool = False,
    mode: Mode = "exact",
    flip_on_device: bool = False,
) -> ImageTransform:
    """Return the usual transform for training: random resized crop, flip, normalise.

    It is the recipe of PyTorch's ImageNet example; colours change only if ``color_jitter`` asks for it. An
    image of any size becomes 3 x height x width of float32, or of uint8 with ``normalize=False``.

    Args:
        size: (height, width) of the result in pixels, or one number for both.
        scale: the random box's share of the image's area, (low, high).
        ratio: the random box's width / height, (low, high).
        hflip: the probability of mirroring an image.
        color_jitter: (brightness, contrast, saturation, hue) as for torchvision's ``ColorJitter``, or None.
        normalize: float32, ``(x / 255 - mean) / std``; otherwise uint8 as it is.
        mean: what is subtracted of red, green and blue, from 0 to 1.
        std: what they are divided by.
        channels_last: samples lie in memory as height x width x 3 (the shape stays 3 x height x width).
        mode: ``"exact"`` or ``"fast"``, as in :class:`ImageTransform`.
        flip_on_device: leave flips to :class:`Normalize`, as in :class:`ImageTransform`.

    Raises:
        ValueError: a value makes no sense; the message names it.

    >>> train(224).shape(64), train(224).color_jitter
    ((64, 3, 224, 224), None)
    """
    return ImageTransform(
        crop="random",
        size=size_pair(size),
        scale=scale,
        ratio=ratio,
        hflip=hflip,
        color_jitter=color_jitter,
        normalize=normalize,
        mean=mean,
        std=std,
        channels_last=channels_last,
        mode=mode,
        flip_on_device=flip_on_device,
    )


def val(
    size: Size = 224,
    *,
    resize: int | None = None,
    normalize: bool = True,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
    channels_last: bool = False,
    mode: Mode = "exact",
) -> ImageTransform:
    """Return the usual transform for validation: resize the shorter side, crop the middle, normalise.

    Args:
        size: (height, width) of the result in pixels, or one number for both.
        resize: the shorter side before the crop, by default 8/7 of ``size``, as in 256 for 224.
        normalize: float32, ``(x / 255 - mean) / std``; otherwise uint8 as it is.
        mean: what is subtracted of red, green and blue, from 0 to 1.
        std: what they are divided by.
        channels_last: samples lie in memory as height x width x 3 (the shape stays 3 x height x width).
        mode: ``"exact"`` or ``"fast"``, as in :class:`ImageTransform`.

    Raises:
        ValueError: a value makes no sense; the message names it.

    >>> val(224).shorter
    256
    """
    pair = size_pair(size)
    return ImageTransform(
        crop="center",
        size=pair,
        shorter=max(pair) * 8 // 7 if resize is None else check_shorter("resize", resize, max(pair)),
        normalize=normalize,
        mean=mean,
        std=std,
        channels_last=channels_last,
        mode=mode,
    )


def resize(
    size: Size,
    *,
    normalize: bool = True,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
    channels_last: bool = False,
    mode: Mode = "exact",
) -> ImageTransform:
    """Return a transform that resizes the whole image to ``size`` and normalises it.

    Args:
        size: (height, width) of the result in pixels, or one number for both.
        normalize: float32, ``(x / 255 - mean) / std``; otherwise uint8 as it is.
        mean: what is subtracted of red, green and blue, from 0 to 1.
        std: what they are divided by.
        channels_last: samples lie in memory as height x width x 3 (the shape stays 3 x height x width).
        mode: ``"exact"`` or ``"fast"``, as in :class:`ImageTransform`.

    Raises:
        ValueError: a value makes no sense; the message names it.

    >>> resize((4, 6), normalize=False).dtype
    torch.uint8
    """
    return ImageTransform(
        crop="none",
        size=size_pair(size),
        normalize=normalize,
        mean=mean,
        std=std,
        channels_last=channels_last,
        mode=mode,
    )


get_train_transforms = train
get_val_transforms = val


def transform_array(
    transform: ImageTransform,
    image: np.ndarray[Any, Any],
    key: tuple[int, int] | None = None,
    index: int = 0,
) -> torch.Tensor:
    """Apply ``transform`` to one image.

    Args:
        transform: the transform.
        image: uint8 of height x width x 3.
        key: (seed, epoch); by default the seed is drawn from torch's global generator.
        index: of the image, if there is a key: its random numbers are those of (seed, epoch, index).

    Returns:
        Tensor of 3 x height x width.

    >>> image = np.zeros((50, 40, 3), np.uint8)
    >>> pixels = transform_array(train(32), image)
    >>> pixels.shape, pixels.dtype
    (torch.Size([3, 32, 32]), torch.float32)
    """
    out = torch.empty(transform.shape(1), dtype=transform.dtype, device="cpu")
    if key is None:
        key, index = (draw_seed() if transform.random else 0, 0), 0
    seed, epoch = key
    _native.transform_rgb(transform.native, image, seed, out.view(-1).view(torch.uint8).numpy(), epoch, index)
    return shaped(transform, out, 1)[0]


def shaped(transform: ImageTransform, memory: torch.Tensor, count: int) -> torch.Tensor:
    """Return memory that ``transform`` has written natively as a view of count x 3 x height x width.

    >>> shaped(val((4, 6)), torch.zeros(2 * 3 * 4 * 6), 2).shape
    torch.Size([2, 3, 4, 6])
    """
    height, width = transform.size
    if transform.channels_last:
        return memory.view(count, height, width, 3).permute(0, 3, 1, 2)
    return memory.view(count, 3, height, width)
