"""All samples of a map-style dataset, loaded at once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from foreload.batch.containers import Container, check_alike
from foreload.batch.unlike import first_rounded, note_unlike
from foreload.datasets.tensor_rows import check_plain
from foreload.record.progress import track

__all__ = ["preload"]


def preload(dataset: Any) -> tuple[Any, Container | None]:
    """Load a map-style dataset and collate it to tensors.

    Returns:
        The batch of all samples; and the container of a sample, if it is one.

    Raises:
        TypeError: it has no length, is of pandas, or its samples are containers of different types, or tensors
            with a gradient or of a class of their own.
        ValueError: it has no samples, they have different keys, or a number in one does not fit into the type of
            all together.
        Exception: a sample cannot be loaded, or makes no batch with the others; a note names it.
    """
    try:
        # A str is a path, perhaps: not one sample per character.
        if isinstance(dataset, (str, bytes)) or not hasattr(dataset, "__getitem__"):
            raise TypeError
        count = len(dataset)
    except TypeError:
        raise TypeError(
            "data must be a tensor, an ndarray, a tuple or dict of them, or a map-style dataset with a length, "
            f"got {type(dataset).__name__}"
        ) from None
    if hasattr(dataset, "iloc"):  # dataset[0] of pandas is the column, or the row, of that name
        remedy = (
            "{name: data[name].to_numpy() for name in data}" if hasattr(dataset, "columns") else "data.to_numpy()"
        )
        raise TypeError(f"data is a {type(dataset).__name__} of pandas, which has no row numbers; give {remedy}")
    if count == 0:
        raise ValueError("data is an empty dataset; give at least one sample")

    def load(index: int) -> Any:
        try:
            return dataset[index]
        except Exception as error:
            error.add_note(f"foreload: while loading sample {index} of data")
            raise

    with closing(track(range(count), "preloading", total=count, after=1)) as indices:
        samples = [load(index) for index in indices]
    for number, sample in enumerate(samples):
        check_plain(f"data[{number}]", sample, is_sample=True)
    try:
        batch = default_collate(samples)
    except Exception as error:
        note_unlike(error, samples, range(count))
        if isinstance(dataset, list) and isinstance(samples[0], (torch.Tensor, np.ndarray)):
            error.add_note(
                "foreload: each tensor of a list is a sample; tensors with one row per sample go in a tuple"
            )
        raise
    check_alike(samples)
    rounded = first_rounded(samples, batch)
    if rounded is None:
        return batch, Container(samples[0]) if isinstance(samples[0], (tuple, list, Mapping)) else None
    raise ValueError(
        f"data: sample {rounded} would be rounded to the type of all samples; give all of them one type"
    )
