"""Batches that were assembled as a whole, which ``default_collate`` passes through."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Generic, TypeVar

import torch

from foreload._torch import COLLATE, FETCH, is_defined_in, torch_collate

__all__ = ["Collated", "collate_collated", "own_getitems", "takes_whole"]

T = TypeVar("T")


class Collated(Sequence[Any]):
    """A batch that was assembled as a whole, presented as a sequence of samples.

    ``__getitems__`` of a dataset returns it to foreload's code, and to torch's loader with ``default_collate``,
    which returns the batch as it is. All others get a list; see :meth:`listed`.

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

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._count

    def __getitem__(self, index: Any) -> Any:
        """Return one sample, or a list of them for a slice; to ``default_collate``, a sign of a batch."""
        frame = sys._getframe(1)
        if self._count and frame.f_code is COLLATE and takes_whole(frame.f_locals["collate_fn_map"]):
            return _WHOLE
        if isinstance(index, slice):
            return [self._sample(i) for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"sample {index} is out of range for a batch of {self._count} samples")
        return self._sample(operator.index(index))

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the samples."""
        return map(self._sample, range(self._count))

    def _sample(self, index: int) -> Any:
        if self._make is None and isinstance(self.batch, torch.Tensor):
            return self.batch[index]
        if self._make is None and isinstance(self.batch, dict):
            return {name: rows[index] for name, rows in self.batch.items()}
        fields = self.batch.values() if isinstance(self.batch, Mapping) else self.batch
        values = [
            rows[index].item() if place in self.numbers else rows[index] for place, rows in enumerate(fields)
        ]
        return tuple(values) if self._make is None else self._make(values)

    @property
    def is_plain(self) -> bool:
        """Whether the samples are tensors, or plain tuples or dicts of them."""
        return self._make is None and type(self.batch) in (torch.Tensor, list, dict)

    def listed(self) -> list[Any]:
        """Return the samples, which are views of the batch, in a list, for code that may change either."""
        return list(map(self._sample, range(self._count)))


class own_getitems(Generic[T]):
    """Make ``__getitems__`` a property, whose value depends on whose code asks for it.

    Code of the user's, and torch's loader with a ``collate_fn`` of the user's, get the samples in a list. It is
    not found by way of a wrapper's ``__getattr__``: a wrapper that hands on what it lacks, but has a
    ``__getitem__`` of its own, as for a transform, would have its batches loaded past that.

    >>> __name__ = "example"  # not foreload's own code
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
        frame = sys._getframe(1)
        if _is_foreloads(frame):
            return self._find(dataset)
        is_whole = _is_for_whole(frame, dataset)
        many: Any = self._find(dataset)
        if many is None or is_whole:
            return many  # type: ignore[no-any-return]
        return functools.partial(_load_listed, many)  # type: ignore[return-value]

    def __call__(self, dataset: Any, indices: Any) -> Any:
        """Load samples, where the method is called as that of a class."""
        many: Any = self._find(dataset)
        return _load_listed(many, indices)


_HOOKS = ("__getattr__", "__getattribute__")


def _is_for_whole(frame: FrameType | None, dataset: Any) -> bool:
    """Whether a loader asks, maybe through torch's ``Subset``, that takes a batch which was assembled as a whole.

    Raises:
        AttributeError: another object asks for an attribute of its own.
    """
    asked = dataset
    while frame is not None and (frame.f_code is FETCH or _is_subset(frame)):
        # (What has no __getattr__ in Python may hand on attributes too: a proxy in C.)
        owner = frame.f_locals["self"]
        if owner.dataset is not asked:
            raise _not_for_wrappers(dataset)
        if frame.f_code is FETCH:
            is_default = owner.collate_fn is torch_collate.default_collate
            return is_default and takes_whole(torch_collate.default_collate_fn_map)
        asked, frame = owner, frame.f_back
    if frame is not None and _is_foreloads(frame):
        return True
    while frame is not None and frame.f_code is not FETCH and not _is_foreloads(frame):
        if _hands_on(frame, dataset):
            raise _not_for_wrappers(dataset)
        frame = frame.f_back
    return False


def _hands_on(frame: FrameType, dataset: Any) -> bool:
    """Whether this is the ``__getattr__`` of another object, asked for ``__getitems__``."""
    code = frame.f_code
    if code.co_argcount < 2 or code.co_name not in (*_HOOKS, "<lambda>"):
        return False  # (to read f_locals would keep them)
    owner, name = (frame.f_locals.get(argument) for argument in code.co_varnames[:2])
    hooks = (getattr(type(owner), hook, None) for hook in _HOOKS)
    is_hook = code.co_name in _HOOKS or any(getattr(hook, "__code__", None) is code for hook in hooks)
    return is_hook and owner is not dataset and isinstance(name, str) and name == "__getitems__"


def _not_for_wrappers(dataset: Any) -> AttributeError:
    return AttributeError(f"__getitems__ of {type(dataset).__name__} is not for its wrappers")


def _is_subset(frame: FrameType) -> bool:
    is_method = frame.f_code.co_name == "__getitems__" and _module(frame).startswith("torch.utils.data.")
    return is_method and hasattr(frame.f_locals["self"], "dataset")


def _is_foreloads(frame: FrameType) -> bool:
    return _module(frame).startswith("foreload.")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _load_listed(many: Callable[[Any], Any], indices: Any) -> Any:
    samples = many(indices)
    return samples.listed() if isinstance(samples, Collated) else samples


class _Whole:
    """Stands for the first sample of a batch that is there as a whole."""


_WHOLE = _Whole()


def collate_collated(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Return the batch of a :class:`Collated`."""
    return batch.batch


def takes_whole(functions: Mapping[Any, Any] | None) -> bool:
    """Whether these functions that collate samples by type are torch's and ours: the user's may do anything."""
    return functions is not None and _Whole in functions and _KNOWN.issuperset(functions.values())


_KNOWN = {
    collate_collated,
    *(each for each in torch_collate.default_collate_fn_map.values() if is_defined_in(torch_collate, each)),
}

# Torch's documented way to teach default_collate a type.
torch_collate.default_collate_fn_map[_Whole] = collate_collated
