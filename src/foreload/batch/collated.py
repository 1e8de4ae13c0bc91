"""Batches that were assembled as a whole, which ``default_collate`` passes through."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Generic, SupportsIndex, TypeVar

import torch
from torch.utils.data._utils import collate as torch_collate

from foreload._torch import COLLATE, FETCH, is_defined_in, plain_torch_function

__all__ = ["Collated", "CollatedList", "collate_collated", "marked", "own_getitems"]

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


class Collated(Sequence[Any]):
    """A batch that was assembled as a whole, presented as a sequence of samples.

    ``__getitems__`` of a dataset returns it to foreload's code, and to torch's loader with ``default_collate``,
    which recognises the type of the samples and returns the batch as it is. All others get a list; see
    :meth:`listed`.

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
        """Return one sample, or a list of them for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"sample {index} is out of range for a batch of {self._count} samples")
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
        return (self[i] for i in range(self._count))

    @property
    def is_plain(self) -> bool:
        """Whether the samples are tensors, or plain tuples or dicts of them."""
        return self._make is None and type(self.batch) in (torch.Tensor, list, dict)

    def listed(self) -> list[Any]:
        """Return the samples, which are views of the batch, in a list of ordinary containers.

        As long as nobody has looked at them, ``default_collate`` returns the batch as it is.

        >>> samples = Collated(torch.arange(4.0), 4).listed()
        >>> samples.reverse(); torch.utils.data.default_collate(samples)
        tensor([3., 2., 1., 0.])
        """
        if isinstance(self.batch, torch.Tensor) and self._make is None:
            return CollatedList(self.batch.unbind(0), self.batch)
        fields = self.batch.values() if isinstance(self.batch, Mapping) else self.batch
        columns = [rows.tolist() if place in self.numbers else rows.unbind(0) for place, rows in enumerate(fields)]
        rows = zip(*columns, strict=True)
        if self._make is not None:
            return CollatedList((_unmarked(self._make(list(row))) for row in rows), self.batch)
        if isinstance(self.batch, dict):
            return CollatedList((dict(zip(self.batch, row, strict=True)) for row in rows), self.batch)
        return CollatedList(rows, self.batch)


class CollatedList(list[Any]):
    """The samples of a batch that was assembled as a whole, which ``default_collate`` need not assemble again.

    Once code has looked at the samples, it may have changed them: then this is a list as any other. (If it looks
    at them after it has got the batch, they are still views of that.)

    Args:
        samples: the samples.
        batch: what ``default_collate`` returns of them.
    """

    def __init__(self, samples: Iterable[Any] = (), batch: Any = None) -> None:
        super().__init__(samples)
        self._batch = batch

    def __getitem__(self, index: Any) -> Any:
        """Return a sample; to torch's function that collates, a sign that this is a batch already."""
        if self._batch is not None:
            frame = sys._getframe(1)
            if frame.f_code is COLLATE and _are_known(frame.f_locals["collate_fn_map"]):
                return _WHOLE
            self._batch = None
        return super().__getitem__(index)

    def take(self) -> Any:
        """Return the batch, once: a second one must not share its memory. None if it may have been changed."""
        batch, self._batch = self._batch, None
        return batch

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return list, (list(self),)


def _looks_at(name: str) -> Callable[..., Any]:
    method = getattr(list, name)

    @functools.wraps(method)
    def look(self: CollatedList, *args: Any, **kwargs: Any) -> Any:
        self._batch = None
        return method(self, *args, **kwargs)

    return look


for _name in (
    *("__iter__", "__reversed__", "__setitem__", "__delitem__", "__iadd__", "__imul__", "__add__", "__mul__"),
    *("append", "clear", "copy", "extend", "insert", "pop", "remove", "reverse", "sort"),
):
    setattr(CollatedList, _name, _looks_at(_name))


def _are_known(functions: Mapping[Any, Any] | None) -> bool:
    """Whether these functions that collate samples by type are torch's and ours: the user's may do anything."""
    return functions is not None and _Whole in functions and _KNOWN.issuperset(functions.values())


class _Whole:
    """Stands for the first sample of a batch that is there as a whole."""


_WHOLE = _Whole()


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
        is_loader = frame.f_code is FETCH or _is_foreloads(frame)
        loader = frame if is_loader else _loader_behind(frame, dataset)
        many: Any = self._find(dataset)
        if many is None or (loader is not None and _takes_whole(loader)):
            return many  # type: ignore[no-any-return]
        return functools.partial(_load_listed, many)  # type: ignore[return-value]

    def __call__(self, dataset: Any, indices: Any) -> Any:
        """Load samples, where the method is called as that of a class."""
        many: Any = self._find(dataset)
        return _load_listed(many, indices)


_HOOKS = ("__getattr__", "__getattribute__")


def _loader_behind(caller: FrameType, dataset: Any) -> FrameType | None:
    """Return the loader that asks for batches through torch's ``Subset``; None if code of the user's asks.

    Raises:
        AttributeError: the ``__getattr__`` of another object asks, maybe by way of functions that it calls.
    """
    frame: FrameType | None = caller
    while frame is not None and _is_subset(frame):
        frame = frame.f_back
    if frame is not None and (frame.f_code is FETCH or _is_foreloads(frame)):
        return frame
    while frame is not None and frame.f_code is not FETCH and not _is_foreloads(frame):
        code = frame.f_code
        owner = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        hooks = (getattr(type(owner), name, None) for name in _HOOKS)
        is_hook = code.co_name in _HOOKS or any(getattr(hook, "__code__", None) is code for hook in hooks)
        if is_hook and owner is not dataset:
            raise AttributeError(f"__getitems__ of {type(dataset).__name__} is not for its wrappers")
        frame = frame.f_back
    return None


def _takes_whole(loader: FrameType) -> bool:
    """Whether it takes a batch that was assembled as a whole, without a look at its samples."""
    if loader.f_code is not FETCH:
        return True
    is_default = loader.f_locals["self"].collate_fn is torch_collate.default_collate
    return is_default and _are_known(torch_collate.default_collate_fn_map)


def _is_subset(frame: FrameType) -> bool:
    return frame.f_code.co_name == "__getitems__" and _module(frame).startswith("torch.utils.data.")


def _is_foreloads(frame: FrameType) -> bool:
    return _module(frame).startswith("foreload.")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _load_listed(many: Callable[[Any], Any], indices: Any) -> Any:
    samples = many(indices)
    return samples.listed() if isinstance(samples, Collated) else samples


def collate_collated(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Return a batch that was assembled as a whole; collate other lists of its samples as torch does."""
    if isinstance(batch, Collated):
        return batch.batch
    if isinstance(batch, CollatedList) and (whole := batch.take()) is not None:
        return whole
    return torch_collate.collate(list(map(_unmarked, batch)), collate_fn_map=collate_fn_map)


def _unmarked(sample: Any) -> Any:
    if torch_collate.default_collate_fn_map.get(type(sample)) is not collate_collated:
        return sample  # of another dataset, which makes no batches as a whole
    if isinstance(sample, torch.Tensor):
        return sample.as_subclass(torch.Tensor)
    kind: Any = type(sample).__base__
    return tuple.__new__(kind, sample) if isinstance(sample, tuple) else kind(sample)


_KNOWN = {
    collate_collated,
    *(each for each in torch_collate.default_collate_fn_map.values() if is_defined_in(torch_collate, each)),
}

# Torch's documented way to teach default_collate a type.
torch_collate.default_collate_fn_map.update(
    dict.fromkeys((_TupleSample, _DictSample, _ListSample, _TensorSample, _Whole), collate_collated)
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
