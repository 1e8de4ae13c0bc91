"""The memory budget that the cache shares with batches in the making, and its response to memory pressure."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from foreload import _native
from foreload.cache.store import SampleStore
from foreload.errors import warn_user
from foreload.machine import available_memory, granted_cores, granted_memory
from foreload.nested import tensors
from foreload.options import Cache
from foreload.order.lookahead import asks_once, repeats_nothing
from foreload.protocol import ImageForms

__all__ = ["MemoryBudget", "Pressure", "has_tables", "make_largest_store", "reuse_freed"]

# The share of memory that a cache with a limit in samples may use.
_ROOM_SHARE = 0.8
_MIN_ROOM = 1 << 24

# The time between two checks of the memory: a check takes about 0.3 ms, in which the loop waits.
_MIN_CHECK_SECONDS, _MAX_CHECK_SECONDS = 0.05, 1.0

# The most that may be spent before the next check, as a share of what is spare; the fastest that memory is spent.
_MAX_SPENT_SHARE, _MAX_BYTES_PER_SECOND = 0.5, 8e9

# What is to stay free for other programs: a share of the memory, and a number of bytes at least.
_FREE_SHARE = 0.05
_MIN_FREE_BYTES = 64 << 20

# The share of a budget that the cache gets until the size of batches is known.
_CACHE_SHARE = 0.75

# Batches that the loop holds: the one that it works on, and the next one that it gets.
_BATCHES_IN_LOOP = 2

# The bytes per sample of a store's tables. They may be left out if that is much, in all and of the budget. Of so
# many samples, no more than one epoch is looked ahead.
_BYTES_PER_SAMPLE = 64
_MUCH_BYTES, _MUCH_OF_BUDGET = 128 << 20, 1 / 8

# The bytes per sample that it takes to plan an epoch too.
_BYTES_TO_PLAN = 256

# A process that is granted less than this, in all or per core, gives freed memory back to the system.
_MIN_GRANTED, _MIN_GRANTED_PER_CORE = 4 << 30, 1 << 30


@functools.cache
def reuse_freed() -> None:
    """Let the C library of this process keep the memory of freed samples for later ones.

    Samples and what they are made from are mostly larger than what it keeps by default, and new memory costs a
    fault per page: arithmetic on arrays may take several times as long. It keeps up to 64 MiB per thread, for no
    more than eight threads per core.
    """
    if granted_memory() >= max(_MIN_GRANTED, _MIN_GRANTED_PER_CORE * granted_cores()):
        _native.reuse_freed()


def has_tables(
    root: Any, places: Any, options: Cache, sampler: Any, ranks: Sequence[int], *, is_routed: bool
) -> bool:
    """Whether there are tables of all samples, with which the cache can follow a plan; warn if they do not fit.

    Args:
        root: the dataset, without a ``Subset`` around it.
        places: the samples of that ``Subset``; None: there is none.
        options: of the cache.
        sampler: of single samples.
        ranks: those that share the store, one as often as processes have it.
        is_routed: whether samples are swapped between ranks.

    Raises:
        ValueError: there is no memory for them, and the cache cannot do without.
    """
    samples = len(root)
    if _BYTES_PER_SAMPLE * samples <= _MUCH_BYTES or isinstance(root, ImageForms):  # whose forms differ
        return True
    is_required = options.spill is not None or (is_routed and places is not None)
    is_best_known = options.policy in ("opt", "fixed")
    if is_best_known and asks_once(sampler, ranks) and not is_routed and not is_required:
        # Tables tell which samples save most.
        return _BYTES_PER_SAMPLE * samples <= _MUCH_OF_BUDGET * options.bytes
    # A plan of one epoch that has no sample twice knows nothing of what is best to keep.
    has_plan = options.policy != "lru" and not (is_best_known and repeats_nothing(sampler, ranks))
    if not is_required and (is_routed or not has_plan):
        return False
    needed, available = samples * _BYTES_TO_PLAN, available_memory()
    if needed <= available:
        return True
    about = (
        f"cache: tables of {samples:,} samples take about {needed / 2**30:,.0f} GiB, but only "
        f"{available / 2**30:,.1f} GiB are available"
    )
    if is_required:
        raise ValueError(f"{about}; leave out spill=, or route=True over a Subset, which need them")
    warn_user(f"{about}; so the samples that come first are kept, without a plan")
    return False


class Pressure:
    """Makes a store evict samples before memory runs out, and gives its room back when there is enough again.

    Args:
        decide: called with a sentence about each decision.
        available: returns the bytes that can still be taken.
    """

    def __init__(self, decide: Callable[[str], None], available: Callable[[], int] = available_memory) -> None:
        granted = granted_memory()
        self._free = min(max(_MIN_FREE_BYTES, int(_FREE_SHARE * granted)), granted // 4)
        self._decide = decide
        self._available = available
        self._next = 0.0  # the time of the next check
        self._most = 0.0  # the bytes of batches until then

    def check(self, store: SampleStore | None, batch: int = 0, ahead: int = 0) -> None:
        """Check the memory, unless it cannot have become short since the last check.

        Args:
            store: the store that may evict samples.
            batch: the bytes of a batch that has been made.
            ahead: the number of further batches that need room.
        """
        now = time.monotonic()
        self._most -= batch
        if now < self._next and self._most > 0:
            return
        self._next, self._most = now + _MIN_CHECK_SECONDS, self._free  # only one of several threads checks
        floor = self._free + ahead * batch
        available = self._available()
        spare = _MAX_SPENT_SHARE * (available - floor)
        self._next = now + min(_MAX_CHECK_SECONDS, max(_MIN_CHECK_SECONDS, spare / _MAX_BYTES_PER_SECOND))
        self._most = max(self._free // 2, spare)
        if available < floor:
            # The C library may keep memory that samples of several threads have freed.
            _native.release_freed()
            available = self._available()
        used = 0 if store is None else int(store.native.counts()["used"])
        if store is None or available >= floor or used == 0:
            return
        # Somewhat less than would do, so that this is not needed again at once.
        left = max(0, used - (floor + self._free - available))
        store.native.limit(left)
        self._decide(
            f"memory is short ({available:,} bytes available, {floor:,} must stay): the cache gave back "
            f"{used - left:,} of its {used:,} bytes"
        )

    def fit(self, store: SampleStore, wanted: int, ahead: int = 0) -> None:
        """Set a store's room to ``wanted`` bytes, or to what memory allows beside ``ahead`` bytes for batches."""
        counts = store.native.counts()
        spare = self._available() - 2 * self._free - ahead
        room = min(wanted, max(0, int(counts["used"]) + spare))
        if room == counts["room"] or (room < wanted and abs(room - counts["room"]) < self._free):
            return
        store.native.limit(room)
        self._decide(f"the cache may take {room:,} of {wanted:,} bytes, by the memory that is available")


class MemoryBudget:
    """The memory of a loader, for its cache and its batches in the making.

    Args:
        limit: bytes; None: no limit but the machine's.

    Attributes:
        decisions: sentences about what was decided, in order.
        reserve: batches in the making that the cache leaves room for.
        batch: bytes of the largest batch; 0 until it is known.

    >>> budget = MemoryBudget(100 << 20)
    >>> budget.cache_room(1 << 30) >> 20, budget.depth(8)   # the size of a batch is not known yet
    (100, 2)
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.decisions: list[str] = []
        self.pressure = Pressure(self.decisions.append)
        self.batch = 0
        self.reserve = 1
        self._copies = 1  # of a batch in the making
        self._ahead = 1  # batches that may be in the making
        self._wanted = 0  # by the cache
        self._last_depth = 0

    def cache_room(self, wanted: int) -> int:
        """Return the bytes that a cache may take if it asks for ``wanted``."""
        self._wanted = wanted
        if self.limit is None:
            return wanted
        room = min(wanted, self.limit if self.batch == 0 else self.beside(self.reserve))
        if room < wanted:
            self.decisions.append(
                f"the cache may take {room:,} of the {wanted:,} bytes asked for: memory={self.limit:,} is for "
                "batches too"
            )
        return room

    def beside(self, reserve: int) -> int:
        """Return the bytes that the cache may take if it leaves room for ``reserve`` batches in the making."""
        assert self.limit is not None
        # One batch is made whatever the cache holds, so no room is left for a copy of it.
        made = reserve if reserve == 1 else reserve * self._copies
        return max(0, self.limit - (made + _BATCHES_IN_LOOP) * self.batch)

    def depth(self, wanted: int, store: SampleStore | None = None, *, copies: int = 1) -> int:
        """Return the number of batches that may be in the making, at most ``wanted``, beside what the cache holds.

        While a batch is collated its samples take memory too: that makes two ``copies``.
        """
        self._copies = copies
        depth = self._depth(wanted, store, copies)
        self._ahead = depth * copies + 1
        return depth

    def most(self, store: SampleStore | None = None, *, copies: int = 1) -> int | None:
        """Return the number of batches that have room beside what the cache holds; None if there is no limit."""
        if self.limit is None:
            return None
        if self.batch == 0:
            return 2
        cached = 0 if store is None else int(store.native.counts()["used"])
        return max(1, ((self.limit - cached) // self.batch - _BATCHES_IN_LOOP) // copies)

    def _depth(self, wanted: int, store: SampleStore | None, copies: int) -> int:
        most = self.most(store, copies=copies)
        if most is None:
            return wanted
        depth = min(wanted, most)
        if self.batch == 0:
            return depth
        if depth < wanted and depth != self._last_depth:
            self._last_depth = depth
            self.decisions.append(
                f"{depth} batches of {self.batch:,} bytes are made ahead, not {wanted}: memory={self.limit:,}"
            )
        return depth

    def observe_batch(self, batch: Any, store: SampleStore | None) -> None:
        """Take the size of a delivered batch into account, and check the memory."""
        if self.limit is None and store is None:
            return
        size = sum(each.nbytes for each in tensors(batch))
        if size > self.batch:
            self.batch = size
            if self.limit is not None and store is not None:
                room = min(self._wanted, self.beside(self.reserve))
                if room != store.native.counts()["room"]:
                    store.native.limit(room)
                    self.decisions.append(f"the cache may take {room:,} bytes beside batches of {size:,}")
        self.pressure.check(store, size, self._ahead)

    def begin(self, store: SampleStore | None) -> None:
        """Set the cache's room for the epoch that begins."""
        if store is None:
            return
        wanted = self._wanted
        if self.limit is not None and self.batch:
            wanted = min(wanted, self.beside(self.reserve))
        elif self.limit is not None:
            wanted = min(wanted, int(_CACHE_SHARE * self.limit))
        self.pressure.fit(store, wanted, self._ahead * self.batch)

    def stats(self) -> dict[str, Any]:
        """Return the limit (None: the machine's), the size of the largest batch, and the decisions."""
        return {"limit": self.limit, "batch_bytes": self.batch, "decisions": list(self.decisions)}


def make_largest_store(samples: int, accesses: int, most: int, room: int | None = None) -> SampleStore:
    """Return a store with ``room`` bytes, by default what memory allows; it takes only what it uses."""
    room = int(_ROOM_SHARE * granted_memory()) if room is None else room
    while True:
        try:
            return SampleStore(samples, room, accesses=accesses, most=most)
        except OSError:  # a limit on the address space
            if room < _MIN_ROOM:
                raise
            room //= 2
