"""What a loader opens and makes again after it was closed, copied, pickled or forked."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from foreload.batch.buffers import Buffers
from foreload.cache.loader_cache import LoaderCache

__all__ = ["Opened"]


@dataclass
class Opened:
    """What is open of a loader.

    Attributes:
        cache: of samples.
        buffers: the memory of batches.
        base_seed: of persistent workers.
    """

    cache: LoaderCache | None = None
    buffers: Buffers | None = None
    base_seed: int | None = None

    def shared(self) -> Opened:
        """Return what another loader may use too: the base seed is that of this loader's workers."""
        return self if self.base_seed is None else replace(self, base_seed=None)

    def memory(self, *, pin: bool, keep: int) -> Buffers:
        """Return the memory of batches, made when it is first needed; see :class:`Buffers`."""
        # After a fork, a thread of the parent may hold their lock.
        if self.buffers is None or self.buffers.process != os.getpid():
            self.buffers = Buffers(pin=pin, keep=keep)
        return self.buffers
