"""Batches of a few plain tensors, of which the pickle stream is kept: only their memory differs each time."""

from __future__ import annotations

from collections.abc import Collection
from pickle import PickleBuffer
from typing import Any

import torch

from foreload.nested.memory import is_packed
from foreload.nested.tensors import NUMPY_DTYPES, is_plain

__all__ = ["Form", "Streams", "form_of"]

# What tells batches apart whose pickle streams differ.
Form = tuple[Any, ...]

# To look at more tensors than this takes about as long as to pickle them.
_MOST_TENSORS = 16

# Batches of ragged lengths have a form each.
_MOST_FORMS = 64


def form_of(batch: Any, *, exactly: bool) -> tuple[Form, list[memoryview]] | None:
    """Return the form of a batch, and the memory of its tensors; None unless it is of plain tensors alone.

    That is a tensor, or a tuple, list or dict of them, each of which fills a memory of its own.

    Args:
        batch: the batch.
        exactly: whether nothing may be left out that a tensor has beside its numbers.

    >>> form, memories = form_of([torch.zeros(2, 3)], exactly=True)
    >>> form, memories[0].nbytes
    ((<class 'list'>, (torch.float32, torch.Size([2, 3]))), 24)
    >>> form_of([torch.zeros(2, 3)[0]], exactly=True), form_of([1], exactly=True)
    (None, None)
    """
    kind = type(batch)
    tensors: Collection[Any]
    form: list[Any] = [kind]
    if kind is torch.Tensor:
        tensors = (batch,)
    elif kind is dict:
        if set(map(type, batch)) != {str}:
            return None
        form += batch
        tensors = batch.values()
    elif kind is list or kind is tuple:
        tensors = batch
    else:
        return None
    if not 0 < len(tensors) <= _MOST_TENSORS:
        return None
    memories: list[memoryview] = []
    places = set()
    for tensor in tensors:
        if type(tensor) is not torch.Tensor or not is_plain(tensor) or tensor.dtype not in NUMPY_DTYPES:
            return None
        if exactly and (tensor.is_inference() or tensor.grad is not None):
            return None
        storage, size = tensor.untyped_storage(), tensor.nbytes
        if not size or storage.nbytes() != size or tensor.storage_offset() or not is_packed(tensor):
            return None
        places.add(storage.data_ptr())
        form.append((tensor.dtype, tensor.shape))
        memories.append(PickleBuffer(tensor.numpy().data).raw())
    return (tuple(form), memories) if len(places) == len(memories) else None


class Streams:
    """The pickle streams of batches by their form, those of the latest few forms.

    >>> streams = Streams()
    >>> streams.keep("a form", b"stream"); streams.find("a form"), streams.find("another")
    (b'stream', None)
    """

    def __init__(self) -> None:
        self._all: dict[Any, bytes] = {}

    def find(self, form: Any) -> bytes | None:
        """Return the stream of a form if it is kept."""
        return self._all.get(form)

    def keep(self, form: Any, stream: bytes) -> None:
        """Keep the stream of a form."""
        if len(self._all) >= _MOST_FORMS:
            self._all = {}
        self._all[form] = stream
