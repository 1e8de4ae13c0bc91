"""Batches that were assembled as a whole, which ``default_collate`` passes through."""

from __future__ import annotations

import copy
import functools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from types import FrameType
from typing import Any, Generic, SupportsIndex, TypeVar

import torch
from torch.utils.data._utils import collate as torch_collate

from foreload._torch import FETCH, plain_torch_function

__all__ = ["Collated", "collate_collated", "marked", "own_getitems"]

T = TypeVar("T")


class _TupleSample(tuple[Any, ...]):
    __slots__ = ()


class _DictSample(dict[Any, Any]):
    __slots__ = ()


class _ListSample(list[Any]):
    __slots__ = ()


class _TensorSample(torch.Tensor):
    # Operations on a sample return plain tensors.
    __torch_function__ = plain_torch_function  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        # Another process gets a plain tensor. (Torch cannot unpickle subclasses with its newer dtypes.)
        return _plain, (self.as_subclass(torch.Tensor),)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class Collated(MutableSequence[Any]):
    """A batch that was assembled as a whole, presented as a list of samples.

    ``__getitems__`` of a dataset returns it. ``default_collate`` recognises the type of the samples and returns
    the batch as it is; any other code sees a list of ordinary samples, which are views of the batch. Once such
    code has changed the list, or a dict or list among the samples, ``default_collate`` collates the samples.

    Args:
        batch: a tensor, or a list or dict of them, with one row per sample.
        count: the number of samples.
        numbers: the positions of columns whose values are Python numbers in a sample.
        make: makes a sample of its values, if it is another container than a plain tuple or dict.

    >>> samples = Collated([torch.zeros(3, 2), torch.arange(3)], 3, numbers=(1,))
    >>> samples[1]
    (tensor([0., 0.]), 1)
    >>> torch.utils.data.default_collate(samples)[1]
    tensor([0, 1, 2])
    >>> samples.reverse()
    >>> torch.utils.data.default_collate(samples)[1]
    tensor([2, 1, 0])
    """

    def __init__(
        self,
        batch: Any,
        count: int,
        numbers: Iterable[int] = (),
        make: Callable[[Sequence[Any]], Any] | None = None,
    ) -> None:
        self.batch = batch
        self.numbers = frozenset(numbers)
        self._make = make
        self._count = count
        self._given: dict[int, tuple[Any, Any]] = {}  # samples that can be changed, and copies of them
        self._changed: list[Any] | None = None  # all samples, once the list was changed

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._count if self._changed is None else len(self._changed)

    def __getitem__(self, index: Any) -> Any:
        """Return one sample, or a list of them for a slice."""
        if self._changed is not None:
            return self._changed[index]
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"sample {index} is out of range for a batch of {self._count} samples")
        place = operator.index(index) % self._count
        if place in self._given:
            return self._given[place][0]
        sample = self._sample(place)
        if isinstance(sample, (dict, list)):
            self._given[place] = sample, copy.copy(sample)
        return sample

    def _sample(self, index: int) -> Any:
        if self._make is not None:
            fields = self.batch.values() if isinstance(self.batch, Mapping) else self.batch
            return self._make([rows[index] for rows in fields])
        if isinstance(self.batch, dict):
            return _DictSample({name: rows[index] for name, rows in self.batch.items()})
        if isinstance(self.batch, torch.Tensor):
            return self.batch[index].as_subclass(_TensorSample)
        return _TupleSample(
            rows[index].item() if place in self.numbers else rows[index] for place, rows in enumerate(self.batch)
        )

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the samples."""
        return (self[i] for i in range(len(self))) if self._changed is None else iter(self._changed)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Replace one sample, or those of a slice."""
        self._own()[index] = value

    def __delitem__(self, index: Any) -> None:
        """Leave out one sample, or those of a slice."""
        del self._own()[index]

    def insert(self, index: int, value: Any) -> None:
        """Put a sample before that of an index."""
        self._own().insert(index, value)

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        """Sort the samples in place, as a list does."""
        self._own().sort(key=key, reverse=reverse)

    def copy(self) -> list[Any]:
        """Return a list of the samples."""
        return list(self)

    def _own(self) -> list[Any]:
        if self._changed is None:
            self._changed = list(self)
        return self._changed

    def listed(self) -> list[Any]:
        """Return the samples as a list, for code that asks for one, which ``default_collate`` recognises too."""
        return _Listed(self)

    def is_plain(self) -> bool:
        """Whether the samples are those of the batch, in plain tuples or dicts if they are in containers."""
        return self._make is None and type(self.batch) in (torch.Tensor, list, dict) and not self.is_changed()

    def is_changed(self) -> bool:
        """Whether samples, or the list of them, are no longer those of the batch."""
        return self._changed is not None or not all(map(_is_same, self._given.values()))


class _Listed(list[Any]):
    # The samples of a Collated, as a list.

    def __init__(self, origin: Collated) -> None:
        super().__init__(origin)
        self.origin = origin
        self._listed = tuple(self)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return list, (list(self),)  # for another process, which has no use for the batch besides

    def is_changed(self) -> bool:
        same = len(self) == len(self._listed) and all(map(operator.is_, self, self._listed))
        return not same or self.origin.is_changed()


class own_getitems(Generic[T]):
    """Make ``__getitems__`` a property, whose value depends on whose attribute it is asked for as.

    A wrapper that hands on what it lacks, but has a ``__getitem__`` of its own, as for a transform, would have its
    batches loaded past that: loaders, torch's too, look for ``__getitems__`` on the wrapper. So it is not found by
    way of ``__getattr__``. For torch's loader with a ``collate_fn`` of the user's, the samples are in a list.

    >>> class Ten:
    ...     @own_getitems
    ...     def __getitems__(self): return lambda indices: indices
    >>> class Wrapper:
    ...     def __getattr__(self, name): return getattr(Ten(), name)
    >>> hasattr(Ten(), "__getitems__"), hasattr(Wrapper(), "__getitems__")
    (True, False)
    """

    def __init__(self, find: Callable[[Any], T]) -> None:
        self._find = find
        self.__doc__ = find.__doc__

    def __get__(self, dataset: Any, kind: type | None = None) -> T:
        """Return what the decorated function returns; the property itself for a class."""
        if dataset is None:
            return self  # type: ignore[return-value]
        caller = sys._getframe(1)
        if caller.f_code.co_name in ("__getattr__", "__getattribute__"):
            raise AttributeError(f"__getitems__ of {type(dataset).__name__} is not for its wrappers")
        many: Any = self._find(dataset)
        if many is not None and _is_for_own_collate(caller):
            return functools.partial(_load_listed, many)  # type: ignore[return-value]
        return many  # type: ignore[no-any-return]


def _is_for_own_collate(caller: FrameType | None) -> bool:
    """Whether torch's loader asks, maybe through a ``Subset``, which has a ``collate_fn`` of the user's."""
    while caller is not None and caller.f_code.co_name == "__getitems__":
        caller = caller.f_back
    if caller is None or caller.f_code is not FETCH:
        return False
    return caller.f_locals["self"].collate_fn is not torch_collate.default_collate


def _load_listed(many: Callable[[Any], Any], indices: Any) -> Any:
    samples = many(indices)
    return samples.listed() if isinstance(samples, Collated) else samples


def _is_same(given: tuple[Any, Any]) -> bool:
    # By identity: tensors are compared by their elements, and views of the batch that are changed change it.
    now, before = given
    if isinstance(now, dict):
        return list(now) == list(before) and all(map(operator.is_, now.values(), before.values()))
    return len(now) == len(before) and all(map(operator.is_, now, before))


def collate_collated(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Return the batch of a :class:`Collated` as it was assembled; collate all else as torch does."""
    if isinstance(batch, (Collated, _Listed)) and not batch.is_changed():
        return (batch if isinstance(batch, Collated) else batch.origin).batch
    return torch_collate.collate(list(map(_unmarked, batch)), collate_fn_map=collate_fn_map)


def _unmarked(sample: Any) -> Any:
    if torch_collate.default_collate_fn_map.get(type(sample)) is not collate_collated:
        return sample  # of another dataset, which makes no batches as a whole
    if isinstance(sample, torch.Tensor):
        return sample.as_subclass(torch.Tensor)
    kind: Any = type(sample).__base__
    return tuple.__new__(kind, sample) if isinstance(sample, tuple) else kind(sample)


# Torch's documented way to teach default_collate a type.
torch_collate.default_collate_fn_map.update(
    dict.fromkeys((_TupleSample, _DictSample, _ListSample, _TensorSample), collate_collated)
)


@functools.cache
def marked(kind: type) -> Callable[[Iterable[Any]], Any] | None:
    """Return what makes samples by which ``default_collate`` recognises a batch, of a container's class.

    Args:
        kind: of the container.

    Returns:
        For lists and named tuples: a function of the values. None for all others.
    """
    if kind is list:
        return _ListSample
    if not (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return None

    def reduce(sample: Any, protocol: SupportsIndex) -> Any:
        return tuple.__new__, (kind, tuple(sample))  # another process has no such class

    own: Any = type(kind.__name__, (kind,), {"__slots__": (), "__reduce_ex__": reduce})
    torch_collate.default_collate_fn_map[own] = collate_collated
    return functools.partial(tuple.__new__, own)
