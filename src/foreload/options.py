"""Values of arguments that several classes take: loading modes, amounts of memory, the cache's options."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal, Never, SupportsIndex, get_args

from foreload.checks import Array, Indices, check_bool, check_int
from foreload.machine import granted_memory

__all__ = [
    "POLICIES",
    "Cache",
    "Keep",
    "LoadingMode",
    "OnError",
    "Policy",
    "PolicyFunction",
    "WorkerKind",
    "parse_bytes",
]

Keep = Literal["auto", "encoded", "decoded"]

WorkerKind = Literal["threads", "processes", "ray"]

# What is done about a sample that cannot be loaded.
OnError = Literal["raise", "skip", "replace"]

# A cache that took all of the memory would leave none to work on the samples with.
_LARGEST_SHARE = 0.9


class LoadingMode(Enum):
    """The way that a dataset reads its samples: on demand, all at the start, or as a stream.

    >>> LoadingMode("eager") is LoadingMode.EAGER
    True
    """

    LAZY = "lazy"
    """On demand; nothing is kept, except of images, of which the ``cache_size`` most recently used ones are."""
    EAGER = "eager"
    """All at the start; every sample is kept."""
    STREAMING = "streaming"
    """In constant memory, whatever the size of the data: map-style, in any order, and nothing is kept. The
    dataset's ``stream()`` reads in the order of storage instead, and shuffles through a buffer."""
    CACHED = "cached"
    """On demand; a fixed set of samples is kept. If every sample is needed once per epoch, no policy gets more
    hits from that size, since a sample is needed again only in the next epoch."""

    @classmethod
    def _missing_(cls, value: object) -> Never:
        names = ", ".join(repr(mode.value) for mode in cls)
        raise ValueError(f"loading_mode must be a LoadingMode or one of {names}, got {value!r}")


_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}


def parse_bytes(amount: SupportsIndex | str, of: int | None = None, *, name: str = "budget") -> int:
    """Return an amount of memory in bytes.

    Args:
        amount: a number of bytes, or a text such as ``"8GiB"``, ``"500 MB"`` or ``"50%"``.
        of: the bytes that ``%`` refers to; by default the memory that this process may use.
        name: the argument's name, for the error.

    Raises:
        ValueError: ``amount`` is negative, not an amount, a part of a byte, or more than 100% of the memory.
        TypeError: ``amount`` is neither an int nor a str.

    >>> parse_bytes("1.5KiB"), parse_bytes("2 MB"), parse_bytes("25%", of=400)
    (1536, 2000000, 100)
    """
    if not isinstance(amount, str):
        return check_int(name, amount, 0, otherwise=" or a text such as '8GiB' or '50%'")
    text = amount.strip().lower()
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz% ")
    unit = text[len(digits) :].strip()
    try:
        number = float(digits)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf") or not (unit == "%" or unit in _UNITS):
        raise ValueError(f"{name} must be bytes, or a text such as '8GiB', '500MB' or '50%', got {amount!r}")
    if unit == "%":
        if of is None and number > 100:
            raise ValueError(f"{name} must be at most 100% of the memory, got {amount!r}")
        return int(number / 100 * (granted_memory() if of is None else of))
    size = number * _UNITS[unit]
    if size != int(size) and (_UNITS[unit] == 1 or size < 1):
        remedy = f"for a share of the memory, write '{number * 100:g}%'" if number < 1 else "give a unit"
        raise ValueError(f"{name} must be whole bytes, got {amount!r}; {remedy}")
    return int(size)


@dataclass(frozen=True)
class Cache:
    """The sample cache of a :class:`~foreload.DataLoader`: its size, its policy and where it lies.

    There is one cache per machine, in memory that all workers share, and under torch.distributed all ranks of the
    machine too. It holds samples as the dataset returns them, so anything random belongs in the loader's
    ``transform``. (Images of an :class:`~foreload.ImageDataset` are kept as they are before its transform.)

    Args:
        budget: bytes, or ``"8GiB"``, or ``"50%"`` of the memory that this process may use. Each sample takes its
            size, rounded up to 64 bytes, and 64 more; 0 keeps nothing.
        policy: ``"opt"``, the best possible for the order; or ``"fixed"``, ``"lru"``, ``"lfu"``, ``"fifo"``,
            ``"random"``, for comparison; or a function of your own, which is called if the order is known ahead
            (``docs/extending.md``). See :func:`foreload.cache.plan.compile_plan`.
        keep: whether to keep images as the bytes of their file or as pixels; ``"auto"`` decides for each image by
            the time that it saves per byte.
        spill: a folder on a local disk for samples that memory does not hold. The next run with the same dataset
            uses what is left there. It is created for its user alone; one of another user, or that others can
            write to, is refused when the loader is first used (PermissionError), and so is a link (OSError).
        route: let ranks swap samples within each global batch, so that each sample goes to a rank that keeps it.
            Several ranks need ``seed=`` with ``shuffle=True`` for it, or ``torch.utils.data.DistributedSampler``;
            one rank swaps with none.
        share: whether all ranks of a machine that have the same dataset share one cache.

    Raises:
        ValueError, TypeError: an argument makes no sense; the message names it.

    >>> Cache("1GiB").bytes
    1073741824
    """

    budget: SupportsIndex | str
    policy: Policy | PolicyFunction = "opt"
    keep: Keep = "auto"
    spill: str | Path | None = None
    route: bool = False
    share: bool = True

    def __post_init__(self) -> None:
        """Check the arguments."""
        wanted = parse_bytes(self.budget, name="cache budget")
        if not callable(self.policy) and not (isinstance(self.policy, str) and self.policy in POLICIES):
            raise ValueError(
                f"cache policy must be one of {', '.join(POLICIES)}, or a function, got {self.policy!r}"
            )
        if not (isinstance(self.keep, str) and self.keep in get_args(Keep)):
            raise ValueError(f"cache keep must be one of {', '.join(get_args(Keep))}, got {self.keep!r}")
        if self.spill is not None and not isinstance(self.spill, (str, os.PathLike)):
            raise TypeError(f"cache spill must be a folder, got {self.spill!r}")
        if self.spill is not None and not os.fspath(self.spill):
            raise ValueError("cache spill must be a folder, got ''; give '.' for the current one")
        check_bool("cache route", self.route)
        check_bool("cache share", self.share)
        most = int(_LARGEST_SHARE * granted_memory())
        if wanted > most:
            warnings.warn(
                f"the cache's budget of {wanted:,} bytes is more than this process may use; it gets {most:,} "
                f"bytes, {_LARGEST_SHARE:.0%} of its memory. Give a smaller budget, or the container more memory",
                stacklevel=4,
            )

    @property
    def bytes(self) -> int:
        """The budget in bytes, at most what this process may use."""
        return min(parse_bytes(self.budget), int(_LARGEST_SHARE * granted_memory()))

    @classmethod
    def of(cls, cache: Cache | int | str) -> Cache:
        """Return ``cache``, or a cache with that budget."""
        return cache if isinstance(cache, cls) else cls(cache)  # type: ignore[arg-type]


Policy = Literal["opt", "fixed", "lru", "lfu", "fifo", "random"]

POLICIES: tuple[Policy, ...] = get_args(Policy)

# Returns a bool for each access: whether the sample stays cached until its next one. The arguments are the samples
# in the order of access (int64), the bytes of each sample (int64), and the budget.
PolicyFunction = Callable[[Indices, Array, int], Array]
