"""Serialisation of samples: the memory of tensors and arrays is copied as it is, the rest is pickled."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import torch  # noqa: F401 (for the examples)

from foreload.checks import Array
from foreload.errors import warn_user
from foreload.nested import is_like, snapshot
from foreload.nested.forms import Streams, form_of
from foreload.nested.picklers import ExactPickler, SamplePickler, TorchPickler, WholePickler, registered

__all__ = [
    "copied_as_sent",
    "copied_exactly",
    "deserialize",
    "flatten",
    "flatten_exactly",
    "restore",
    "separate",
    "serialize",
]

P = TypeVar("P", bound=SamplePickler)

_ALIGNMENT = 64


def flatten(sample: Any, pickler: type[SamplePickler] = SamplePickler) -> list[memoryview]:
    """Return a sample as a pickle stream and the memory of its tensors and arrays, which is not copied.

    Tensors keep their strides, and those that share memory share it afterwards, as between torch's workers and
    the loop. But of a tensor in a much larger memory, which no other tensor of the sample is the whole of, only
    the part that it is spread over is taken, and it shares that with no other; if that is a MiB or more, of which
    it is less than an eighth, it becomes contiguous.

    Raises:
        Exception: the sample cannot be pickled.
    """
    return _dumped_as_before(sample, pickler) or _dumped(sample, pickler)[1]


def restore(parts: Sequence[Any]) -> Any:
    """Return the sample of :func:`flatten`'s parts; its tensors and arrays are views of these."""
    return pickle.loads(parts[0], buffers=parts[1:])


def separate(batch: Any) -> Any:
    """Return a batch that shares nothing with what it was made of, as if a worker process had sent it.

    A batch that cannot be pickled, which a process could not send either, stays the same; a warning says so.

    >>> class Box: pass
    >>> box = Box()
    >>> import warnings
    >>> with warnings.catch_warnings(action="ignore"): separate([box])[0] is box  # pickle does not find the class
    True
    """
    return copied_as_sent(batch)[0]


def copied_as_sent(batch: Any) -> tuple[Any, bool]:
    """Do as :func:`separate` does; return whether it is the batch itself, too, which changes with the original."""
    with suppress(TypeError, RecursionError):
        return snapshot(batch, strict=True), False
    try:
        return restore([bytearray(part) for part in flatten(batch, TorchPickler)]), False
    except Exception as error:  # of the user's classes; or it is nested too deeply
        warn_user(f"a batch is delivered as collate_fn or the dataset holds it, since copying it fails: {error!r}")
        return batch, True


def flatten_exactly(sample: Any) -> list[memoryview]:
    """Do as :func:`flatten` does with a sample that is to come back as it is.

    Raises:
        Exception: the sample cannot be pickled, or is another one afterwards.

    >>> class Words(dict):
    ...     def __reduce__(self): return dict, (dict(self),)
    >>> len(flatten_exactly({"a": 1}))
    1
    >>> flatten_exactly(Words(a=1))
    Traceback (most recent call last):
    _pickle.PicklingError: pickling leaves out something of a Words
    """
    if (known := _dumped_as_before(sample, ExactPickler)) is not None:
        return known
    pickler, parts = _dumped(sample, ExactPickler)
    if pickler.ruled:
        # Of copies: a class may write to what it is made of, which else were the sample's own memory.
        again = restore([bytearray(part) for part in flatten(pickler.ruled, WholePickler)])
        if not is_like(pickler.ruled, again):
            raise pickle.PicklingError(f"pickling leaves out something of a {_names(pickler.ruled)}")
    return parts


def copied_exactly(batch: Any) -> tuple[Any, bool]:
    """Return a copy of a batch and False, or the batch and True if something would be lost.

    The batch itself changes if whoever made it fills it again.

    >>> scratch = [torch.zeros(2)]
    >>> copied, is_itself = copied_exactly(scratch)
    >>> scratch[0] += 1; copied, is_itself
    ([tensor([0., 0.])], False)
    """
    with suppress(TypeError, RecursionError):
        return snapshot(batch, strict=True), False
    with suppress(Exception):  # whatever a user's class raises
        return restore([bytearray(part) for part in flatten_exactly(batch)]), False
    return batch, True


def _names(values: list[Any]) -> str:
    return " or ".join(dict.fromkeys(type(value).__name__ for value in values))


def _dumped(sample: Any, kind: type[P]) -> tuple[P, list[memoryview]]:
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler = kind(sample, stream, protocol=5, buffer_callback=buffers.append)
    pickler.dump(sample)
    return pickler, [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]


# Of batches of plain tensors; these picklers write the same ones. (Whoever tells copyreg how to pickle torch's
# dtypes has to do so before.)
_streams = Streams()
_WITH_STREAMS = frozenset({SamplePickler, TorchPickler, ExactPickler})


def _dumped_as_before(sample: Any, kind: type[SamplePickler]) -> list[memoryview] | None:
    """Return the parts of a batch of plain tensors, pickling it only if none of its form has been; else None."""
    if kind not in _WITH_STREAMS or (kind is TorchPickler and registered()):
        return None
    known = form_of(sample, exactly=kind is ExactPickler)
    if known is None:
        return None
    form, memories = known
    stream = _streams.find(form)
    if stream is None:
        parts = _dumped(sample, kind)[1]
        _streams.keep(form, bytes(parts[0]))
        return parts
    return [memoryview(stream), *memories]


def serialize(sample: Any) -> list[Array]:
    """Return a sample as pieces of bytes, to be stored one after the other.

    Raises:
        Exception: the sample cannot be pickled.
    """
    parts = flatten_exactly(sample)
    lengths = np.array([len(parts), *map(len, parts)], np.int64)
    pieces = [lengths.view(np.uint8)]
    at = lengths.nbytes
    for part in parts:
        gap = -at % _ALIGNMENT
        pieces += [np.zeros(gap, np.uint8), np.frombuffer(part, np.uint8)] if len(part) else []
        at += (gap + len(part)) if len(part) else 0
    return pieces


def deserialize(memory: Array) -> Any:
    """Return the sample; its tensors and arrays are views of ``memory``, which they keep alive.

    >>> deserialize(np.concatenate(serialize({"x": torch.arange(3), "y": ("cat", 1)})))
    {'x': tensor([0, 1, 2]), 'y': ('cat', 1)}
    """
    count = int(memory[:8].view(np.int64)[0])
    lengths: Sequence[int] = memory[8 : 8 + 8 * count].view(np.int64).tolist()
    at = 8 + 8 * count
    parts = []
    for length in lengths:
        at += -at % _ALIGNMENT if length else 0
        parts.append(memory[at : at + length])
        at += length
    return restore([parts[0].data, *parts[1:]])
