"""Batches that were assembled as a whole, which ``default_collate`` passes through."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import torch
from torch.utils.data._utils import collate as torch_collate

from foreload._torch import plain_torch_function

__all__ = ["Collated", "collate_collated", "marked"]


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
    """A batch that was assembled as a whole, presented as a list of samples.

    ``__getitems__`` of a dataset returns it. ``default_collate`` recognises the type of the samples and returns
    the batch as it is; any other code sees a sequence of ordinary samples, which are views of the batch.

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


def collate_collated(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Return the batch of a :class:`Collated`; collate other lists of its samples as torch does."""
    if isinstance(batch, Collated):
        return batch.batch
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
