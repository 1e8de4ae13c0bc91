"""NVTX ranges around a loop's waits, which Nsight Systems shows beside the GPU's work."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

__all__ = ["NVTXRanges", "nvtx_ranges"]

_Range = Callable[[str], AbstractContextManager[Any]]


class NVTXRanges:
    """A loader with NVTX ranges; see :func:`nvtx_ranges`. Attributes of the loader are available here too."""

    def __init__(self, loader: Iterable[Any], mark: _Range) -> None:
        self.loader = loader
        self._mark = mark

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch."""
        with self._mark("foreload: begin"):
            batches = iter(self.loader)
        return _marked(batches, self._mark)

    def __len__(self) -> int:
        """Return the number of batches, if the loader knows it."""
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the loader."""
        if name.startswith("__") or "loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.loader, name)


def _marked(batches: Iterator[Any], mark: _Range) -> Iterator[Any]:
    while True:
        with mark("foreload: wait"):
            try:
                batch = next(batches)
            except StopIteration:
                return
        yield batch
        del batch  # its memory can be reused while this waits


def nvtx_ranges(loader: Iterable[Any]) -> NVTXRanges:
    """Show in Nsight Systems when the loop waits for a batch.

    Iterate over the result instead of the loader (any loader, torch's too). The row of the loop's thread gets
    ranges ``foreload: begin`` (an epoch starts its workers) and ``foreload: wait``; between them is the loop's own
    work. Ranges come from torch, or from the ``nvtx`` package if torch has no CUDA; without either, a
    RuntimeWarning says that nothing is marked.

    Raises:
        TypeError: ``loader`` cannot be iterated.

    >>> [batch for batch in nvtx_ranges([1, 2])]
    [1, 2]
    """
    if not hasattr(loader, "__iter__"):
        raise TypeError(f"loader must be iterable, got {type(loader).__name__}")
    return NVTXRanges(loader, _range())


def _range() -> _Range:
    if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return torch.cuda.nvtx.range
    try:
        from nvtx import annotate
    except ImportError:
        warnings.warn(
            "nvtx_ranges marks nothing: this torch has no CUDA, and the nvtx package is not installed "
            "(pip install nvtx)",
            RuntimeWarning,
            stacklevel=3,
        )
        return lambda _: nullcontext()
    return annotate  # type: ignore[no-any-return]
