"""All samples of a map-style dataset, loaded at once."""

from __future__ import annotations

from typing import Any

from torch.utils.data import default_collate

from foreload.batch.unlike import first_rounded, note_unlike
from foreload.record.progress import track

__all__ = ["preload"]


def preload(dataset: Any) -> Any:
    """Load a map-style dataset and collate it to tensors.

    Raises:
        TypeError: it has no length.
        ValueError: it has no samples, or a number in one does not fit into the type of all together.
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
    if count == 0:
        raise ValueError("data is an empty dataset")

    def load(index: int) -> Any:
        try:
            return dataset[index]
        except Exception as error:
            error.add_note(f"foreload: while loading sample {index} of data")
            raise

    samples = [load(index) for index in track(range(count), "preloading", total=count, after=1)]
    try:
        batch = default_collate(samples)
    except Exception as error:
        note_unlike(error, samples, range(count))
        raise
    rounded = first_rounded(samples, batch)
    if rounded is None:
        return batch
    raise ValueError(
        f"data: sample {rounded} would be rounded to the type of all samples; give all of them one type"
    )
