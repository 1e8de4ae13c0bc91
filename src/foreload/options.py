"""Values that several classes take."""

from __future__ import annotations

import operator
import os
import warnings
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal, SupportsIndex, get_args

from foreload.machine import granted_memory

__all__ = ["POLICIES", "Cache", "Keep", "LoadingMode", "OnError", "Policy", "parse_bytes"]

Keep = Literal["auto", "encoded", "decoded"]

# What is done about a sample that cannot be loaded.
OnError = Literal["raise", "skip", "replace"]

# A cache that takes all of the memory leaves none for what is done with the samples.
_MOST = 0.9


class LoadingMode(Enum):
    """When a dataset reads its samples, and what it keeps in memory."""

    LAZY = "lazy"
    """On demand; nothing is kept."""
    EAGER = "eager"
    """All at the start; all encoded samples are kept."""
    STREAMING = "streaming"
    """In constant memory, whatever the size of the data: map-style, in any order, and nothing is kept. The
    dataset's ``stream()`` reads in the order of storage instead, and shuffles through a buffer."""
    CACHED = "cached"
    """On demand; a fixed set of ``cache_size`` encoded samples is kept. Where every sample is asked for once per
    epoch, no policy keeps a better set of that size (each hit crosses an epoch's end)."""


_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}


def parse_bytes(amount: SupportsIndex | str, of: int | None = None, *, name: str = "budget") -> int:
    """Turn an amount of memory into bytes.

    Args:
        amount: a number of bytes, or text such as ``"8GiB"``, ``"500 MB"`` or ``"50%"``.
        of: what ``%`` is of; by default the memory that this process may use.
        name: what to call it in an error.

    Raises:
        ValueError: it is negative or no amount, or more than all of the memory.
        TypeError: it is neither an int nor a str.

    >>> parse_bytes("1.5KiB"), parse_bytes("2 MB"), parse_bytes("25%", of=400)
    (1536, 2000000, 100)
    """
    if not isinstance(amount, str):
        if isinstance(amount, bool) or not hasattr(amount, "__index__"):
            raise TypeError(f"{name} must be an int or a text such as '8GiB' or '50%', got {amount!r}")
        if operator.index(amount) < 0:
            raise ValueError(f"{name} must be 0 or more, got {amount}")
        return operator.index(amount)
    text = amount.strip().lower()
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz% ")
    unit = text[len(digits) :].strip()
    try:
        number = float(digits)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf") or not (unit == "%" or unit in _UNITS):
        raise ValueError(f"{name} must be bytes, or a text such as '8GiB', '500MB' or '50%', got {amount!r}")
    if unit == "%" and of is None and number > 100:
        raise ValueError(f"{name} must be at most 100% of the memory, got {amount!r}")
    if unit == "%":
        return int(number / 100 * (granted_memory() if of is None else of))
    return int(number * _UNITS[unit])


@dataclass(frozen=True)
class Cache:
    """How a :class:`~foreload.DataLoader` keeps samples.

    One cache per machine, in memory that all workers (and, under torch.distributed, all ranks of the machine)
    share. It holds samples as the dataset gives them, so what is random in them belongs into the loader's
    ``transform`` (images of an :class:`~foreload.ImageDataset` are kept as they are before its transform).

    Args:
        budget: bytes, or ``"8GiB"``, or ``"50%"`` of the memory that this process may use. Each sample takes its
            size, rounded up to 64 bytes, and 64 more; 0 keeps nothing.
        policy: ``"opt"``, the best possible for the order; or ``"fixed"``, ``"lru"``, ``"lfu"``, ``"fifo"``,
            ``"random"``, to compare with. See :func:`foreload.cache.plan.compile_plan`.
        keep: whether images are kept as their file's bytes or as pixels; ``"auto"`` decides for each image, by
            the time that this saves per byte.
        spill: a folder on a local disk for what memory does not hold. What a run leaves there is used by the next
            one with the same dataset.
        route: let ranks swap samples within each global batch, so that each goes to a rank that keeps it. Needs
            ``torch.utils.data.DistributedSampler``.
        share: one cache for all ranks of a machine; False: one for each.

    Raises:
        ValueError, TypeError: an argument makes no sense.

    >>> Cache("1GiB").bytes
    1073741824
    """

    budget: SupportsIndex | str
    policy: Policy = "opt"
    keep: Keep = "auto"
    spill: str | Path | None = None
    route: bool = False
    share: bool = True

    def __post_init__(self) -> None:
        """Check the arguments."""
        wanted = parse_bytes(self.budget, name="cache budget")
        if self.policy not in POLICIES:
            raise ValueError(f"cache policy must be one of {', '.join(POLICIES)}, got {self.policy!r}")
        if self.keep not in get_args(Keep):
            raise ValueError(f"cache keep must be one of {', '.join(get_args(Keep))}, got {self.keep!r}")
        if self.spill is not None and not isinstance(self.spill, (str, os.PathLike)):
            raise TypeError(f"cache spill must be a folder, got {self.spill!r}")
        most = int(_MOST * granted_memory())
        if wanted > most:
            warnings.warn(
                f"the cache's budget of {wanted:,} bytes is more than this process may use; it gets {most:,} "
                f"bytes, {_MOST:.0%} of its memory. Give a smaller budget, or the container more memory",
                stacklevel=4,
            )

    @property
    def bytes(self) -> int:
        """The budget in bytes, at most what this process may use."""
        return min(parse_bytes(self.budget), int(_MOST * granted_memory()))

    @classmethod
    def of(cls, cache: Cache | int | str) -> Cache:
        """Take a budget for a whole configuration."""
        return cache if isinstance(cache, cls) else cls(cache)  # type: ignore[arg-type]


Policy = Literal["opt", "fixed", "lru", "lfu", "fifo", "random"]


POLICIES: tuple[Policy, ...] = get_args(Policy)
