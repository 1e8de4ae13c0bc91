"""Normalisation of batches of uint8 images, after they have been copied to a device."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch

from foreload.checks import check_bool
from foreload.errors import warn_user

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "Normalize", "pixels_are_finite"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True)
class Normalize:
    """Normalise the images of a batch: ``(x / 255 - mean) / std``, a ``device_transform`` of loaders.

    Images that a transform with ``normalize=False`` leaves as bytes are a quarter of the size to copy. What they
    become here is, in float32, bit for bit what the same transform with ``normalize=True`` makes of them, on any
    device; in a shorter dtype, that rounded once. On CUDA it takes one kernel if torch came with Triton, otherwise
    a few.

    Attributes:
        mean, std: per channel, for values from 0 to 1.
        dtype: of the result: float32, bfloat16 or float16.
        channels_last: images lie in memory as height x width x channels, whichever way they came (the shape stays
            channels x height x width).
        images: where the images are in the batch: a position or key, as for ``batch[images]``. None: the batch
            itself, or the first entry of a tuple or list.
        flip: where a bool per image is in the batch; those that are True are mirrored, and the entry is left out
            of the result (in a named tuple it becomes None). 2 for batches of transforms with
            ``flip_on_device=True``; all others have mirrored their images already.

    Raises:
        ValueError, TypeError: a value makes no sense; the message names it.

    >>> normalize = Normalize(dtype=torch.bfloat16, channels_last=True)
    >>> images, labels = normalize((torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.arange(2)))
    >>> images.dtype, images.shape, images.stride()
    (torch.bfloat16, torch.Size([2, 3, 4, 4]), (48, 1, 12, 3))
    """

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    images: int | str | None = None
    flip: int | str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        self.__dict__["_constants"] = {}  # by device; no field, since those are what the values are written from
        for name in ("mean", "std"):
            given = getattr(self, name)
            try:
                if isinstance(given, (str, bytes)):  # whose characters would be numbers
                    raise TypeError
                object.__setattr__(self, name, tuple(map(float, given)))
            except (TypeError, ValueError, OverflowError):
                raise TypeError(f"{name} must be a number for each channel, got {given!r}") from None
        if not self.mean or len(self.mean) != len(self.std) or not pixels_are_finite(self.mean, self.std):
            raise ValueError(
                "mean and std need a number per channel each, std above 0, all of them finite, got "
                f"{self.mean} and {self.std}; so must be, in float32, what becomes of pixels"
            )
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(map(str, _DTYPES))}, got {self.dtype}")
        check_bool("channels_last", self.channels_last)
        for name in ("images", "flip"):
            if isinstance(getattr(self, name), bool):  # or it would be a position
                raise TypeError(
                    f"{name} must be a position or key of a batch, or None, got {getattr(self, name)}"
                    f"{'; transforms with flip_on_device=True need flip=2' if name == 'flip' else ''}"
                )

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the values, without what is on devices."""
        return {**self.__dict__, "_constants": {}}

    def __call__(self, batch: Any) -> Any:
        """Return the batch with its images normalised; other entries stay as they are.

        Args:
            batch: uint8 of batch x channels x height x width (or one image: channels x height x width), or a
                tuple, list, named tuple or mapping with it.

        Raises:
            TypeError: the images are not where they are looked for, or not uint8.
            ValueError: their shape is another.
        """
        if isinstance(batch, torch.Tensor):
            if self.flip is not None:
                raise TypeError(
                    f"Normalize(flip={self.flip!r}) needs a batch with such an entry, got a tensor; are the "
                    "images of a transform with flip_on_device=True?"
                )
            return self.apply(batch)
        where = self.images
        if where is None and isinstance(batch, Sequence):
            where = 0
        if where is None or not isinstance(batch, (tuple, list, Mapping)):
            raise TypeError(
                f"Normalize finds no images in a {type(batch).__name__}: give a tensor, a tuple, a list or a "
                "mapping, and name the entry of a mapping that holds them, as in Normalize(images='image')"
            )
        flip = None if self.flip is None else _entry(batch, self.flip, "flip")
        images = self.apply(_entry(batch, where, "images"), flip)
        return _replaced(batch, where, images) if self.flip is None else _flipped(batch, where, images, self.flip)

    def apply(self, images: torch.Tensor, flip: torch.Tensor | None = None) -> torch.Tensor:
        """Return images normalised; ``flip`` (bool, one per image) says which are mirrored.

        Raises:
            TypeError, ValueError: as for a batch.
        """
        if not isinstance(images, torch.Tensor) or images.dtype is not torch.uint8:
            kind = images.dtype if isinstance(images, torch.Tensor) else type(images).__name__
            raise TypeError(f"images must be uint8 tensors, as by transforms with normalize=False, got {kind}")
        if images.ndim not in (3, 4) or images.shape[-3] != len(self.mean):
            raise ValueError(
                f"images must be batch x {len(self.mean)} x height x width, one channel for each number of mean, "
                f"got {tuple(images.shape)}"
            )
        batch = images if images.ndim == 4 else images[None]
        if flip is not None:
            if not isinstance(flip, torch.Tensor) or flip.dtype is not torch.bool or flip.shape != batch.shape[:1]:
                raise ValueError(
                    f"flip must be a tensor with a bool for each of {len(batch)} images, got {_shown(flip)}; "
                    "flip= says where it is in the batch: 2 for transforms with flip_on_device=True"
                )
            flip = flip.to(images.device)
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        out = torch.empty(batch.shape, dtype=self.dtype, device=images.device, memory_format=layout)
        if out.numel() and not (images.is_cuda and self._by_kernel(batch, flip, out)):
            self._by_torch(batch, flip, out)
        return out if images.ndim == 4 else out[0]

    def _by_torch(self, images: torch.Tensor, flip: torch.Tensor | None, out: torch.Tensor) -> None:
        constants = self._constants_on(images.device)
        if flip is not None:
            images = torch.where(flip[:, None, None, None], images.flip(-1), images)
        # Two operations, so that no compiler makes one of them, which would round differently from the CPU's.
        torch.add(torch.mul(images, constants.scale), constants.bias, out=out)

    def _by_kernel(self, images: torch.Tensor, flip: torch.Tensor | None, out: torch.Tensor) -> bool:
        """Write to ``out`` by the Triton kernel, if there is one that can."""
        kernel = _kernel()
        if kernel is None or _unusable or not kernel.fits(images):
            return False
        table = self._constants_on(images.device).table
        try:
            kernel.normalize(images, table, flip, out)
        except Exception as error:  # Triton compiles at the first call, for which it needs a C compiler and more
            _unusable.append(str(error))
            warn_user(f"Triton cannot compile foreload's kernel, torch's operations are used instead: {error}")
            return False
        return True

    def _constants_on(self, device: torch.device) -> _Constants:
        known: dict[torch.device, _Constants] = self.__dict__["_constants"]
        constants = known.get(device)
        if constants is None:
            constants = known[device] = _Constants.of(self.mean, self.std, self.dtype, device)
        if device.type == "cuda":
            for tensor in (constants.scale, constants.bias, constants.table):
                tensor.record_stream(torch.cuda.current_stream(device))
        return constants


@dataclass(frozen=True)
class _Constants:
    """The numbers of a :class:`Normalize` on a device.

    Attributes:
        scale, bias: float32, channels x 1 x 1; those of ``native/bindings/transforms/view.cpp``.
        table: the result for each of the 256 values of each channel.
    """

    scale: torch.Tensor
    bias: torch.Tensor
    table: torch.Tensor

    @classmethod
    def of(
        cls, mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
    ) -> _Constants:
        means, stds = np.array(mean, np.float32), np.array(std, np.float32)
        scale = torch.from_numpy(np.float32(1) / (np.float32(255) * stds))[:, None]
        bias = torch.from_numpy(-means / stds)[:, None]
        table = torch.add(torch.mul(torch.arange(256, dtype=torch.uint8, device="cpu"), scale), bias).to(dtype)
        return cls(scale[:, None].to(device), bias[:, None].to(device), table.to(device))


_unusable: list[str] = []  # why, in words: an error would keep its frames, and so a batch on the device


@cache
def _kernel() -> ModuleType | None:
    try:
        from foreload.normalize import kernel
    except ImportError:  # torch came without Triton
        return None
    return kernel


def pixels_are_finite(means: tuple[float, ...], stds: tuple[float, ...]) -> bool:
    """Whether in float32 every std is above 0, and every pixel stays finite."""
    with np.errstate(all="ignore"):
        mean, std = np.array(means, np.float32), np.array(stds, np.float32)
        ends = np.array([-mean / std, (1 - mean) / std, 1 / (255 * std)])
    return bool((std > 0).all() and np.isfinite(ends).all() and (ends[2] > 0).all())


def _shown(value: Any) -> str:
    """Name what an entry of a batch is, which would be long to print."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of the shape {tuple(value.shape)}"
    return type(value).__name__


def _entry(batch: Any, where: int | str, name: str) -> Any:
    try:
        return batch[where]
    except (LookupError, TypeError) as error:
        entries = list(batch) if isinstance(batch, Mapping) else f"{len(batch)} entries"
        raise TypeError(f"Normalize({name}={where!r}): the batch has no such entry, it has {entries}") from error


def _flipped(batch: Any, where: int | str, images: torch.Tensor, flip: int | str) -> Any:
    """Return the batch with its images replaced, and without the flips, which would else be applied twice."""
    replaced = _replaced(batch, where, images)
    if hasattr(batch, "_fields"):
        return _replaced(replaced, flip, None)
    if isinstance(batch, Mapping):
        return _without(replaced, flip)
    entries = list(replaced)
    del entries[cast(int, flip)]
    return tuple(entries) if isinstance(batch, tuple) else entries


def _without(batch: Any, key: int | str) -> Any:
    if isinstance(batch, MutableMapping):  # a copy of the user's already
        del batch[key]
        return batch
    return {name: value for name, value in batch.items() if name != key}


def _replaced(batch: Any, where: int | str, images: torch.Tensor | None) -> Any:
    if isinstance(batch, MutableMapping):
        other = copy.copy(batch)
        other[where] = images
        return other
    if isinstance(batch, Mapping):
        return {**batch, where: images}
    entries = list(batch)
    entries[cast(int, where)] = images
    if hasattr(batch, "_fields"):
        return type(batch)(*entries)
    return tuple(entries) if isinstance(batch, tuple) else entries
