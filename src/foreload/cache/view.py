"""Stage ``prepare``: a dataset seen through the cache, and through what is done to its samples behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Subset

from foreload import _native
from foreload.cache.store import SampleStore
from foreload.errors import warn_user
from foreload.options import Keep
from foreload.order.index import position_of
from foreload.protocol import SampleSource, TwoStage, TwoStageBatches
from foreload.record.spans import Stage

__all__ = ["CachedView", "is_remote", "unwrap", "warn_of_randomness"]

Places = np.ndarray[Any, np.dtype[np.int64]]


def unwrap(dataset: Any) -> tuple[Any, Places | None]:
    """Look through torch's ``Subset``: the dataset whose samples are meant, and where in it each one is.

    >>> unwrap(Subset(Subset([10, 20, 30, 40], [3, 2, 1]), [0, 2]))
    ([10, 20, 30, 40], array([3, 1]))
    """
    places: Places | None = None
    while type(dataset) is Subset:
        inner = np.asarray(dataset.indices, np.int64)
        places = inner if places is None else inner[places]
        dataset = dataset.dataset
    return dataset, places


class CachedView(Dataset[Any]):
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
        self._root, self._places = unwrap(dataset) if store is not None else (dataset, None)
        self._store = store
        self._transform = transform
        self._keep = keep
        # Of a sample in two stages, the cache keeps the first.
        self._split = store is not None and isinstance(self._root, TwoStage)

    def __getitem__(self, index: Any) -> Any:
        """Load one sample."""
        store = self._store
        if store is None or (position := self._position(index, len(store))) is None:
            sample = self._dataset[index]
        elif self._split:
            prepared = store.load(position, self._prepare)
            sample = self._root.finish_sample(position, prepared)
        else:
            sample = store.load(position, lambda _: self._dataset[index])
        return sample if self._transform is None else self._transform(sample)

    def _prepare(self, index: int) -> Any:
        return self._root.prepare_sample(index, self._keep)

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
        """Load several samples at once, where the dataset can."""
        root, store = self._root, self._store
        many = getattr(root, "__getitems__", None)
        if not callable(many) or (self._split and not isinstance(root, TwoStageBatches)):
            return None

        def read(positions: Sequence[Any]) -> Sequence[Any]:
            loaded: Sequence[Any] = root.prepare_samples(positions, self._keep) if self._split else many(positions)
            return loaded

        def load(indices: Sequence[Any]) -> Sequence[Any]:
            if store is None:
                samples = read(indices)  # of the dataset itself: nothing was looked through
            else:
                positions = [self._position(index, len(store)) for index in indices]
                if None in positions:
                    return [self[index] for index in indices]
                with _native.Measure(Stage.cache, len(indices)):
                    samples = store.load_many(positions, _measured(read, 1))  # type: ignore[arg-type]
                if self._split:
                    with _native.Measure(Stage.transform, len(indices)):
                        samples = [root.finish_sample(*pair) for pair in zip(positions, samples, strict=True)]
            if self._transform is None:
                return samples
            with _native.Measure(Stage.transform, len(indices)):
                return [self._transform(sample) for sample in samples]

        return load

    def measured(self, weight: int) -> _Measured:
        """Give the same samples, each with a look at the clock between its stages.

        Args:
            weight: for how many samples each one stands.
        """
        return _Measured(self, weight)

    def _position(self, index: Any, samples: int) -> int | None:
        """Give the sample's place in the store; None where the index is of another kind."""
        position = position_of(index)
        if position is None:
            return None
        if self._places is not None:
            return int(self._places[position]) if 0 <= position < len(self._places) else None
        return position if 0 <= position < samples else None

    def __getattr__(self, name: str) -> Any:
        """Give the dataset's own attribute."""
        if name.startswith("__") or "_dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        """Count the samples."""
        return len(self._dataset)


class _Measured:
    """Samples of a prepared dataset, as :meth:`CachedView.measured` gives them."""

    def __init__(self, prepared: CachedView, weight: int) -> None:
        self._prepared = prepared
        self._weight = weight

    def __getitem__(self, index: Any) -> Any:
        own, weight = self._prepared, self._weight
        store = own._store
        if store is None or (position := own._position(index, len(store))) is None:
            sample = own._dataset[index]
        else:
            read = own._prepare if own._split else lambda _: own._dataset[index]
            with _native.Measure(Stage.cache, 1, weight):
                sample = store.load(position, _measured(read, weight))
            if own._split:
                with _native.Measure(Stage.transform, 1, weight):
                    sample = own._root.finish_sample(position, sample)
        if own._transform is None:
            return sample
        with _native.Measure(Stage.transform, 1, weight):
            return own._transform(sample)


def _measured(read: Callable[[Any], Any], weight: int) -> Callable[[Any], Any]:
    """Let what a cache has to read be no part of its own time. The samples are counted by who asked for them."""

    def measured(what: Any) -> Any:
        with _native.Measure(Stage.sample, 0, weight):
            return read(what)

    return measured


def warn_of_randomness(dataset: Any) -> None:
    """Say it where the dataset has a transform of its own, which would be cached with the sample."""
    root, _ = unwrap(dataset)
    if isinstance(root, TwoStage):
        return  # its transform comes after the cache
    for part in _parts(root):
        for name in ("transform", "transforms"):
            if getattr(part, name, None) is not None:
                warn_user(
                    f"the cache keeps samples as {type(part).__name__} gives them, after its own '{name}'; if "
                    "that is random, give it to DataLoader(transform=...) instead, which comes after the cache"
                )
                return


def is_remote(dataset: Any) -> bool:
    """Whether samples of a dataset, or of one that it is made of, come from a server."""
    return any(isinstance(part, SampleSource) and part.is_remote for part in _parts(dataset))


def _parts(dataset: Any) -> Iterator[Any]:
    """List a dataset and those that it is made of, as far as torch's own combinations show them."""
    yield dataset
    inner = getattr(dataset, "datasets", None)
    for part in inner if isinstance(inner, (list, tuple)) else [getattr(dataset, "dataset", None)]:
        if part is not None and part is not dataset:
            yield from _parts(part)
