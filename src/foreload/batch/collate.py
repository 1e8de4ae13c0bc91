"""Torch's ``default_collate`` writing into reused buffers."""

from __future__ import annotations

import math
import operator
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from foreload._torch import has_plain_tensors, is_defined_in, torch_collate, torch_pin
from foreload.batch.collated import Collated, collate_collated, takes_whole
from foreload.batch.generators.threads import passes_generator, without_torch_generator
from foreload.errors import warn_user
from foreload.nested.long_rows import Take, TorchPace, copied_rows, fresh_rows, is_copied_by_threads
from foreload.protocol import BatchMemory

__all__ = [
    "MIN_BORROWED_BYTES",
    "MIN_LENT_BYTES",
    "added_functions",
    "collate_into",
    "is_converted",
    "is_default_collate",
    "lending",
    "new_tensor",
    "pin_device",
    "pinned",
    "stack",
    "warn_of_pinning",
]

# What ``default_collate_fn_map`` has from torch itself.
_TORCH_FUNCTIONS: dict[Any, Any] = {
    torch.Tensor: torch_collate.collate_tensor_fn,
    np.ndarray: torch_collate.collate_numpy_array_fn,
    (np.bool_, np.number, np.object_): torch_collate.collate_numpy_scalar_fn,
    float: torch_collate.collate_float_fn,
    int: torch_collate.collate_int_fn,
    str: torch_collate.collate_str_fn,
    bytes: torch_collate.collate_str_fn,
}

# Below this, a fresh allocation is cheaper than borrowing a buffer.
MIN_BORROWED_BYTES = 64 << 10

# Below this, borrowing a buffer for a batch that the loop's own thread makes takes longer than what that saves:
# the C library keeps the memory of the batches before.
MIN_LENT_BYTES = 1 << 20

_kind = attrgetter("layout", "is_cpu", "requires_grad", "is_nested", "dtype")
_shape = attrgetter("shape")


# Types of samples, and of their parts, that native code collates.
_NATIVE_TYPES = (torch.Tensor, np.ndarray, tuple, list, dict, str, bytes, float, int, bool)


def is_default_collate(collate_fn: Callable[[Any], Any]) -> bool:
    """Whether ``collate_fn`` is torch's default one, with torch's own functions for plain types."""
    return _judged.is_default(collate_fn)


def is_converted(collate_fn: Callable[[Any], Any], samples: Any) -> bool:
    """Whether a function leaves all parts of its argument as they are, or makes tensors of them, and no more.

    >>> is_converted(torch_collate.default_convert, (np.ones(3), 2)), is_converted(list, [[], {}])
    (True, True)
    >>> is_converted(torch_collate.default_collate, [2]), is_converted(tuple, iter([2]))
    (False, False)
    """
    kind = type(samples)
    if collate_fn is torch_collate.default_convert:
        parts = samples.values() if kind is dict else samples
        return kind in _CONVERTED or (kind in (tuple, list, dict) and _CONVERTED.issuperset(map(type, parts)))
    return kind is list and (collate_fn is list or collate_fn is tuple)


_CONVERTED = frozenset({torch.Tensor, np.ndarray, int, float, str, bytes, bool, type(None)})


class _Judged:
    """The collate functions last found to be torch's own, by identity, since epochs ask often.

    A negative answer is not remembered: it might keep the user's code alive.
    """

    def __init__(self) -> None:
        self._last: list[Any] = []

    def is_default(self, collate_fn: Callable[[Any], Any]) -> bool:
        functions = torch_collate.default_collate_fn_map
        present = [collate_fn, torch_collate.collate, *functions, *functions.values()]
        known = self._last
        if len(known) == len(present) and all(map(operator.is_, known, present)):
            return True
        answer = _is_default_collate(collate_fn)
        if answer:
            self._last = present
        return answer


_judged = _Judged()


def _is_default_collate(collate_fn: Callable[[Any], Any]) -> bool:
    functions = torch_collate.default_collate_fn_map
    is_torchs = is_defined_in(torch_collate, collate_fn) and collate_fn.__name__ == "default_collate"
    return (
        is_torchs
        and is_defined_in(torch_collate, torch_collate.collate)
        and _TORCH_FUNCTIONS.items() <= functions.items()
        and not any(_takes_plain(kind) for kind, function in functions.items() if _is_added(function))
    )


def added_functions() -> list[Callable[..., Any]]:
    """Return the functions of the user's that ``default_collate`` calls for types that they were added for."""
    return [function for function in torch_collate.default_collate_fn_map.values() if _is_added(function)]


def _is_added(function: Any) -> bool:
    return function is not collate_collated and not is_defined_in(torch_collate, function)


def _takes_plain(kind: Any) -> bool:
    """Whether a key of the map stands for some of the types that native code collates."""
    try:
        return any(issubclass(plain, kind) for plain in _NATIVE_TYPES) or issubclass(
            kind, (np.generic, np.ndarray)
        )
    except TypeError:  # a tuple of types
        return True


class _Lending(threading.local):
    buffers: BatchMemory | None = None


_lending = _Lending()


@contextmanager
def lending(buffers: BatchMemory) -> Iterator[None]:
    """Let :func:`new_tensor` and :func:`stack` take memory from ``buffers`` in this thread."""
    before, _lending.buffers = _lending.buffers, buffers
    try:
        yield
    finally:
        _lending.buffers = before


def new_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor for a batch, in the loader's memory if a loader collates and it is large."""
    buffers = _lending.buffers
    size = math.prod(shape) * dtype.itemsize
    if buffers is None or size < MIN_BORROWED_BYTES:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return buffers.take(shape, dtype)


def stack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack tensors as torch does, into memory from :func:`new_tensor` if they are ordinary ones."""
    first = tensors[0]
    if _lending.buffers is None or not _are_ordinary(tensors, first):
        plain: torch.Tensor = torch_collate.default_collate(list(tensors))  # type: ignore[no-untyped-call]
        return plain
    return _stacked(tensors, first, new_tensor)


def collate_into(buffers: BatchMemory, *, is_required: bool = False) -> Callable[[Any], Any]:
    """Return a ``default_collate`` that stacks large tensors into ``buffers``.

    Types that users added to torch's ``default_collate_fn_map`` keep working.

    Args:
        buffers: memory for the batches.
        is_required: whether a batch elsewhere would be copied once more.
    """
    pace = TorchPace()

    def stack(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
        first = batch[0]
        is_left = type(first) is torch.Tensor and not is_required and _is_left_to_torch(batch, first)
        is_long = pace.is_slow and is_copied_by_threads(first)
        is_ordinary = (not is_left or is_long) and has_plain_tensors() and _are_ordinary(batch, first)
        if is_long and is_ordinary:
            copied = copied_rows(batch, fresh_rows if is_left else buffers.take)
            if copied is not None:
                return copied
        began = time.perf_counter()
        stacked = by_torch(batch, collate_fn_map) if is_left or not is_ordinary else None
        stacked = _stacked(batch, first, buffers.take) if stacked is None else stacked
        pace.note(first, len(batch), time.perf_counter() - began)
        return stacked

    def by_torch(batch: Sequence[torch.Tensor], functions: Any) -> torch.Tensor:
        first = batch[0]
        if _are_cast_by_workers(batch, first):
            fresh = torch.empty((len(batch), *first.shape), dtype=first.dtype, device="cpu")
            return torch.stack(list(batch), out=fresh)
        result: torch.Tensor = torch_collate.collate_tensor_fn(batch, collate_fn_map=functions)
        return result

    own: dict[Any, Any] = {torch.Tensor: _without_draws(torch.Tensor, stack), np.ndarray: _collate_arrays}

    def collate(batch: Any) -> Any:
        functions = torch_collate.default_collate_fn_map
        if isinstance(batch, Collated) and takes_whole(functions):
            return batch.batch
        present = {
            kind: function for kind, function in own.items() if functions.get(kind) is _TORCH_FUNCTIONS[kind]
        }
        return torch_collate.collate(batch, collate_fn_map={**functions, **present})

    return collate


def _without_draws(kind: type, collate: Callable[..., Any]) -> Callable[..., Any]:
    """Return a collate function that torch's functions are told of no generator in, as far as it is for ``kind``.

    Nothing of the user's runs for samples of this very type, so nothing draws.
    """

    def collate_without_draws(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
        if not passes_generator() or set(map(type, batch)) != {kind}:
            return collate(batch, collate_fn_map=collate_fn_map)
        with without_torch_generator():
            return collate(batch, collate_fn_map=collate_fn_map)

    return collate_without_draws


_collate_arrays = _without_draws(np.ndarray, torch_collate.collate_numpy_array_fn)


def _stacked(
    tensors: Sequence[torch.Tensor],
    first: torch.Tensor,
    take: Take,
) -> torch.Tensor:
    """Stack ordinary tensors as torch does, into memory from ``take`` if they are large."""
    shape = (len(tensors), *first.shape)
    is_large = first.numel() * first.element_size() * len(tensors) >= MIN_BORROWED_BYTES
    has_format = first.ndim in (4, 5) and not first.is_contiguous()
    # Torch keeps a memory format without workers only. (In a worker, it would open a file for each batch.)
    if (has_format or not is_large) and torch.utils.data.get_worker_info() is None:
        return torch.stack(list(tensors))
    fresh = take(shape, first.dtype) if is_large else torch.empty(shape, dtype=first.dtype, device="cpu")
    return torch.stack(list(tensors), out=fresh)


def _is_left_to_torch(batch: Sequence[torch.Tensor], first: torch.Tensor) -> bool:
    """Whether torch stacks a batch faster. (In a worker, it would open a file for each.)"""
    is_small = first.numel() * first.element_size() * len(batch) < MIN_LENT_BYTES
    return is_small and torch.utils.data.get_worker_info() is None


def _are_cast_by_workers(batch: Sequence[torch.Tensor], first: torch.Tensor) -> bool:
    """Whether torch's workers give a batch the dtype of its first tensor; without them, all of them decide it."""
    if torch.utils.data.get_worker_info() is None or set(map(type, batch)) != {torch.Tensor}:
        return False
    return {_kind(tensor)[:-1] for tensor in batch} == {(torch.strided, True, False, False)}


def _are_ordinary(batch: Sequence[torch.Tensor], first: torch.Tensor) -> bool:
    # Torch does everything else, and raises the error if the tensors do not fit together.
    # Sets over whole batches, since a Python expression for each tensor takes longer than to stack small ones.
    # Types come first, since only a plain tensor's attributes are known to be its own; a nested one has no shape.
    return (
        set(map(type, batch)) == {torch.Tensor}
        and set(map(_kind, batch)) == {(torch.strided, True, False, False, first.dtype)}
        and not first.is_quantized  # as its dtype says, which is that of all
        and len(set(map(_shape, batch))) == 1
    )


def pin_device() -> str | None:
    """Return the kind of device that memory can be page-locked for; None without one."""
    if not torch.accelerator.is_available():
        return None
    accelerator = torch.accelerator.current_accelerator()
    return None if accelerator is None or accelerator.type == "mps" else accelerator.type


def pinned(batch: Any, device: str | None) -> Any:
    """Return a copy of a batch in page-locked memory for ``device``, as torch makes it; for None, the batch."""
    return batch if device is None else torch_pin.pin_memory(batch, device)  # type: ignore[no-untyped-call]


def warn_of_pinning(device: str) -> None:
    """Warn, as torch does, that ``device`` is deprecated as pin_memory_device, or that there is no accelerator."""
    if device:
        why = "pin_memory_device is deprecated, the current accelerator will be used as the device"
        warn_user(f"{why},ignore pin_memory_device={device!r}.")
    if not torch.accelerator.is_available():
        warn_user(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used."
        )
