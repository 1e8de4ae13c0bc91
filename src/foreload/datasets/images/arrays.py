"""Images in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from foreload.batch.buffers import memory_for_a_batch
from foreload.batch.collate import is_default_collate, pinned
from foreload.batch.collated import Collated, own_getitems
from foreload.checks import Array, check_index, inherits
from foreload.datasets.images.transform import apply_transform, key_of_batch, key_of_loader, makes_samples
from foreload.datasets.tensor_rows import from_array
from foreload.order.index import positions_of, require_nonempty
from foreload.protocol import Batch, BatchMemory, BatchOptions, NativeBatches, UserCode
from foreload.transforms import SmallImageTransform, val_small

__all__ = ["ImageArrayDataset"]


class ImageArrayDataset(Dataset[tuple[Any, int]], NativeBatches, UserCode):
    """Small images in one array in memory, such as CIFAR's, with labels: ``(image, target)``.

    With :func:`foreload.transforms.train_small` or :func:`~foreload.transforms.val_small` (or none), a whole batch
    is cropped, flipped, coloured and normalised in one native call. Its random numbers are those of (seed, epoch,
    index), so they are the same for any number and kind of workers. A loader's ``cache`` keeps nothing of that, as
    the images are in memory.

    Args:
        images: uint8; an ndarray of count x height x width x 3, or a tensor of count x 3 x height x width. It is
            not copied: change it between epochs only, since batches are made ahead of the loop.
        targets: an int per image; by default -1.
        transform: one of those above; another of :mod:`foreload.transforms`, of Albumentations, or any callable
            that takes a Pillow image. By default images are normalised as for ImageNet.

    Attributes:
        images: as a tensor of count x 3 x height x width, whatever was given.
        targets: int64, one per image.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it.

    >>> from foreload.transforms import train_small
    >>> pixels = np.zeros((100, 32, 32, 3), np.uint8)
    >>> data = ImageArrayDataset(pixels, range(100), train_small(32, padding=4, cutout=8))
    >>> data[7][0].shape, data[7][1]
    (torch.Size([3, 32, 32]), 7)
    """

    def __init__(
        self,
        images: Array | torch.Tensor,
        targets: Sequence[int] | Array | torch.Tensor | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.images = _as_tensor(images)
        count, _, height, width = self.images.shape
        self.targets = torch.full((count,), -1, device="cpu") if targets is None else _as_targets(targets, count)
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be callable, got {type(transform).__name__}")
        self.transform = val_small((height, width)) if transform is None else transform
        if isinstance(self.transform, SmallImageTransform):
            self.transform.check_size(height, width)

    def __len__(self) -> int:
        """Count the images."""
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Transform one image; without a loader, random numbers come from torch's global generator."""
        position = check_index(index, len(self.images), "images")  # a subclass may have another length
        image = self.images[position]
        if isinstance(self.transform, SmallImageTransform):
            key = key_of_loader(self, ImageArrayDataset)
            if key is None:
                return self.transform(image), int(self.targets[position])
            sample: tuple[Any, int] = self._load_batch([position], key)[0]
            return sample
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        return apply_transform(self.transform, pixels), int(self.targets[position])

    @own_getitems
    def __getitems__(self) -> Callable[[Sequence[int]], Sequence[Any]] | None:
        """Transform the images of a batch; a stock DataLoader calls this and has nothing left to collate.

        None if the transform is another, or a subclass loads samples itself: they are then loaded one by one.
        """
        own = inherits(self, ImageArrayDataset, "__getitem__")
        return self._load_batch if own and isinstance(self.transform, SmallImageTransform) else None

    def _load_batch(self, indices: Sequence[int], key: tuple[int, int] | None = None) -> Sequence[Any]:
        assert isinstance(self.transform, SmallImageTransform)
        if not len(indices):
            return []
        memory = memory_for_a_batch()
        key = key_of_batch(self, ImageArrayDataset, self.transform) if key is None else key
        batch = SmallImageAssembly(self, self.transform, key, memory).start(indices)
        batch.job.run_here()
        images, targets = batch.take()
        return Collated([memory.handed_over(images), targets], len(indices), numbers=(1,))

    @property
    def is_held(self) -> bool:  # type: ignore[override]
        """Whether whole batches are made natively; see :class:`foreload.protocol.NativeBatches`."""
        return makes_samples(self, ImageArrayDataset)

    def batch_assembly(
        self, spec: BatchOptions, key: tuple[int, int], buffers: BatchMemory
    ) -> SmallImageAssembly | None:
        """Make whole batches natively for foreload's DataLoader, unless a subclass loads samples itself."""
        if not makes_samples(self, ImageArrayDataset) or not isinstance(self.transform, SmallImageTransform):
            return None
        return SmallImageAssembly(self, self.transform, key, buffers, spec)

    def user_code(self) -> Iterable[Any]:
        """Return the transform; see :class:`foreload.protocol.UserCode`."""
        return (self.transform,)


class SmallImageAssembly:
    """Batches of images in memory; an :class:`~foreload.protocol.Assembly`.

    Args:
        dataset: the images and their targets.
        transform: applied to each image.
        key: (seed, epoch) of the transform.
        buffers: memory for the batches.
        spec: of the loader; None: torch's collation.
    """

    depth: int | None = None

    def __init__(
        self,
        dataset: ImageArrayDataset,
        transform: SmallImageTransform,
        key: tuple[int, int],
        buffers: BatchMemory,
        spec: BatchOptions | None = None,
    ) -> None:
        self._dataset = dataset
        self._transform = transform
        self._values = 3 * transform.size[0] * transform.size[1]
        self._key = key
        self._buffers = buffers
        self._collate = None if spec is None or is_default_collate(spec.collate_fn) else spec.collate_fn
        self._pin_device = None if spec is None else spec.pin_device

    def start(self, indices: Any) -> Batch:
        """See :class:`~foreload.protocol.Assembly`."""
        where = require_nonempty(positions_of(indices, len(self._dataset.images)))
        memory = self._buffers.take((len(where) * self._values,), self._transform.dtype)
        job, images = self._transform.job(self._dataset.images, where, self._key, memory)
        targets = self._dataset.targets[torch.from_numpy(where)]

        def take() -> Any:
            batch: Any = [images, targets]
            if self._collate is not None:
                batch = self._collate(Collated(batch, len(targets), numbers=(1,)).listed())
            return pinned(batch, self._pin_device)

        return Batch(job, take)


def _as_tensor(images: Any) -> torch.Tensor:
    """Return the images as count x 3 x height x width, without a copy."""
    if not isinstance(images, (np.ndarray, torch.Tensor)):
        raise TypeError(f"images must be an ndarray or a tensor, got {type(images).__name__}")
    if isinstance(images, np.ndarray) and any(stride < 0 for stride in images.strides):
        raise ValueError("images is a flipped view, which no tensor can be: pass np.ascontiguousarray(images)")
    tensor = from_array("images", images) if isinstance(images, np.ndarray) else images.detach()
    if tensor.dtype != torch.uint8 or tensor.device.type != "cpu":
        raise TypeError(f"images must be uint8 on the CPU, got {tensor.dtype} on {tensor.device}")
    given = tuple(tensor.shape)
    if isinstance(images, np.ndarray) and tensor.ndim == 4:
        tensor = tensor.permute(0, 3, 1, 2)
    if len(given) == 4 and given[0] == 0:
        raise ValueError("images is empty; give at least one image")
    if tensor.ndim != 4 or tensor.shape[1] != 3 or min(tensor.shape) < 1:
        raise ValueError(
            "images must be count x height x width x 3 (ndarray) or count x 3 x height x width (tensor), got "
            f"{given}; of grey images, expand() makes three channels without a copy"
        )
    return tensor


def _as_targets(targets: Any, count: int) -> torch.Tensor:
    """Return the targets as int64, one per image."""
    if isinstance(targets, np.ndarray):  # with any strides and byte order
        targets = from_array("targets", np.asanyarray(targets, order="C"))
    must = f"targets must be an int for each of the {count} images, got"
    try:
        given = torch.as_tensor(list(targets) if isinstance(targets, range) else targets, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{must} {type(targets).__name__}: {error}; number the classes from 0") from error
    if given.shape != (count,) or given.is_floating_point() or given.is_complex():
        raise ValueError(f"{must} {given.dtype} of the shape {tuple(given.shape)}")
    found = given.to(torch.int64)
    if given.dtype == torch.uint64 and (found < 0).any():
        raise ValueError(f"targets must fit into int64, got {max(given.tolist())}; number the classes from 0")
    return found
