"""Samples of a dataset as DALI takes them: arrays on the CPU, with the files of images as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from foreload.cache.view import has_two_stages
from foreload.checks import Array
from foreload.protocol import ImageForms, LoaderDefaults, SampleSource, UserCode

__all__ = ["EncodedSamples", "Sample", "as_list"]


class Sample(NamedTuple):
    """A sample.

    Attributes:
        number: its index in the dataset.
        fields: of the sample, such as the bytes of a file (uint8) and a target.
    """

    number: int
    fields: tuple[Array, ...]


class EncodedSamples(Dataset[Sample], LoaderDefaults, SampleSource, UserCode):
    """A dataset whose images are not decoded, but come as the bytes of their files.

    Args:
        dataset: :class:`foreload.ImageDataset`, whose transform is left out; or any other map-style dataset.

    Raises:
        TypeError: it has no indices.

    >>> EncodedSamples([(b"abc", 7)])[0]
    Sample(number=0, fields=(array([97, 98, 99], dtype=uint8), array(7)))
    """

    def __init__(self, dataset: Any) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise TypeError(
                "dataset must have samples with indices, for an order that is known ahead, "
                f"got {type(dataset).__name__}"
            )
        self.dataset = dataset

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        """Load a sample."""
        dataset = self.dataset
        is_encoded = isinstance(dataset, ImageForms) and has_two_stages(dataset)
        sample = dataset.prepare_sample(index, "encoded") if is_encoded else dataset[index]
        if isinstance(sample, Mapping):
            fields = sample
        else:
            fields = dict(enumerate(sample if isinstance(sample, (tuple, list)) else (sample,)))
        return Sample(int(index), tuple(_array(value, name, index) for name, value in fields.items()))

    def path(self, index: int) -> str:
        """Return the name of a sample in an error: its file, if the dataset says so."""
        name = getattr(self.dataset, "path", None)
        return str(name(index)) if callable(name) else f"sample {index}"

    def user_code(self) -> Iterable[Any]:
        """Return the dataset; see :class:`foreload.protocol.UserCode`."""
        return (self.dataset,)

    @property
    def is_remote(self) -> bool:
        """Whether the dataset's samples come from a server."""
        return isinstance(self.dataset, SampleSource) and self.dataset.is_remote

    def seeded_sampler(self, seed: int) -> Sampler[int] | None:
        """Return the sampler that the dataset has for ``seed=``."""
        return self.dataset.seeded_sampler(seed) if isinstance(self.dataset, LoaderDefaults) else None

    def check_order(self) -> None:
        """Warn if the dataset should not be loaded in torch's order."""
        if isinstance(self.dataset, LoaderDefaults):
            self.dataset.check_order()


def _array(value: Any, field: Any, index: int) -> Array:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return np.frombuffer(value, np.uint8)
    if isinstance(value, torch.Tensor):
        return value.numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"DALI takes bytes, numbers, arrays and tensors, but field {field!r} of sample {index} is "
            f"{type(value).__name__}; convert it in the dataset"
        )
    return array


def as_list(samples: list[Sample]) -> list[Sample]:
    """Return the samples of a batch as they are: a ``collate_fn``."""
    return samples
