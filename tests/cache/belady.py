"""The fewest loads that any cache needs, by Belady's algorithm."""

from __future__ import annotations

import heapq


def belady(accesses: list[int], capacity: int) -> int:
    """The loads of Belady's MIN with bypass, which knows the whole future."""
    following, ahead = [1 << 60] * len(accesses), {}
    for t in reversed(range(len(accesses))):
        following[t] = ahead.get(accesses[t], 1 << 60)
        ahead[accesses[t]] = t
    cached: dict[int, int] = {}
    latest: list[tuple[int, int]] = []
    loads = 0
    for t, sample in enumerate(accesses):
        loads += sample not in cached
        cached[sample] = following[t]
        heapq.heappush(latest, (-following[t], sample))
        while len(cached) > capacity:
            use, other = heapq.heappop(latest)
            if cached.get(other) == -use:
                del cached[other]
    return loads
