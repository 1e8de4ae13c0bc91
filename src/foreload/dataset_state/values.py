"""The values of a dataset, which the loop may change while workers load from it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from foreload._torch import tensor_version, wrapper_kind
from foreload.cache.wrappers import parts_of
from foreload.checks import Array
from foreload.dataset_state.probes.numbers import spread
from foreload.datasets.rows import fields_of
from foreload.errors import warn_user

__all__ = ["EpochValues"]

# Items of a list, which may be long, and numbers of an array that are looked at.
_MOST_ITEMS, _MOST_NUMBERS = 64, 16

# Returns what has changed if the values have.
_Read = Callable[[], Any]


class EpochValues:
    """The values of a dataset as they were when an epoch began, which tells whether they have been changed since.

    Worker processes of torch's have a copy of them from that moment. Threads see them as they are when a batch is
    made, which is at no certain moment. Torch counts what it writes to a tensor; nobody counts what is written to
    arrays, lists and dicts, of which some numbers and items are compared.

    Args:
        dataset: a dataset of tensors, an array, a list or a dict, or one that is made of such; of others nothing
            is known.

    >>> tensor, array = torch.zeros(4), np.zeros(1000)
    >>> held = EpochValues([tensor])
    >>> held.have_changed(), tensor.add_(1).sum().item(), held.have_changed()
    (False, 4.0, True)
    >>> held = EpochValues(array)
    >>> array += 1
    >>> held.have_changed()
    True
    """

    def __init__(self, dataset: Any) -> None:
        reads = itertools.chain.from_iterable(map(_reads, _values_of(dataset)))
        self._seen = [(read, read()) for read in itertools.islice(reads, 2 * _MOST_ITEMS)]
        self._has_warned = False

    def have_changed(self) -> bool:
        """Whether one of them is seen to have been written to."""
        return any(read() != before for read, before in self._seen)

    def warn(self) -> None:
        """Warn, once, if they have changed."""
        if not self._has_warned and self.have_changed():
            self._has_warned = True
            warn_user(
                "the values of the dataset, or others in the same memory, were changed while worker threads load "
                "from them, so a batch may show the data before or after the change; torch's workers show that of "
                "the epoch's beginning. Change them between epochs, copy them first, or use workers='processes'"
            )


def _values_of(dataset: Any) -> Iterator[Any]:
    for part in parts_of(dataset):
        fields, _ = fields_of(part)
        if wrapper_kind(part) is Subset:
            yield part.indices
        else:
            yield from fields or (part,)


def _reads(value: Any) -> Iterator[_Read]:
    if type(value) is torch.Tensor:
        yield lambda: tensor_version(value)
        yield from _numbers_of_tensor(value)
    elif type(value) is np.ndarray:
        yield from _numbers(value)
    elif type(value) is dict:
        names = list(value)
        names = [names[place] for place in spread(len(names), _MOST_ITEMS)]
        yield lambda: [len(value), *(id(value.get(name)) for name in names)]
        yield from _reads(tuple(value[name] for name in names))
    elif type(value) in (list, tuple):
        places = spread(len(value), _MOST_ITEMS)
        if type(value) is list:
            yield lambda: [len(value), *(id(value[place]) for place in places if place < len(value))]
        for item in [value[place] for place in places]:
            yield from _reads(item) if isinstance(item, (torch.Tensor, np.ndarray)) else ()


def _numbers_of_tensor(tensor: torch.Tensor) -> Iterator[_Read]:
    """Look at a tensor that may be an array's memory, to which NumPy writes."""
    if tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad:
        try:
            array = tensor.numpy()
        except (TypeError, RuntimeError):  # of a dtype that NumPy does not have, or not an ordinary tensor
            return
        yield from _numbers(array)


def _numbers(array: Array) -> Iterator[_Read]:
    if array.flags.writeable and not array.dtype.hasobject and not isinstance(array.base, np.memmap):
        places = spread(array.size, _MOST_NUMBERS)
        yield lambda: array.flat[places].tobytes()
