"""Serialisation of samples: the memory of tensors and arrays is copied as it is, the rest is pickled."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from foreload.checks import Array

__all__ = ["deserialize", "flatten", "restore", "serialize"]

_ALIGNMENT = 64


class _Pickler(pickle.Pickler):
    """A pickler that keeps the memory of tensors out of the stream, as numpy does for arrays."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or not _plain(value):
            return NotImplemented
        rows = value.contiguous()
        memory = rows.view(-1).view(torch.uint8) if rows.numel() else torch.empty(0, dtype=torch.uint8)
        return _tensor, (pickle.PickleBuffer(memory.numpy().data), value.dtype, tuple(value.shape))


def _plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
    )


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(np.frombuffer(memory, np.uint8)).view(dtype).view(shape)


def flatten(sample: Any) -> list[memoryview]:
    """Return a sample as a pickle stream and the memory of its tensors and arrays, which is not copied.

    Raises:
        Exception: the sample cannot be pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(sample)
    return [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]


def restore(parts: Sequence[Any]) -> Any:
    """Return the sample of :func:`flatten`'s parts; its tensors and arrays are views of these."""
    return pickle.loads(parts[0], buffers=parts[1:])


def serialize(sample: Any) -> list[Array]:
    """Return a sample as pieces of bytes, to be stored one after the other.

    Raises:
        Exception: the sample cannot be pickled.
    """
    parts = flatten(sample)
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
