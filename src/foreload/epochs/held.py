"""Tensors that worker threads load from while the loop may write to them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from foreload._torch import tensor_version
from foreload.cache.view import parts_of
from foreload.datasets.rows import fields_of
from foreload.errors import warn_user

__all__ = ["HeldTensors"]

# Of a list of tensors, which may be long. All views of one tensor count its changes together.
_MOST_OF_A_LIST = 64


class HeldTensors:
    """The tensors of a dataset as they were when an epoch began, which tells whether they have been changed since.

    Worker processes of torch's have a copy of them from that moment. Threads see them as they are when a batch is
    made, which is at no certain moment.

    Args:
        dataset: a dataset of tensors, or one that is made of such; of others nothing is known.

    >>> tensor = torch.zeros(4)
    >>> held = HeldTensors([tensor])
    >>> held.have_changed(), tensor.add_(1).sum().item(), held.have_changed()
    (False, 4.0, True)
    """

    def __init__(self, dataset: Any) -> None:
        self._versions = [(tensor, tensor_version(tensor)) for tensor in _tensors_of(dataset)]
        self._has_warned = False

    def have_changed(self) -> bool:
        """Whether torch has written to one of them."""
        return any(tensor_version(tensor) != version for tensor, version in self._versions)

    def warn(self) -> None:
        """Warn, once, if they have changed."""
        if not self._has_warned and self.have_changed():
            self._has_warned = True
            warn_user(
                "the tensors of the dataset, or others in the same memory, were changed while worker threads load "
                "from them, so a batch may show the data before or after the change; torch's workers show that of "
                "the epoch's beginning. Change them between epochs, copy them first, or use workers='processes'"
            )


def _tensors_of(dataset: Any) -> Iterator[torch.Tensor]:
    for part in parts_of(dataset):
        items = itertools.islice(part, _MOST_OF_A_LIST) if type(part) in (list, tuple) else fields_of(part)[0]
        yield from (item for item in items if isinstance(item, torch.Tensor))
