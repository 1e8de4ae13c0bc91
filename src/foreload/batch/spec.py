"""What assemblies, epochs and workers need to know of a loader to make its batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from foreload.batch.failure import OnError, SampleError
from foreload.cache.store import SampleStore
from foreload.checks import Array

__all__ = ["BatchSpec", "SampleCache"]


class SampleCache(Protocol):
    """The loader's cache, as far as native code uses it."""

    @property
    def store(self) -> SampleStore:
        """The samples that are kept."""
        ...

    @property
    def forms(self) -> Array:
        """For each image of an image dataset, how it is kept (uint8); see :mod:`foreload.cache.forms`."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return figures since the start."""
        ...


@dataclass(frozen=True)
class BatchSpec:
    """How the batches of a loader are made.

    Attributes:
        collate_fn: makes a batch of a list of samples (of one sample without automatic batching).
        auto_collation: whether samples are put together in batches; False for ``batch_size=None``.
        batch_size: samples per batch; None where a batch sampler of the user's, or nobody, decides it.
        drop_last: whether a last batch that is not full is left out.
        transform: applied to each sample after the cache.
        on_error: what is done about a sample that cannot be loaded.
        errors: takes up the samples that failed.
        pin_device: the kind of device that batches are page-locked for; None: they are not.
        cache: of the loader; None where there is none, and in worker processes, which see the dataset through it.
        lookahead: whether the order of samples is known ahead of use, batch by batch.
    """

    collate_fn: Callable[[Any], Any]
    auto_collation: bool = True
    batch_size: int | None = None
    drop_last: bool = False
    transform: Callable[[Any], Any] | None = None
    on_error: OnError = "raise"
    errors: list[SampleError] = field(default_factory=list)
    pin_device: str | None = None
    cache: SampleCache | None = None
    lookahead: bool = False
