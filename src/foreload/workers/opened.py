"""The cache, the memory of batches and the seed that a loader keeps from one epoch to the next."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from foreload.batch.buffers import Buffers
from foreload.cache.view import has_two_stages
from foreload.cache.wrappers import parts_of, root_of
from foreload.checks import held
from foreload.dataset_state.between_epochs.probe import BetweenEpochs
from foreload.errors import warn_user
from foreload.protocol import NativeBatches

if TYPE_CHECKING:
    from foreload.cache.loader_cache import CacheSpec, LoaderCache

__all__ = ["Opened"]

_CHANGED = (
    "{!r}, which the dataset reads, was set since its last epoch, so the cache drops its samples: they might not "
    "be what the dataset gives now. What changes with the epoch is best given to DataLoader(transform=...), which "
    "is applied after the cache"
)


@dataclass
class Opened:
    """The cache, buffers and seed of a loader that are open.

    Attributes:
        cache: of samples.
        buffers: the memory of batches.
        base_seed: of persistent workers.
        changes: of the dataset, of which the cache has samples.
    """

    cache: LoaderCache | None = None
    buffers: Buffers | None = None
    base_seed: int | None = None
    changes: BetweenEpochs | None = None

    def keep(self, cache: LoaderCache, spec: CacheSpec) -> None:
        """Use a cache, beginning with the next epoch."""
        _warn_of_transform(root_of(spec.dataset))
        self.cache, self.changes = cache, BetweenEpochs(root_of(spec.dataset))

    def drop_outdated(self, *, has_copies: bool) -> None:
        """Drop the cache if the script has set something in the dataset since its last epoch.

        Args:
            has_copies: whether workers are there that go on with copies of the dataset, as it was.
        """
        if self.cache is None or self.changes is None or has_copies:
            return
        name = self.changes.changed()
        if name is not None:
            # Not emptied: workers of an epoch that was left may still be about to keep a sample.
            self.cache.store.leave_spill()
            self.cache = None
            warn_user(_CHANGED.format(name))

    def shared(self) -> Opened:
        """Return what another loader may use too: the base seed is that of this loader's workers."""
        return self if self.base_seed is None else replace(self, base_seed=None)

    def memory(self, *, pin: bool, keep: int) -> Buffers:
        """Return the memory of batches, made when it is first needed; see :class:`Buffers`."""
        # After a fork, a thread of the parent may hold their lock.
        if self.buffers is None or self.buffers.process != os.getpid():
            self.buffers = Buffers(pin=pin, keep=keep)
        return self.buffers


def _warn_of_transform(dataset: Any) -> None:
    """Warn if the dataset has a transform of its own, whose result would be cached."""
    if has_two_stages(dataset) or (isinstance(dataset, NativeBatches) and dataset.is_held):
        return  # its transform comes after the cache, or nothing is kept
    for part in parts_of(dataset):
        for name in ("transform", "transforms"):
            if held(part, name) is not None:
                warn_user(
                    f"the cache keeps samples as {type(part).__name__} gives them, after its own '{name}'; if "
                    "that is random, give it to DataLoader(transform=...) instead, which comes after the cache"
                )
                return
