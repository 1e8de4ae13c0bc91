"""The containers of samples: tuples, mappings, and classes of the user's own."""

from __future__ import annotations

import copy
from collections import UserDict, defaultdict
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data import default_collate

__all__ = ["Container", "check_alike"]

_REMEDY = "give a plain dict or tuple, such as dict(sample), or tensors in one"


class Container:
    """Makes samples, and batches as ``default_collate`` makes them, with the container of one sample.

    Args:
        like: a tuple, list or mapping; its values do not matter.

    Raises:
        TypeError: samples of its type cannot be made, or torch makes other values of theirs.

    >>> from collections import OrderedDict
    >>> sample = Container(OrderedDict(x=1, y=2)).sample([5, 6])
    >>> type(sample).__name__, dict(sample)
    ('OrderedDict', {'x': 5, 'y': 6})
    """

    def __init__(self, like: Any) -> None:
        self.kind = type(like)
        self._names = list(like) if isinstance(like, Mapping) else None
        count = len(like)
        ones = [torch.ones(()) for _ in range(count)]
        sample = None
        with suppress(TypeError):
            self._sample = _emptied(like)
            sample = self.sample(ones)
        if type(sample) is not self.kind or not _holds(sample, self._names, ones):
            raise TypeError(f"data: no samples like a {self.kind.__name__} can be made; {_REMEDY}")
        batch: Any = default_collate([sample])
        self._batch = _emptied(batch) if isinstance(batch, (tuple, list, Mapping)) else None
        if self._batch is None or not _holds(self.batch(ones), self._names, ones) or not _are_ones(batch):
            raise TypeError(f"data: torch makes other values of samples in a {self.kind.__name__}; {_REMEDY}")

    @property
    def is_plain(self) -> bool:
        """Whether samples are plain tuples or dicts, and their batches lists or dicts."""
        return self.kind in (tuple, dict)

    def sample(self, fields: Sequence[Any]) -> Any:
        """Make a sample of one value per field."""
        return _filled(self._sample, self._names, fields)

    def batch(self, fields: Sequence[Any]) -> Any:
        """Make a batch of one tensor per field."""
        return _filled(self._batch, self._names, fields)


def check_alike(samples: Sequence[Any]) -> None:
    """Raise an error if one container does not stand for those of all samples.

    Raises:
        TypeError: samples are of different types, or hold more than their values.
        ValueError: they have different keys.
    """
    first = samples[0]
    if not isinstance(first, (tuple, list, Mapping)):
        return
    kind, names = type(first), list(first) if isinstance(first, Mapping) else None
    for number, sample in enumerate(samples):
        if type(sample) is not kind:
            raise TypeError(
                f"data: sample {number} is a {type(sample).__name__}, but sample 0 is a {kind.__name__}; give all "
                "of them one type"
            )
        if kind not in (tuple, list, dict) and _has_more(sample, first):
            raise TypeError(f"data: sample {number}, a {kind.__name__}, holds more than its values; {_REMEDY}")
        if names is not None and list(sample) != names:
            _check_names(number, sample, names)


def _check_names(number: int, sample: Any, names: list[Any]) -> None:
    lacking = [name for name in names if name not in sample]
    added = [name for name in sample if name not in names]
    if lacking or added:
        which = f"lacks the key {lacking[0]!r}, which sample 0 has" if lacking else ""
        which = which or f"has the key {added[0]!r}, which sample 0 lacks"
        raise ValueError(f"data: sample {number} {which}; give all samples the same keys")
    if type(sample) is not dict:  # two of which are equal whatever the order
        raise ValueError(f"data: sample {number} has its keys in another order than sample 0; give one order")


def _has_more(sample: Any, first: Any) -> bool:
    """Whether a container holds more than its values, or a ``defaultdict`` another factory than the first one."""
    if isinstance(sample, defaultdict) and sample.default_factory is not first.default_factory:
        return True
    try:
        _, _, *state = sample.__reduce_ex__(2)
    except TypeError:  # it cannot be sent to a worker process either
        return True
    held = state[0] if state else None
    if held is sample:  # its attributes are its items
        return False
    if not isinstance(held, dict):
        return bool(held)
    own = {"data"} if isinstance(sample, UserDict) else set()
    return any(value is not None for name, value in held.items() if name not in own)


def _emptied(like: Any) -> Any:
    """Return a container without the values, which would stay in memory."""
    if isinstance(like, MutableMapping):
        copied = copy.copy(like)
        for name in like:
            copied[name] = None
        return copied
    return type(like) if isinstance(like, Mapping) else _tuple_or_list(like, [None] * len(like))


def _filled(container: Any, names: list[Any] | None, fields: Sequence[Any]) -> Any:
    if names is None:
        return _tuple_or_list(container, fields)
    if isinstance(container, type):
        made: Any = container
        return made(dict(zip(names, fields, strict=True)))
    copied = copy.copy(container)
    for name, value in zip(names, fields, strict=True):
        copied[name] = value
    return copied


def _tuple_or_list(container: Any, fields: Sequence[Any]) -> Any:
    if isinstance(container, tuple):
        # The constructor of a user's class, as of a named tuple, may take other arguments.
        try:
            return tuple.__new__(type(container), fields)
        except TypeError:  # the constructor of one of torch's (torch.max(x, 1)) takes no other
            return type(container)(fields)
    copied = copy.copy(container)
    copied[:] = fields
    return copied


def _holds(container: Any, names: list[Any] | None, fields: Sequence[Any]) -> bool:
    if names is not None and list(container) != names:
        return False
    values = list(container) if names is None else [container[name] for name in names]
    return len(values) == len(fields) and all(value is field for value, field in zip(values, fields, strict=True))


def _are_ones(batch: Any) -> bool:
    values = batch.values() if isinstance(batch, Mapping) else batch
    return all(isinstance(value, torch.Tensor) and value.tolist() == [1] for value in values)
