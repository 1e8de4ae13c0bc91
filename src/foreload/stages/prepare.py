"""Stage ``prepare``: a dataset seen through the cache, and through what is done to its samples behind it."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Dataset

from foreload.options import Keep
from foreload.stages.store import SampleStore

__all__ = ["Prepared", "warn_of_randomness"]


class Prepared(Dataset[Any]):
    """A dataset seen through a loader's cache and ``transform``.

    Everything else about it (attributes, methods) is the dataset's own.
    """

    def __init__(
        self,
        dataset: Any,
        store: SampleStore | None,
        transform: Callable[[Any], Any] | None = None,
        keep: Keep = "auto",
    ) -> None:
        self._dataset = dataset
        self._store = store
        self._transform = transform
        self._keep = keep
        # A dataset may tell what is the same each time from what is random.
        self._split = store is not None and hasattr(dataset, "__finish__")

    def __getitem__(self, index: Any) -> Any:
        """Load one sample."""
        store = self._store
        if store is None or (position := _position(index, len(store))) is None:
            sample = self._dataset[index]
        elif self._split:
            prepared = store.load(position, lambda index: self._dataset.__prepare__(index, self._keep))
            sample = self._dataset.__finish__(position, prepared)
        else:
            sample = store.load(position, lambda _: self._dataset[index])
        return sample if self._transform is None else self._transform(sample)

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
        """Load several samples at once, where the dataset can."""
        many = getattr(self._dataset, "__getitems__", None)
        if not callable(many) or self._split:
            return None

        def load(indices: Sequence[Any]) -> Sequence[Any]:
            store = self._store
            if store is None:
                samples = many(indices)
            else:
                positions = [_position(index, len(store)) for index in indices]
                if None in positions:
                    return [self[index] for index in indices]
                samples = store.load_many(positions, many)  # type: ignore[arg-type]
            return samples if self._transform is None else [self._transform(sample) for sample in samples]

        return load

    def __getattr__(self, name: str) -> Any:
        """Give the dataset's own attribute."""
        if name.startswith("__") or "_dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        """Count the samples."""
        return len(self._dataset)


def _position(index: Any, samples: int) -> int | None:
    """Give the sample's place in the store; None where the index is of another kind."""
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        return None
    position = operator.index(index)
    return position if 0 <= position < samples else None


def warn_of_randomness(dataset: Any) -> None:
    """Say it where the dataset has a transform of its own, which would be cached with the sample."""
    for name in ("transform", "transforms"):
        if getattr(dataset, name, None) is not None and not hasattr(dataset, "__finish__"):
            warnings.warn(
                f"the cache keeps samples as {type(dataset).__name__} gives them, after its own '{name}'; if that "
                "is random, give it to DataLoader(transform=...) instead, which is applied after the cache",
                stacklevel=4,
            )
            return
