"""Values that several classes take."""

from __future__ import annotations

from enum import Enum

__all__ = ["LoadingMode"]


class LoadingMode(Enum):
    """When a dataset reads its samples, and what it keeps in memory."""

    LAZY = "lazy"
    """On demand; nothing is kept."""
    EAGER = "eager"
    """All at the start; all encoded samples are kept."""
    STREAMING = "streaming"
    """In constant memory, whatever the size of the data. Files that can be opened one by one need nothing more
    than ``LAZY`` for that: every worker and rank is asked for its own samples only, in a fully shuffled order."""
    CACHED = "cached"
    """On demand; a fixed set of ``cache_size`` encoded samples is kept. Where every sample is asked for once per
    epoch, no policy keeps a better set of that size (each hit crosses an epoch's end)."""
