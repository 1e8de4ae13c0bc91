"""Who ends persistent workers."""

from __future__ import annotations

import weakref
from typing import Protocol

__all__ = ["PoolOwner"]


class Pool(Protocol):
    """Workers, of whichever kind."""

    def close(self) -> None:
        """End them."""


class PoolOwner:
    """Ends workers when nobody holds it any more: neither the loader nor an epoch that they work for.

    >>> class Workers:
    ...     def close(self): print("ended")
    >>> loader = PoolOwner(Workers()); epoch = loader
    >>> del loader
    >>> del epoch
    ended
    """

    def __init__(self, pool: Pool) -> None:
        # Also runs when the interpreter exits.
        self.close = weakref.finalize(self, pool.close)
