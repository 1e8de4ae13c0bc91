"""Queueing model of a loader: samples per second from the cost of a sample, the workers and the cores.

Two parties share a machine: ``workers`` make samples, and one *consumer* (the main process) takes batches and
works on them. A sample costs a worker CPU time with the interpreter's lock, CPU time without it, and time in which
it is blocked (disk, network, sleep). The consumer spends CPU time on handing batches over, CPU time of the loop's
own work, and time in which the loop is elsewhere (a GPU, a sleep).

Assumptions: enough batches are in flight to decouple the two parties (neither waits for the other while it could
work); runnable threads share the cores evenly (processor sharing); the lock is served first come, first served,
with about constant service times (an arrival finds half of the current service left). The party that is not the
bottleneck idles until both keep the same pace.

Sources: asymptotic bounds and the utilisation law, P. Denning and J. Buzen, "The operational analysis of queueing
network models", Computing Surveys 10(3), 1978; the arrival theorem's approximation for closed networks by
Y. Bard and P. Schweitzer, and the residual of a service that is not exponential, in E. Lazowska et al.,
"Quantitative System Performance", 1984, chapters 6, 7 and 11.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Demand", "Servers", "bounds", "reaches_more", "throughput"]

# Steps of the bisection for a pace; rounds and tolerance of the fixed-point iteration.
_BISECTION_STEPS, _MAX_ROUNDS, _TOLERANCE = 25, 100, 1e-5


class Demand(NamedTuple):
    """Cost of one sample, in seconds.

    Attributes:
        locked: CPU time of a worker that holds the interpreter's lock.
        free: CPU time of a worker that does not.
        blocked: time of a worker in which it needs no core.
        handing: CPU time of the consumer for taking batches over, with the lock.
        loop: CPU time of the loop's own work.
        away: time of the loop in which it needs no core.
    """

    locked: float = 0.0
    free: float = 0.0
    blocked: float = 0.0
    handing: float = 0.0
    loop: float = 0.0
    away: float = 0.0


class Servers(NamedTuple):
    """Workers and cores that do the work.

    Attributes:
        workers: their number; 0: the consumer makes the samples itself.
        cores: the cores that all share.
        one_lock: whether workers and consumer share one interpreter's lock (threads).
    """

    workers: int
    cores: float
    one_lock: bool = True


def bounds(demand: Demand, servers: Servers) -> dict[str, float]:
    """Return upper limits of samples per second, by the resource that sets each.

    Returns:
        ``workers``, ``cores``, ``lock``, ``loop``: the pace of each if it never waited for another.

    >>> bounds(Demand(free=0.01, loop=0.002), Servers(workers=4, cores=2))["workers"]
    400.0
    """
    work = demand.locked + demand.free + demand.blocked
    consumer = demand.handing + demand.loop + demand.away
    cpu = demand.locked + demand.free + demand.handing + demand.loop
    if servers.workers == 0:
        return {"loop": _rate(1, work + consumer + cpu * max(0.0, 1 / servers.cores - 1))}
    limits = {
        "workers": _rate(servers.workers, work),
        "cores": _rate(servers.cores, cpu),
        "loop": _rate(1, consumer),
    }
    if servers.one_lock:
        limits["lock"] = _rate(1, demand.locked + demand.handing)
    return limits


def throughput(demand: Demand, servers: Servers) -> float:
    """Return the samples per second that the servers reach: the highest pace that leaves time for all work.

    >>> round(throughput(Demand(blocked=0.01), Servers(workers=8, cores=2)))   # waiting takes no core
    800
    >>> round(throughput(Demand(locked=0.01), Servers(workers=8, cores=8)))   # one lock, one at a time
    100
    """
    most = min(bounds(demand, servers).values())
    if servers.workers == 0 or most == float("inf"):
        return most
    reached = 0.0
    for fewer in _and_fewer(servers):
        reached = _reached(demand, fewer, reached)
    return reached


def reaches_more(demand: Demand, servers: Servers, pace: float) -> bool:
    """Whether :func:`throughput` is above ``pace``, which takes a small part of the time to find out.

    >>> demand, servers = Demand(blocked=0.01), Servers(workers=8, cores=2)
    >>> reaches_more(demand, servers, 790), reaches_more(demand, servers, 801)
    (True, False)
    """
    most = min(bounds(demand, servers).values())
    if servers.workers == 0 or most == float("inf"):
        return most > pace
    return pace < most * (1 - _TOLERANCE) and any(
        _fits(pace * (1 + _TOLERANCE), demand, fewer) for fewer in _and_fewer(servers)
    )


def _and_fewer(servers: Servers) -> Iterator[Servers]:
    """Yield some of the numbers of workers up to this one: more are never slower, since at worst some idle."""
    count = 0
    while count < servers.workers:
        count = min(servers.workers, count + max(1, count // 8))
        yield servers._replace(workers=count)


@functools.lru_cache(1024)  # a prediction for 9 workers begins with those for 1 to 8, and advice asks for many
def _reached(demand: Demand, servers: Servers, low: float) -> float:
    """Return the highest pace from ``low`` on that leaves time for all work."""
    high = min(bounds(demand, servers).values()) * (1 - _TOLERANCE)
    if high <= low or _fits(high, demand, servers):
        return max(high, low)
    if not _fits(low * (1 + _TOLERANCE), demand, servers):
        return low
    for _ in range(_BISECTION_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _fits(middle, demand, servers) else (low, middle)
    return low


def _rate(servers: float, seconds: float) -> float:
    return servers / seconds if seconds > 0 else float("inf")


def _fits(pace: float, demand: Demand, servers: Servers) -> bool:
    """Whether workers and consumer have time for this pace, including all their waiting."""
    workers, cores = servers.workers, servers.cores
    locked, free, handing, loop = _by_lock(demand, servers)
    others = (workers - 1) / workers
    slow = [1.0, 1.0, 1.0]  # factors by which busy cores slow work down: locked, free, the loop's
    for _ in range(_MAX_ROUNDS):
        running = pace * free * slow[1] / workers  # the share of its time that a worker runs without the lock
        with_lock, of_consumer = pace * locked * slow[0], pace * handing * slow[0]
        looping = pace * loop * slow[2]
        if max(running, with_lock + of_consumer, looping) > 1:
            return False
        held = with_lock + of_consumer
        stretched = [
            _stretch(cores, workers - 1, running, looping, 0.0),
            _stretch(cores, workers - 1, running, looping, held * others),
            _stretch(cores, workers, running, 0.0, with_lock),
        ]
        change = max(new - old for new, old in zip(stretched, slow, strict=True))
        slow = stretched
        if not _has_time(pace, demand, servers, others, slow):
            return False  # more rounds only add waiting
        if change < _TOLERANCE:
            return True
    return True


def _has_time(pace: float, demand: Demand, servers: Servers, others: float, slow: list[float]) -> bool:
    locked, free, handing, loop = _by_lock(demand, servers)
    with_lock, of_consumer = pace * locked * slow[0], pace * handing * slow[0]
    if others * with_lock >= 1:
        return False
    # A worker that requests the lock queues behind the others, one of them half done, and the consumer.
    queued = (1 - others * with_lock / 2 + of_consumer * (1 + with_lock) / 2) / (1 - others * with_lock)
    busy = pace * (locked * slow[0] * queued + free * slow[1] + demand.blocked) / servers.workers
    taken = of_consumer * (1 + with_lock / 2) + pace * (loop * slow[2] + demand.away)
    return busy <= 1 and taken <= 1


def _by_lock(demand: Demand, servers: Servers) -> tuple[float, float, float, float]:
    """Return the CPU times of workers with and without a shared lock, and of the consumer with and without it."""
    if servers.one_lock:
        return demand.locked, demand.free, demand.handing, demand.loop
    return 0.0, demand.locked + demand.free, 0.0, demand.handing + demand.loop


def _stretch(cores: float, count: int, busy: float, first: float, second: float) -> float:
    """Return the slowdown of work beside ``count`` threads that run with probability ``busy``, and two more."""
    total = 0.0
    for offset, chance in (
        (0, (1 - first) * (1 - second)),
        (1, first * (1 - second) + second * (1 - first)),
        (2, first * second),
    ):
        if chance > 0:
            total += chance * _share(cores, count, busy, 1 + offset)
    return total


def _share(cores: float, count: int, busy: float, present: int) -> float:
    """Return the mean of max(1, (present + K) / cores) for K busy ones of ``count`` (binomial)."""
    if present + count <= cores:
        return 1.0
    mean = (present + count * busy) / cores
    if busy >= 1:
        return max(1.0, mean)
    chance = (1 - busy) ** count
    for number in range(count + 1):
        spare = 1 - (present + number) / cores
        if spare <= 0:
            break
        mean += spare * chance
        chance *= (count - number) / (number + 1) * busy / (1 - busy)
    return mean
