"""Torch's wrappers of datasets, as the cache and the loading of samples see through them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sized
from types import MemberDescriptorType
from typing import Any

import numpy as np
from torch.utils.data import StackDataset, Subset

from foreload._torch import wrapper_kind
from foreload.checks import held, optional
from foreload.order.index import row_numbers
from foreload.protocol import SampleSource

__all__ = [
    "Places",
    "draws_together",
    "has_remote_samples",
    "is_proxy",
    "loads_together",
    "parts_of",
    "places_of",
    "require_length",
    "root_of",
    "told_apart",
    "unwrap",
]

Places = np.ndarray[Any, np.dtype[np.int64]]


def root_of(dataset: Any) -> Any:
    """Return the dataset within torch's ``Subset``."""
    while wrapper_kind(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def require_length(dataset: Any) -> Sized:
    """Return the dataset; raise TypeError if it has no length, which a cache needs."""
    if not isinstance(dataset, Sized):
        raise TypeError(f"cache: {type(dataset).__name__} has no __len__(); define it, or leave out cache=")
    return dataset


def unwrap(dataset: Any) -> tuple[Any, Places | None]:
    """Return the dataset within torch's ``Subset``, and the position of each sample in it.

    A ``Subset`` of keys or negative indices, which are not positions, is a dataset of its own.

    >>> unwrap(Subset(Subset([10, 20, 30, 40], [3, 2, 1]), [0, 2]))
    ([10, 20, 30, 40], array([3, 1]))
    """
    places: Places | None = None
    while wrapper_kind(dataset) is Subset:
        inner = row_numbers(dataset.indices)
        if inner is None or (inner < 0).any():
            break
        places = inner if places is None else inner[places]
        dataset = dataset.dataset
    return dataset, places


def places_of(positions: Places, places: Places | None) -> Places:
    """Return where samples of a ``Subset`` lie in the dataset within it; -1 where there is none.

    >>> places_of(np.array([1, 0, 2]), np.array([30, 31]))
    array([31, 30, -1])
    """
    if places is None:
        return positions
    inside = (positions >= 0) & (positions < len(places))
    found = np.full(len(positions), -1)
    found[inside] = places[positions[inside]]
    return found


def loads_together(dataset: Any, *, by_part: bool = False) -> bool:
    """Whether a dataset has a ``__getitems__`` that does more than ask for one sample after the other.

    If torch's wrappers do no more, samples are loaded one by one, each with random numbers of its own.

    Args:
        dataset: the dataset.
        by_part: whether it counts that torch's ``StackDataset`` asks its first dataset for all samples of a batch,
            then the next one: where random numbers are not the samples' own, they come in that order.

    >>> loads_together(Subset([10, 20, 30], [0, 2])), loads_together(StackDataset([10, 20], [30, 40]))
    (False, False)
    >>> loads_together(StackDataset([10, 20], [30, 40]), by_part=True)
    True
    """
    kind = wrapper_kind(dataset)
    if kind is Subset:
        return loads_together(dataset.dataset, by_part=by_part)
    if kind is StackDataset:
        parts = dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets
        return (by_part and len(parts) > 1) or any(map(loads_together, parts))
    return not is_proxy(dataset) and callable(getattr(dataset, "__getitems__", None))


def is_proxy(dataset: Any) -> bool:
    """Whether an object stands for another one, as those of wrapt do: its ``__getitem__`` may be of its own."""
    return type(dataset) is not getattr(dataset, "__class__", type(dataset))


def draws_together(dataset: Any) -> bool:
    """Whether torch's ``StackDataset`` loads batches of what has transforms that may be random.

    What they draw would depend on which samples a batch has.
    """
    root = root_of(dataset)
    if wrapper_kind(root) is not StackDataset:
        return False
    parts = root.datasets
    parts = [root_of(part) for part in (parts.values() if isinstance(parts, dict) else parts)]
    return any(map(_may_draw, parts))


def _may_draw(dataset: Any) -> bool:
    # (A method or a property of such a name is code of the dataset's, which its __getitems__ runs as it likes.)
    transforms = [_transform_of(dataset, name) for name in ("transform", "target_transform", "transforms")]
    may_draw = (getattr(transform, "random", transform is not None) for transform in transforms)
    return any(may_draw) or draws_together(dataset)


def _transform_of(dataset: Any, name: str) -> Any:
    own = getattr(dataset, "__dict__", {})
    if name in own:
        return own[name]
    found = inspect.getattr_static(dataset, name, None)
    if isinstance(found, MemberDescriptorType):  # of __slots__
        return optional(dataset, name)
    return found if isinstance(found, staticmethod) or not hasattr(type(found), "__get__") else None


def told_apart(dataset: Any, samples: Any, count: int) -> list[Any]:
    """Return what a dataset's ``__getitems__`` has returned for ``count`` indices as a list of samples.

    Raises:
        TypeError: it is a batch already, of columns by name or one after the other, which are no samples.

    >>> told_apart(None, (sample for sample in [5, 6]), 2)
    [5, 6]
    """
    if isinstance(samples, Mapping) or (isinstance(samples, tuple) and len(samples) > count):
        raise TypeError(
            f"__getitems__() of {type(dataset).__name__} returned a {type(samples).__name__}, of which the "
            "samples cannot be told apart, as a cache and a batch that fails in part need them: return a list"
        )
    return list(samples)


def has_remote_samples(dataset: Any) -> bool:
    """Whether samples of a dataset, or of one that it is made of, come from a server."""
    return any(isinstance(part, SampleSource) and part.is_remote for part in parts_of(dataset))


def parts_of(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those that it is made of, each once, as far as torch's own wrappers show them."""
    found: dict[int, Any] = {}
    waiting = [dataset]
    while waiting:
        part = waiting.pop()
        if part is None or id(part) in found:
            continue  # a part may know the whole
        found[id(part)] = part
        yield part
        inner = held(part, "datasets")
        if isinstance(inner, dict):
            inner = list(inner.values())
        waiting += reversed(inner) if isinstance(inner, (list, tuple)) else [held(part, "dataset")]
