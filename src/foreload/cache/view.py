"""A dataset seen through a loader's cache and the transforms that come after it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset

from foreload import _native
from foreload._torch import wrapper_kind
from foreload.cache.wrappers import loads_together, told_apart, unwrap
from foreload.checks import definition_depth
from foreload.errors import warn_user
from foreload.options import Keep
from foreload.order.index import position_of
from foreload.protocol import NativeBatches, TwoStage, TwoStageBatches
from foreload.record.spans import Stage

if TYPE_CHECKING:
    from foreload.cache.store import SampleStore

__all__ = [
    "CachedView",
    "TransformKey",
    "first_stage",
    "has_two_stages",
    "holds_values",
    "transform_key",
]


def has_two_stages(dataset: Any) -> bool:
    """Whether ``prepare_sample`` and ``finish_sample`` make a sample, not a method of a subclass that loads it."""
    stages = min(definition_depth(dataset, name) for name in ("prepare_sample", "finish_sample"))
    if not isinstance(dataset, TwoStage) or stages > definition_depth(dataset, "__getitem__"):
        return False
    whole = definition_depth(dataset, "__getitems__")
    # (Foreload's own load whole batches of the same samples.)
    return stages <= whole or type(dataset).__mro__[whole].__module__.startswith("foreload.")


def _is_held(dataset: Any) -> bool:
    return isinstance(dataset, NativeBatches) and dataset.is_held


def first_stage(dataset: Any, keep: Keep, *, together: bool = False) -> Callable[[int], Any]:
    """Return what loads the part of a sample that the cache keeps: all of it, unless there are two stages.

    Args:
        dataset: the dataset.
        keep: the form in which the cache keeps images.
        together: whether samples are loaded by its ``__getitems__``, if it has one.
    """
    if has_two_stages(dataset):
        return partial(dataset.prepare_sample, keep=keep)
    if together and loads_together(dataset):
        return lambda index: dataset.__getitems__([index])[0]
    return dataset.__getitem__  # type: ignore[no-any-return]


class _Timed:
    """A timer that records the stages of loading as spans.

    Args:
        weight: the number of samples that each timed one stands for.
        count: the number of samples of a span.
    """

    def __init__(self, weight: int, count: int = 1) -> None:
        self._weight = weight
        self._count = count

    def load(self, load: Callable[..., Any], position: Any, read: Callable[[Any], Any]) -> Any:
        """Load through a cache, and record reading as a span of its own."""

        def timed(index: Any) -> Any:
            with _native.Measure(Stage.sample, 0, self._weight):  # the span around it counts the samples
                return read(index)

        with _native.Measure(Stage.cache, self._count, self._weight):
            return load(position, timed)

    def transform(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that comes after the cache."""
        with _native.Measure(Stage.transform, self._count, self._weight):
            return function(*arguments)


class TransformKey(threading.local):
    """The key that the calling thread gives its generators for what a loader's ``transform`` draws.

    So the transform draws the same, whether or not the sample, which may draw too, comes from the cache, and was
    loaded together with others.

    Attributes:
        give: called with the index of a sample; None: the generators are not keyed.
        view: the :class:`CachedView` whose samples they are keyed for: loading one may go through another loader.
    """

    give: Callable[[Any], None] | None = None
    view: Any = None


transform_key = TransformKey()


def _run(timer: _Timed | None, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments) if timer is None else timer.transform(function, *arguments)


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
        root, places = unwrap(dataset) if store is not None else (dataset, None)
        if _is_held(root):
            root, places, store = dataset, None, None
        self._root, self._places, self._store = root, places, store
        self._transform = transform
        self._keep = keep
        self._draws = _Draws()
        # The cache keeps the first stage of a two-stage sample.
        self._is_split = store is not None and has_two_stages(self._root)

    @property
    def seen(self) -> Any:
        """The dataset itself."""
        return self._dataset

    def missing(self, indices: Iterable[Any]) -> list[int]:
        """Return the places of those samples that the cache could keep, but does not have."""
        store = self._store
        if store is None:
            return []
        places = (self._position(index, len(store)) for index in indices)
        return [place for place in places if place is not None and not store.native.contains(place)]

    def drop(self, places: Iterable[int]) -> None:
        """Drop samples from the cache, which nobody is loading."""
        if self._store is not None:
            for place in places:
                self._store.native.drop(place)

    def with_store(self, store: SampleStore | None) -> CachedView:
        """Return the same dataset seen through another store, or none."""
        return CachedView(self._dataset, store, self._transform, self._keep)

    def __getitem__(self, index: Any, timer: _Timed | None = None) -> Any:
        """Load one sample; with a timer, each of its stages has a span."""
        store = self._store
        if store is None or (position := self._position(index, len(store))) is None:
            sample = self._dataset[index]
        else:
            read = first_stage(self._root, self._keep) if self._is_split else lambda _: self._read(index)
            sample = store.load(position, read) if timer is None else timer.load(store.load, position, read)
            if self._is_split:
                sample = _run(timer, self._root.finish_sample, position, sample)
        return sample if self._transform is None else _run(timer, self._transformed, index, sample)

    def _read(self, index: Any) -> Any:
        return self._draws.watch(self._dataset.__getitem__, index)

    def _transformed(self, index: Any, sample: Any) -> Any:
        """Apply the loader's transform."""
        if transform_key.give is not None and transform_key.view is self:
            transform_key.give(index)
        return self._transform(sample)  # type: ignore[misc]

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
        """Load several samples at once, if the dataset can."""
        if not loads_together(self._root) or (self._is_split and not isinstance(self._root, TwoStageBatches)):
            return None
        return self.load_many

    def load_many(self, indices: Sequence[Any], key: Callable[[Any], None] | None = None) -> Sequence[Any]:
        """Load several samples at once.

        Args:
            indices: of the samples.
            key: called with the index of each sample before what comes after the cache is applied to it, so that
                this draws the same random numbers as in any other batch.
        """
        timer = _Timed(1, len(indices))
        positions: Sequence[Any] = indices
        samples: Sequence[Any]
        if self._store is None:
            samples = self._asked(self._root, indices)
        else:
            positions = [self._position(index, len(self._store)) for index in indices]
            if self._is_split and None in positions:
                return [self._keyed(key, index, self.__getitem__, index) for index in indices]
            within = [position for position in positions if position is not None]
            samples = timer.load(self._store.load_many, within, self._read_many)
            if len(within) < len(positions):  # as those of negative indices
                samples = self._with_others(indices, positions, samples)
        if not self._is_split and self._transform is None:
            return samples
        if len(samples) != len(indices):  # of a dataset that leaves some out, say: which are they?
            return timer.transform(lambda: [self._transform(sample) for sample in samples])  # type: ignore
        rows = zip(indices, positions, samples, strict=True)
        samples = timer.transform(lambda: [self._finish(key, *row) for row in rows])
        return samples

    def _with_others(self, indices: Any, positions: Sequence[int | None], kept: Any) -> Sequence[Any]:
        """Return a batch of samples that came by way of the cache and of those that have no place in it."""
        outside = [index for index, position in zip(indices, positions, strict=True) if position is None]
        sources = iter(kept), iter(self._asked(self._dataset, outside))
        return [next(sources[position is None]) for position in positions]

    def _read_many(self, indices: Sequence[Any]) -> Sequence[Any]:
        if not self._is_split:
            return self._draws.watch(self._asked, self._root, indices)  # type: ignore[no-any-return]
        samples: Sequence[Any] = self._root.prepare_samples(indices, self._keep)
        if len(samples) != len(indices):
            raise ValueError(
                f"prepare_samples() of {type(self._root).__name__} must return one for each of "
                f"{len(indices)} samples, got {len(samples)}"
            )
        return samples

    def _asked(self, dataset: Any, indices: Sequence[Any]) -> Sequence[Any]:
        samples: Sequence[Any] = dataset.__getitems__(indices)
        if self._store is None:
            return samples
        if len(samples := told_apart(dataset, samples, len(indices))) != len(indices):
            raise ValueError(
                f"__getitems__() of {type(dataset).__name__} returned {len(samples)} samples for {len(indices)} "
                "indices, so that a cache cannot know which is which: return one for each, or leave out cache="
            )
        return samples

    @staticmethod
    def _keyed(key: Callable[[Any], None] | None, index: Any, load: Callable[..., Any], *arguments: Any) -> Any:
        if key is not None:
            key(index)
        return load(*arguments)

    def _finish(self, key: Callable[[Any], None] | None, index: Any, position: Any, sample: Any) -> Any:
        """Apply what comes after the cache."""
        if self._is_split:
            sample = self._keyed(key, index, self._root.finish_sample, position, sample)
        return sample if self._transform is None else self._transformed(index, sample)

    def timed(self, weight: int) -> TimedView:
        """Return the same samples, with the stages of each in a span of its own.

        Args:
            weight: the number of samples that each one stands for.
        """
        timer = _Timed(weight)
        return TimedView(lambda index: self.__getitem__(index, timer))

    def _position(self, index: Any, samples: int) -> int | None:
        """Return the sample's place in the store; None if the index is of another kind."""
        position = position_of(index)
        if position is None:
            return None
        if self._places is not None:
            return int(self._places[position]) if 0 <= position < len(self._places) else None
        return position if 0 <= position < samples else None

    def __getattr__(self, name: str) -> Any:
        """Return the dataset's own attribute."""
        if name.startswith("__") or "_dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._dataset)


class _Draws:
    """Tells once if loading a sample draws random numbers, which the cache keeps it from doing again.

    Some of the first samples that a process loads are looked at.
    """

    _MOST = 16

    def __init__(self) -> None:
        self._left = self._MOST

    def watch(self, load: Callable[..., Any], *arguments: Any) -> Any:
        """Load what the cache is to keep."""
        if self._left == 0:
            return load(*arguments)
        self._left -= 1
        before = self._states()
        loaded = load(*arguments)
        if self._states() != before:
            self._left = 0
            warn_user(
                "the cache keeps samples as the dataset gives them first, and that draws random numbers, so every "
                "epoch gets the same; give what is random to DataLoader(transform=...), which comes after it"
            )
        return loaded

    @staticmethod
    def _states() -> tuple[Any, ...]:
        state: Any = np.random.get_state()
        numpys = state[1].tobytes(), *state[2:]
        return random.getstate(), numpys, torch.get_rng_state().numpy().tobytes()


class TimedView:
    """The samples of a :class:`CachedView`, as :meth:`CachedView.timed` returns them."""

    def __init__(self, load: Callable[[Any], Any]) -> None:
        self._load = load

    def __getitem__(self, index: Any) -> Any:
        return self._load(index)


def holds_values(dataset: Any) -> bool:
    """Whether samples are parts of lists, arrays or tensors, so that no code of the user's loads them.

    >>> holds_values(Subset([10, 20, 30], [0, 2])), holds_values({0: 10})
    (True, False)
    """
    if type(dataset) is CachedView:
        return dataset._transform is None and holds_values(dataset._dataset)
    kind = wrapper_kind(dataset)
    if kind is Subset:
        return holds_values(dataset.dataset)
    if kind is ConcatDataset:
        return all(map(holds_values, dataset.datasets))
    if kind is StackDataset:
        parts = dataset.datasets
        return all(map(holds_values, parts.values() if isinstance(parts, dict) else parts))
    return kind is TensorDataset or type(dataset) in (list, tuple, range, str, np.ndarray, torch.Tensor)
