"""The options of a loader that its batches depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from foreload.batch.failure import EpochErrors, OnError

if TYPE_CHECKING:
    from foreload.cache.loader_cache import LoaderCache

__all__ = ["BatchSpec"]


@dataclass(frozen=True)
class BatchSpec:
    """The options that decide how batches are made.

    Attributes:
        collate_fn: makes a batch of a list of samples (of one sample without automatic batching).
        auto_collation: whether samples are put together in batches; False for ``batch_size=None``.
        batch_size: samples per batch; None if a batch sampler of the user's own decides, or nothing does.
        drop_last: whether a last batch that is not full is left out.
        transform: applied to each sample after the cache.
        on_error: what is done about a sample that cannot be loaded.
        errors: where samples of the epoch that failed are recorded.
        pin_device: the kind of device that batches are page-locked for; None: they are not.
        device: where batches are delivered; None: as they were made.
        cache: of the loader; None without one, and in worker processes, whose dataset is a view through it.
        has_cache: whether the loader has a cache, or is about to make one.
        lookahead: whether the order of samples is known ahead of use, batch by batch.
        is_keyed: whether samples draw random numbers that are keyed by (seed, epoch, index).
        is_pure: whether loading a sample is known to change nothing in the dataset.
    """

    collate_fn: Callable[[Any], Any]
    auto_collation: bool = True
    batch_size: int | None = None
    drop_last: bool = False
    transform: Callable[[Any], Any] | None = None
    on_error: OnError = "raise"
    errors: EpochErrors = field(default_factory=EpochErrors)
    pin_device: str | None = None
    device: torch.device | None = None
    cache: LoaderCache | None = None
    has_cache: bool = False
    lookahead: bool = False
    is_keyed: bool = False
    is_pure: bool = False
