"""A small queueing model of a loader: how many samples a second, given what each one costs and who does the work.

Two parties share a machine. ``workers`` of them make samples; one *consumer* (the main process) takes batches and
works on them. A sample costs a worker CPU time with the interpreter's lock, CPU time without it, and time in which
it is blocked (disk, network, sleep). The consumer spends CPU time on handing batches over, CPU time of the loop's
own work, and time in which the loop is elsewhere (a GPU, a sleep).

Assumptions: batches in flight are enough to even out the two parties (neither waits for the other while it could
work); cores are shared fairly by whoever can run (processor sharing); the lock is served first come, first served,
and service is about even (half of a service is left of the one that is met). Whoever is not the bottleneck idles
as much as it takes for both to keep the same pace.

Sources: asymptotic bounds and the utilisation law, P. Denning and J. Buzen, "The operational analysis of queueing
network models", Computing Surveys 10(3), 1978; the arrival theorem's approximation for closed networks by
Y. Bard and P. Schweitzer, and the residual of a service that is not exponential, in E. Lazowska et al.,
"Quantitative System Performance", 1984, chapters 6, 7 and 11.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Demand", "Servers", "bounds", "throughput"]

# Where the bisection of a rate and the fixed point of the stretches end.
_STEPS, _ROUNDS, _CLOSE = 25, 100, 1e-5


class Demand(NamedTuple):
    """What one sample costs, in seconds.

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
    """Who does the work.

    Attributes:
        workers: how many; 0: the consumer makes the samples itself.
        cores: that all share.
        one_lock: whether workers and consumer share one interpreter's lock (threads).
    """

    workers: int
    cores: float
    one_lock: bool = True


def bounds(demand: Demand, servers: Servers) -> dict[str, float]:
    """Give the samples per second that nothing can exceed, by what sets each limit.

    Returns:
        ``workers``, ``cores``, ``lock``, ``loop``: what each of them could do if nothing else held it up.

    >>> bounds(Demand(free=0.01, loop=0.002), Servers(workers=4, cores=2))["workers"]
    400.0
    """
    work = demand.locked + demand.free + demand.blocked
    consumer = demand.handing + demand.loop + demand.away
    cpu = demand.locked + demand.free + demand.handing + demand.loop
    if servers.workers == 0:
        return {"loop": _rate(1, work + consumer)}
    limits = {
        "workers": _rate(servers.workers, work),
        "cores": _rate(servers.cores, cpu),
        "loop": _rate(1, consumer),
    }
    if servers.one_lock:
        limits["lock"] = _rate(1, demand.locked + demand.handing)
    return limits


def throughput(demand: Demand, servers: Servers) -> float:
    """Give the samples per second that the servers reaches: the highest pace at which nobody's time runs out.

    >>> round(throughput(Demand(blocked=0.01), Servers(workers=8, cores=2)))   # waiting takes no core
    800
    >>> round(throughput(Demand(locked=0.01), Servers(workers=8, cores=8)))   # one lock, one at a time
    100
    """
    most = min(bounds(demand, servers).values())
    if servers.workers == 0 or most == float("inf"):
        return most
    reached, count = 0.0, 0
    # Some workers more are at worst some that idle.
    while count < servers.workers:
        count = min(servers.workers, count + max(1, count // 8))
        reached = _reached(demand, servers._replace(workers=count), reached)
    return reached


def _reached(demand: Demand, servers: Servers, low: float) -> float:
    """Give the highest pace from ``low`` on at which nobody's time runs out."""
    high = min(bounds(demand, servers).values()) * (1 - _CLOSE)
    if high <= low or _fits(high, demand, servers):
        return max(high, low)
    if not _fits(low * (1 + _CLOSE), demand, servers):
        return low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _fits(middle, demand, servers) else (low, middle)
    return low


def _rate(servers: float, seconds: float) -> float:
    return servers / seconds if seconds > 0 else float("inf")


def _fits(pace: float, demand: Demand, servers: Servers) -> bool:
    """Whether workers and consumer have time for so many samples a second, with all that they wait for."""
    workers, cores = servers.workers, servers.cores
    locked, free, handing, loop = _by_lock(demand, servers)
    others = (workers - 1) / workers
    slow = [1.0, 1.0, 1.0]  # how much longer work takes because cores are taken: locked, free, the loop's
    for _ in range(_ROUNDS):
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
            return False  # and it only gets worse
        if change < _CLOSE:
            return True
    return True


def _has_time(pace: float, demand: Demand, servers: Servers, others: float, slow: list[float]) -> bool:
    locked, free, handing, loop = _by_lock(demand, servers)
    with_lock, of_consumer = pace * locked * slow[0], pace * handing * slow[0]
    if others * with_lock >= 1:
        return False
    # A worker that asks for the lock meets the others that do, of whom one is half through, and the consumer.
    queued = (1 - others * with_lock / 2 + of_consumer * (1 + with_lock) / 2) / (1 - others * with_lock)
    busy = pace * (locked * slow[0] * queued + free * slow[1] + demand.blocked) / servers.workers
    taken = of_consumer * (1 + with_lock / 2) + pace * (loop * slow[2] + demand.away)
    return busy <= 1 and taken <= 1


def _by_lock(demand: Demand, servers: Servers) -> tuple[float, float, float, float]:
    """Give the CPU times of workers with and without a lock that is shared, and of the consumer."""
    if servers.one_lock:
        return demand.locked, demand.free, demand.handing, demand.loop
    return 0.0, demand.locked + demand.free, 0.0, demand.handing + demand.loop


def _stretch(cores: float, count: int, busy: float, first: float, second: float) -> float:
    """Give how much longer work takes where ``count`` others run with probability ``busy``, and two more."""
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
    """Give the mean of max(1, (present + K) / cores), where K of ``count`` are busy (binomial)."""
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
