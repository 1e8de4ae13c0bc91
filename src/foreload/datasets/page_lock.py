"""Memory that a tensor lies in already, page-locked for copies to a GPU."""

from __future__ import annotations

import os
import warnings
import weakref
from contextlib import suppress

import torch

from foreload._torch import is_forked_from_cuda

__all__ = ["can_page_lock", "page_lock"]


def can_page_lock() -> bool:
    """Return whether this process may use CUDA: one that was forked from another that does may not."""
    return torch.cuda.is_available() and not is_forked_from_cuda()


def page_lock(tensor: torch.Tensor) -> None:
    """Page-lock the memory of a tensor's storage until the last tensor over it is gone; warn if CUDA cannot.

    Raises:
        RuntimeError: there is no CUDA, or this process may not use it.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("pin=True needs CUDA, and there is none; leave pin=None to pin only if it helps")
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0 or tensor.is_pinned():
        return
    address = storage.data_ptr()
    code = int(torch.cuda.cudart().cudaHostRegister(address, storage.nbytes(), 0))  # type: ignore[no-untyped-call]
    if code != 0:
        _take_error()
        warnings.warn(f"CachedDataset: memory could not be page-locked (CUDA error {code})", stacklevel=5)
        return
    # CUDA would go on to copy from these pages whatever is mapped at their address later.
    weakref.finalize(storage, _unlock, address, os.getpid()).atexit = False


def _unlock(address: int, process: int) -> None:
    if process == os.getpid():  # a forked process has the memory, but not CUDA
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def _take_error() -> None:
    """Launch a kernel, for CUDA reports a call that failed once more after the next one that is launched."""
    with suppress(RuntimeError):
        torch.ones(1, device="cuda")
