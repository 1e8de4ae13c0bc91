"""Private copies of what a dataset shares between processes, for a fork that only measures."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from foreload.dataset_state.walk import walk

__all__ = ["unshare"]

# Larger tensors and arrays are data; what changes by loading, a counter or a flag, is small.
_MOST_BYTES = 1 << 20


def unshare(part: Any) -> None:
    """Replace shared memory by copies in this process, so that what loading changes is not seen in others.

    Args:
        part: a dataset, or what is applied to its samples.

    >>> calls = torch.zeros(1).share_memory_()
    >>> dataset = [calls]; others = calls.view(1)
    >>> unshare(dataset); calls += 1
    >>> int(calls), int(others)
    (1, 0)
    """
    from multiprocessing.sharedctypes import SynchronizedBase  # only a program that shares something has it

    for _, value in list(walk(part)):
        found: Any = value
        with suppress(Exception):  # tensors of other devices or layouts share nothing here
            if isinstance(found, torch.Tensor) and found.is_shared() and found.nbytes <= _MOST_BYTES:  # type: ignore[no-untyped-call]
                found.data = found.detach().clone()
            elif isinstance(found, SynchronizedBase):
                shared: Any = found
                if memoryview(shared._obj).nbytes <= _MOST_BYTES:
                    shared._obj = type(shared._obj).from_buffer_copy(shared._obj)
