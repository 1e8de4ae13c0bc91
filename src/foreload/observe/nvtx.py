"""NVTX ranges, which Nsight Systems shows beside the GPU's work; nothing where there is no NVTX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

__all__ = ["Marker", "NVTXRanges", "marker", "nvtx_ranges", "span"]


class Marker(Protocol):
    """What marks ranges of time: ``torch.cuda.nvtx``, or what has its functions."""

    def range_start(self, msg: str) -> Any:
        """Begin a range, and give what ends it."""
        ...

    def range_end(self, range_id: Any) -> None:
        """End a range, in any thread."""
        ...


class _Nothing:
    def range_start(self, msg: str) -> None: ...

    def range_end(self, range_id: None) -> None: ...


class _Package:
    """The ``nvtx`` package, for a torch without CUDA."""

    def __init__(self, nvtx: Any) -> None:
        self._nvtx = nvtx

    def range_start(self, msg: str) -> Any:
        return self._nvtx.start_range(message=msg)

    def range_end(self, range_id: Any) -> None:
        self._nvtx.end_range(range_id)


def marker() -> Marker:
    """Give what marks ranges here: torch's NVTX, the ``nvtx`` package's, or nothing that does nothing."""
    if torch.cuda.is_available():
        return torch.cuda.nvtx
    try:
        import nvtx
    except ImportError:
        return _Nothing()
    return _Package(nvtx)


@contextmanager
def span(mark: Marker, name: str) -> Iterator[None]:
    """Mark the time of a block.

    >>> with span(marker(), "decode"):
    ...     pass
    """
    range_id = mark.range_start(name)
    try:
        yield
    finally:
        mark.range_end(range_id)


class NVTXRanges:
    """A loader whose epochs are marked; see :func:`nvtx_ranges`. What the loader has is found here too."""

    def __init__(self, loader: Iterable[Any], mark: Marker) -> None:
        self.loader = loader
        self._mark = mark

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch."""
        return _marked(self.loader, self._mark)

    def __len__(self) -> int:
        """Count the batches, where the loader knows."""
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """Give the loader's own attribute."""
        if name.startswith("__") or "loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.loader, name)


def _marked(loader: Iterable[Any], mark: Marker) -> Iterator[Any]:
    with span(mark, "foreload: begin"):
        batches = iter(loader)
    number = 0
    while True:
        with span(mark, f"foreload: wait {number}"):
            try:
                batch = next(batches)
            except StopIteration:
                return
        with span(mark, f"foreload: loop {number}"):
            yield batch
        del batch  # its memory is free for another one while this waits
        number += 1


def nvtx_ranges(loader: Iterable[Any]) -> NVTXRanges:
    """Mark for Nsight Systems when the loop waits for a batch, and when it works on one.

    Iterate over what this gives instead of over the loader: any loader, also torch's. The ranges are called
    ``foreload: wait N`` and ``foreload: loop N``; they cost about a microsecond each, and nothing where there is
    neither a GPU nor the ``nvtx`` package.

    Raises:
        TypeError: ``loader`` cannot be iterated.

    >>> [batch for batch in nvtx_ranges([1, 2])]
    [1, 2]
    """
    if not hasattr(loader, "__iter__"):
        raise TypeError(f"loader must be something to iterate over, got {type(loader).__name__}")
    return NVTXRanges(loader, marker())
