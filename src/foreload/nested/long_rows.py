"""Samples of many numbers, which torch copies to their batch by several threads each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from foreload import _native

__all__ = ["Take", "TorchPace", "copied_rows", "fresh_rows", "is_copied_by_threads"]

# Returns memory for a batch.
Take = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]

# Torch copies tensors of more numbers by several threads.
_MOST_BY_ONE_THREAD = 1 << 15

_COPIED = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool}
    | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
)


class TorchPace:
    """The pace of torch's threads at copying long rows, in which they may get in each other's way.

    Threads that have done their share wait in a loop for the others, which do not get on where several processes
    share the cores: a batch of 11 MB then takes a quarter of a second instead of a millisecond.

    Attributes:
        is_slow: whether that has been seen.

    >>> pace = TorchPace(); pace.note(torch.zeros(1 << 20), 8, seconds=0.001); pace.is_slow
    False
    """

    _LEAST_BYTES_PER_SECOND = 5e8  # which memory that is used for the first time does not come below

    def __init__(self) -> None:
        self.is_slow = False

    def note(self, first: torch.Tensor, count: int, seconds: float) -> None:
        """Note how long torch has taken to copy some tensors of the first one's kind."""
        if not self.is_slow and is_copied_by_threads(first) and torch.get_num_threads() > 1:
            size = first.numel() * first.element_size() * count
            self.is_slow = size < self._LEAST_BYTES_PER_SECOND * seconds


def is_copied_by_threads(tensor: torch.Tensor) -> bool:
    """Whether torch copies such a tensor by several threads; of other classes, whose own code would run, no."""
    return type(tensor) is torch.Tensor and tensor.numel() > _MOST_BY_ONE_THREAD and tensor.dtype in _COPIED


def fresh_rows(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return new memory for a batch."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def copied_rows(tensors: Sequence[torch.Tensor], take: Take) -> torch.Tensor | None:
    """Return ordinary tensors of one shape as a batch; None if their numbers do not lie in memory as they are.

    >>> copied_rows([torch.ones(3), torch.zeros(3)], fresh_rows)
    tensor([[1., 1., 1.],
            [0., 0., 0.]])
    """
    first = tensors[0]
    if any(map(torch.Tensor.is_neg, tensors)) or not all(map(torch.Tensor.is_contiguous, tensors)):
        return None
    addresses = np.fromiter(map(torch.Tensor.data_ptr, tensors), np.int64, len(tensors))
    if not addresses.all():  # tensors of zeros that take no memory
        return None
    fresh = take((len(tensors), *first.shape), first.dtype)
    # (Memory that NumPy has had could not be resized.)
    _native.copy_rows(addresses, first.nbytes, fresh.data_ptr(), torch.get_num_threads())
    return fresh
