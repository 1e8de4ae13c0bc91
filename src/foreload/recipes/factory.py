"""Ready-made loaders and datasets, each a few lines over the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from foreload import transforms
from foreload.checks import check_bool
from foreload.datasets.folders import Labels
from foreload.datasets.images.dataset import ImageDataset
from foreload.device.prefetch import PrefetchLoader
from foreload.device.stream import check_device
from foreload.loader import DataLoader
from foreload.options import LoadingMode
from foreload.recipes.collate import CustomCollateFn
from foreload.recipes.config import DataLoaderConfig, check_config
from foreload.recipes.loader import EfficientDataLoader
from foreload.transforms.arrays import size_pair

__all__ = ["DataLoaderFactory", "HighPerformanceDataset", "create_dataloader"]

# The brightness, contrast, saturation and hue that create_dataloader(augment=True) changes.
_COLOR_JITTER = (0.2, 0.2, 0.2, 0.1)


class DataLoaderFactory:
    """Makes loaders for the data at a path.

    ``path`` is the dataset's ``data_path``; ``config`` is a :class:`~foreload.DataLoaderConfig`, by default
    ``DataLoaderConfig()``. Further arguments are those of the dataset, ``max_length`` and ``dataset_name`` too.

    Raises:
        TypeError: ``config`` is no DataLoaderConfig.
        ValueError, TypeError, OSError, ImportError: as of the dataset and :class:`~foreload.EfficientDataLoader`.

    >>> config = DataLoaderConfig(batch_size=2, num_workers=0, shuffle=False)
    >>> [batch.tolist() for batch in DataLoaderFactory.create_dataloader([1, 2, 3], config)]
    [[1, 2], [3]]
    """

    @staticmethod
    def create_dataloader(dataset: Any, config: DataLoaderConfig | None = None) -> EfficientDataLoader[Any]:
        """Return a loader of any dataset."""
        return EfficientDataLoader(dataset, config)

    @staticmethod
    def create_image_dataloader(
        path: str | Path | Sequence[str | Path], config: DataLoaderConfig | None = None, **options: Any
    ) -> EfficientDataLoader[Any]:
        """Return a loader of a folder of images, an :class:`~foreload.ImageDataset`."""
        check_config(config)  # before files are read
        return EfficientDataLoader(ImageDataset(path, **options), config)

    @staticmethod
    def create_text_dataloader(
        path: str | Path, config: DataLoaderConfig | None = None, max_length: int = 512, **options: Any
    ) -> EfficientDataLoader[Any]:
        """Return a loader of texts, a :class:`~foreload.TextDataset`.

        With ``padding=False`` batches are padded to their longest text, by
        :meth:`CustomCollateFn.padded_text_collate` with the tokenizer's padding id, unless the configuration has
        another ``collate_fn`` or no batches.
        """
        from foreload.datasets.text import TextDataset

        config = check_config(config)
        texts = TextDataset(path, max_length=max_length, **options)
        in_batches = config.batch_size is not None or config.custom_batch_sampler is not None
        if in_batches and not texts.padding and config.collate_fn is None:
            pad = partial(CustomCollateFn.padded_text_collate, pad_id=texts.collate.pad)
            config = replace(config, collate_fn=pad)
        return EfficientDataLoader(texts, config)

    @staticmethod
    def create_hdf5_dataloader(
        path: str | Path, config: DataLoaderConfig | None = None, dataset_name: str = "data", **options: Any
    ) -> EfficientDataLoader[Any]:
        """Return a loader of an HDF5 file, an :class:`~foreload.HDF5Dataset`."""
        from foreload.datasets.hdf5 import HDF5Dataset

        check_config(config)
        return EfficientDataLoader(HDF5Dataset(path, dataset_name, **options), config)


class HighPerformanceDataset(ImageDataset):
    """Image files and their labels, with the most recently used images, or all of them, kept decoded in memory.

    An :class:`~foreload.ImageDataset` of a list of files, which says what each image takes in memory: 150,528
    bytes at 224 x 224 pixels if the transform is the same in each epoch. All threads and worker processes share
    the cache, in a stock DataLoader too. If every image is needed once per epoch, an LRU cache helps only if it
    holds nearly all of them; ``DataLoader(cache=...)`` keeps a planned set instead.

    Args:
        data_paths: the files (or a folder, as for :class:`~foreload.ImageDataset`).
        labels: an int or str for each file.
        transform: as for ImageDataset; by default 224 x 224, normalised as for ImageNet.
        cache_size: the largest number of images to keep; 0 keeps none.
        preload: load all images now and keep them; ``cache_size`` is ignored then.

    Raises:
        ValueError, TypeError, OSError: as ImageDataset does.

    >>> import tempfile; from PIL import Image
    >>> path = Path(tempfile.mkdtemp()) / "tom.jpg"; Image.new("RGB", (60, 40)).save(path)
    >>> images = HighPerformanceDataset([path], [1])
    >>> images[0][0].shape, int(images[0][1]), images.cache_stats()["hits"]
    (torch.Size([3, 224, 224]), 1, 1)
    """

    _files_argument = "data_paths"

    def __init__(
        self,
        data_paths: Sequence[str | Path] | str | Path,
        labels: Labels | None = None,
        transform: Callable[[Any], Any] | None = None,
        cache_size: int = 1000,
        preload: bool = False,
    ) -> None:
        mode = LoadingMode.EAGER if check_bool("preload", preload) else LoadingMode.LAZY
        super().__init__(data_paths, transform=transform, loading_mode=mode, cache_size=cache_size, labels=labels)

    def cache_stats(self) -> dict[str, float]:
        """Return ``hits``, ``misses``, ``hit_rate``, ``size`` and ``capacity`` (in images), and ``bytes``.

        They cover all worker processes together. Preloaded images do not count as hits.
        """
        preloaded = self.loading_mode is LoadingMode.EAGER
        counts = dict.fromkeys(("hits", "misses", "used"), 0) if self._cache is None else self._cache.counts()
        hits, misses = (0, 0) if preloaded else (counts["hits"], counts["misses"])
        return {
            "hits": hits,
            "misses": misses,
            "hit_rate": hits / (hits + misses) if hits + misses else 0.0,
            "size": 0 if self._cache is None else len(self._cache),
            "capacity": len(self) if preloaded else self.cache_size,
            "bytes": counts["used"],
        }


def create_dataloader(
    data_paths: Sequence[str | Path] | str | Path,
    labels: Labels | None = None,
    batch_size: int = 32,
    num_workers: int | Literal["auto"] = 4,
    img_size: int | tuple[int, int] = 224,
    cache_size: int = 1000,
    preload: bool = False,
    augment: bool = True,
    pin_memory: bool = True,
    prefetch_device: torch.device | str | None = None,
) -> DataLoader[Any] | PrefetchLoader:
    """Return a ready-made loader of image files.

    Args:
        data_paths: the files, or a folder.
        labels: an int or str for each file.
        batch_size: images per batch.
        num_workers: the number of workers, as for :class:`~foreload.DataLoader`.
        img_size: (height, width) of the images, or one number for both.
        cache_size: the most images to keep in memory, decoded: the most recently used ones; 0 keeps none. With
            ``augment`` each takes 1.5 bytes (or 3) per pixel of its file, otherwise 3 x height x width bytes of
            ``img_size``; see :class:`~foreload.ImageDataset`.
        preload: load all images now, and keep them.
        augment: True: for training, with random crops, flips and colours
            (``transforms.train(img_size, color_jitter=(0.2, 0.2, 0.2, 0.1))``), in a new order every epoch; False:
            for validation, the middle of each image (``transforms.val(img_size)``), in the order given.
        pin_memory: page-lock batches, if there is a GPU.
        prefetch_device: the device to copy batches to, ahead of the loop; the result is then a
            :class:`~foreload.PrefetchLoader`.

    Returns:
        A loader of ``(images, labels)``: float32, batch x 3 x height x width, normalised; int64.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no folder ``data_paths``, no image in it, or it is a file.
        ValueError, TypeError: an argument makes no sense; the message names it.

    >>> import tempfile; from PIL import Image
    >>> path = Path(tempfile.mkdtemp()) / "tom.jpg"; Image.new("RGB", (60, 40)).save(path)
    >>> ((images, labels),) = create_dataloader([path], [1], num_workers=0, img_size=32)
    >>> images.shape, labels
    (torch.Size([1, 3, 32, 32]), tensor([1]))
    """
    check_bool("augment", augment)
    check_bool("pin_memory", pin_memory)
    if prefetch_device is not None:
        check_device(prefetch_device, "prefetch_device")  # before all images are loaded
    size = size_pair(img_size, "img_size")
    transform = transforms.train(size, color_jitter=_COLOR_JITTER) if augment else transforms.val(size)
    dataset = HighPerformanceDataset(data_paths, labels, transform, cache_size, preload)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size,
        shuffle=augment,
        num_workers=num_workers,
        pin_memory=pin_memory and torch.accelerator.is_available(),
        persistent_workers=num_workers != 0,
    )
    return loader if prefetch_device is None else PrefetchLoader(loader, prefetch_device)
