"""Costs of a sample, in CPU time and waiting, derived from a loader's statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from foreload.options import WorkerKind
from foreload.record.pace import choosing_seconds, measured_pace
from foreload.tune.gil import LOCK_FULL, lock_delay, lock_held_share
from foreload.tune.queueing import Demand, Servers, bounds, reaches_more, throughput

if TYPE_CHECKING:
    from foreload.record.stats import Stats


__all__ = ["PYTHON_STAGES", "Cost", "Costs", "busy_share", "make_servers"]

# Stages of workers, in the order that samples pass them; `order` and `device` are the consumer's.
WORK = ("read", "decode", "cache", "sample", "transform", "batch")

# The stages that run the user's Python, unless the native core assembles the batches.
PYTHON_STAGES = ("read", "decode", "sample", "transform", "batch")

# Limits within this factor of each other count as equal.
_EQUAL_LIMITS = 1.1

# The factor that handing a contended lock from thread to thread may cost.
_LOCK_CONTENTION = 1.25

# From this share of the cores' time on, no other program uses them.
_CORES_USED_UP = 0.9

_BISECTION_STEPS = 25


@dataclass(frozen=True)
class Cost:
    """Seconds that a stage takes for each sample that passes it.

    Attributes:
        cpu: on a core.
        idle: not on one.
        share: the share of all samples that pass it.
    """

    cpu: float = 0.0
    idle: float = 0.0
    share: float = 1.0


@dataclass(frozen=True)
class Costs:
    """Costs of a sample, by stage and by where they arise.

    Attributes:
        stages: the workers' stages.
        locked: the share of the workers' Python CPU time that holds the interpreter's lock.
        handing: CPU seconds of the consumer per batch, for requesting it and taking it over.
        dispatch: CPU seconds of the workers per batch, for taking the request and handing the batch over.
        loop, away: seconds of the loop's own work per sample, on a core and off it.
        holding: the part of ``loop`` that is Python code, which keeps the interpreter's lock from threads.
        blocked: the share of the stages' idle time in which workers are blocked, not waiting for each other.
        gap: seconds of a worker per batch that nothing explains.
        gain: the factor from the modelled to the measured pace.
        batch: samples per batch.
        servers: the workers and cores.
        depth: batches in flight.
        native: whether the native core assembles the batches.
    """

    stages: Mapping[str, Cost]
    locked: float
    handing: float
    dispatch: float
    loop: float
    away: float
    batch: float
    servers: Servers
    depth: int
    native: bool
    blocked: float = 1.0
    gap: float = 0.0
    gain: float = 1.0
    holding: float = 0.0

    @property
    def python(self) -> float:
        """CPU seconds per sample in which workers run Python, or what Python calls."""
        names = () if self.native else PYTHON_STAGES
        own = sum(self.stages[name].share * self.stages[name].cpu for name in names)
        return own + self.dispatch / self.batch

    @property
    def demand(self) -> Demand:
        """The cost of one sample, for the queueing model."""
        cpu = sum(cost.share * cost.cpu for cost in self.stages.values()) + self.dispatch / self.batch
        idle = sum(cost.share * cost.idle for cost in self.stages.values())
        return Demand(
            locked=self.python * self.locked,
            free=cpu - self.python * self.locked,
            blocked=idle * self.blocked + self.gap / self.batch,
            handing=self.handing / self.batch + self.holding,
            loop=self.loop - self.holding,
            away=self.away,
        )

    def deeper(self, depth: int, other: int) -> Costs:
        """Return the costs with ``other`` batches in flight instead of ``depth``.

        The unexplained gap comes from batches that differ, so that workers and loop wait for each other in turn; a
        deeper queue evens that out.
        """
        return replace(self, gap=self.gap * depth / other, depth=other)

    def limits(self) -> dict[str, float]:
        """Return upper limits of samples per second; see :func:`~foreload.tune.queueing.bounds`."""
        return bounds(self.demand, self.servers)

    def pace(self) -> float:
        """Return the samples per second that the model expects."""
        reached = throughput(self.demand, self.servers)
        if self.gain <= 1:
            return self.gain * reached
        return max(reached, min(self.gain * reached, *bounds(self.demand, self.servers).values()))

    def reaches_more(self, pace: float) -> bool:
        """Whether the model, without the gain, expects more samples per second than ``pace``."""
        return reaches_more(self.demand, self.servers, pace)

    def steady_pace(self, stats: Stats | Mapping[str, Any]) -> float:
        """Return the measured samples per second, without the start of epochs.

        When the first batch of many processes comes, theirs are all but made, and follow at once. In a short epoch
        that looks faster than the cores are.
        """
        pace = measured_pace(stats)
        if not _is_crowd(stats):
            return pace
        # As long as one of them queues, they have all cores that other programs leave.
        queue, used = float(stats["cpu"].get("queued_seconds", 0.0)), _cpu(stats)
        cores = used / stats["seconds"] if used > 0 and queue >= stats["seconds"] else self.servers.cores
        return min(pace, bounds(self.demand, self.servers._replace(cores=cores))["cores"])

    @classmethod
    def of(cls, stats: Stats | Mapping[str, Any]) -> Costs:
        """Derive the costs from statistics.

        Raises:
            ValueError: no sample has been loaded yet.
        """
        samples, batches = stats["samples"], stats["batches"]
        if samples < 1 or batches < 1 or stats["seconds"] <= 0:
            raise ValueError("nothing has been loaded yet: iterate over the loader for some batches first")
        workers = stats["workers"]
        count = int(workers["count"])
        depth = int(workers.get("depth") or 2 * max(1, count))
        stages = _stages(stats)
        handing, dispatch = _around(stats, stages)
        loop_cpu = min(stats["loop_cpu_seconds"], stats["loop_seconds"])
        # Torch's own workers are processes.
        threads = workers["kind"] == "threads" and not stats["loader"].get("stock")
        costs = cls(
            stages=stages,
            locked=1.0,
            handing=handing,
            dispatch=dispatch,
            loop=loop_cpu / samples,
            away=(stats["loop_seconds"] - loop_cpu + _moving(stats)) / samples,
            batch=samples / batches,
            servers=make_servers(count, "threads" if threads else "processes", _free_cores(stats), depth),
            depth=depth,
            native=bool(stats["loader"]["native"]),
        )
        costs = replace(costs, holding=_holding(stats, costs))
        costs = replace(costs, locked=_locked(stats, costs))
        return _fitted(costs, costs.steady_pace(stats), lock_held_share(stats))


def make_servers(count: int, kind: WorkerKind, cores: float, depth: int) -> Servers:
    """Return the model's servers; worker processes beyond the batches in flight have nothing to do."""
    return Servers(min(count, depth) if kind == "processes" else count, cores, kind == "threads")


def _stages(stats: Any) -> dict[str, Cost]:
    """Return the costs of the workers' stages; stages without a measured CPU time share what is left evenly."""
    samples = stats["samples"]
    entries = {name: stats["stages"].get(name) for name in WORK}
    known = {name: entry for name, entry in entries.items() if entry is not None}
    told = sum(entry["cpu_seconds"] for entry in known.values())
    unknown = sum(entry["seconds"] for entry in known.values() if entry["cpu_seconds"] <= 0)
    whole = _cpu(stats) - min(stats["loop_cpu_seconds"], stats["loop_seconds"])
    part = min(1.0, max(0.0, whole - told) / unknown) if unknown > 0 else 0.0
    # The CPU time of stages is sampled, which counts too much if threads often lose their core; that of the
    # processes is exact. (The loop's own stages may have its waiting for a core in them, which delays each batch.)
    excess = whole / told if stats["workers"]["count"] and 0 < whole < told else 1.0
    stages = {}
    for name in WORK:
        entry = entries[name] or {"seconds": 0.0, "cpu_seconds": 0.0, "samples": 0}
        cpu = min(entry["cpu_seconds"] * excess or entry["seconds"] * part, entry["seconds"])
        passed = entry["samples"] or samples
        stages[name] = Cost(cpu / passed, (entry["seconds"] - cpu) / passed, passed / samples)
    # A thread that waits for a core, or for the lock, is not blocked by its stage.
    idle = sum(stage.share * stage.idle for stage in stages.values()) * samples
    waited = _queued(stats) + _lock_seconds(stats)
    left = max(0.0, 1 - waited / idle) if idle > 0 else 1.0
    return {name: replace(stage, idle=stage.idle * left) for name, stage in stages.items()}


def _lock_seconds(stats: Any) -> float:
    """Return the seconds in which worker threads waited for the lock."""
    delay = lock_delay(stats)
    return 0.0 if stats["loader"].get("stock") else delay.seconds + delay.within


def busy_share(stats: Stats | Mapping[str, Any]) -> float:
    """Return the share of a sample's time in which it keeps a core busy; waiting for a core does not count."""
    stages = _stages(stats).values()
    busy = sum(stage.share * stage.cpu for stage in stages)
    time = busy + sum(stage.share * stage.idle for stage in stages)
    return busy / time if time > 0 else 1.0


def _queued(stats: Any) -> float:
    """Return the seconds in which worker threads waited for a core. (Stages of torch's workers exclude it.)"""
    return 0.0 if stats["loader"].get("stock") else float(stats["cpu"].get("queued_seconds", 0.0))


def _free_cores(stats: Any) -> float:
    """Return the cores left for the loader: other programs may use some of them."""
    used, queued = _cpu(stats), float(stats["cpu"].get("queued_seconds", 0.0))
    cores = float(stats["cpu"]["cores"])
    if stats["workers"]["kind"] == "ray":  # each has a core of the cluster
        return max(cores, float(stats["workers"]["count"]))
    # Workers that queue only because cores are few are part of the model; processes more than the cores queue for
    # each other first of all. A run that ended at once has no CPU time that could be measured.
    if queued <= 0 or used <= 0 or _is_crowd(stats) or used >= _CORES_USED_UP * cores * stats["seconds"]:
        return cores
    return float(max(used / stats["seconds"], cores * used / (used + queued)))


def _is_crowd(stats: Any) -> bool:
    """Whether there are more worker processes than cores."""
    return bool(stats["workers"]["kind"] == "processes" and stats["workers"]["count"] > stats["cpu"]["cores"])


def _cpu(stats: Any) -> float:
    """Return the CPU seconds of all processes."""
    return float(stats["cpu"]["share"] * stats["cpu"]["cores"] * stats["seconds"])


def _starting(stats: Any) -> float:
    """Return the CPU seconds of starting worker processes."""
    return float(stats["workers"].get("start_cpu_seconds", 0.0))


def _moving(stats: Any) -> float:
    """Return the seconds in which batches were copied to a device."""
    return float(stats["stages"].get("device", {"seconds": 0.0})["seconds"])


def _around(stats: Any, stages: Mapping[str, Cost]) -> tuple[float, float]:
    """Return the CPU seconds per batch outside all stages: the consumer's (with the order) and the workers'."""
    samples, batches = stats["samples"], stats["batches"]
    order = stats["stages"].get("order", {"seconds": 0.0})["seconds"]
    made = sum(stage.share * stage.cpu for stage in stages.values()) * samples
    if stats["workers"]["count"] == 0:
        # (Costs leave out the time in which stages waited for a core; nothing was handed over in it either.)
        in_stages = sum(stats["stages"][name]["seconds"] for name in WORK if name in stats["stages"])
        outside = stats["wait_seconds"] - in_stages - _moving(stats) - choosing_seconds(stats)
        return max(order, outside) / batches, 0.0
    loop_cpu = min(stats["loop_cpu_seconds"], stats["loop_seconds"])
    loose = max(0.0, _cpu(stats) - loop_cpu - made)
    # Starting processes takes cores, but hands nothing over.
    loose = max(0.0, loose - _starting(stats))
    own = max(order, stats["stages"].get("wait", {"cpu_seconds": 0.0})["cpu_seconds"])
    # Anything above the workers' time between stages is due to threads that stages start (BLAS, OpenMP).
    between = stats["workers"]["count"] * stats["seconds"] - sum(
        stage.share * (stage.cpu + stage.idle) * samples for stage in stages.values()
    )
    return own / batches, max(0.0, min(loose - own, between)) / batches


def _holding(stats: Any, costs: Costs) -> float:
    """Return the loop's seconds per sample in which it keeps the lock from threads; 0 if none starve."""
    if costs.native or not costs.servers.one_lock or not costs.servers.workers:
        return 0.0
    samples, count, seconds = stats["samples"], costs.servers.workers, stats["seconds"]
    taken = lock_held_share(stats)
    held = min(seconds, samples * costs.python) if taken is None else taken * seconds
    # Threads wait for each other too.
    by_others = (count - 1) * held / seconds * stats["loop_seconds"]
    delay = lock_delay(stats)
    if not delay.less(by_others).starves(count * seconds):
        return 0.0
    if delay.within:  # each of the threads
        return min(costs.loop, float((delay.seconds + delay.within) / count / samples))
    # Somebody had the lock all the time that threads waited for it: the loop.
    return min(costs.loop, max(0.0, float(seconds / samples) - costs.python))


def _locked(stats: Any, costs: Costs) -> float:
    """Return the share of the workers' Python time that holds the lock: all of it if nothing is known."""
    python = costs.python
    if not costs.servers.one_lock or python <= 0:
        return 1.0
    pace = measured_pace(stats)
    # A lock cannot be held for more than all of the time.
    left = max(0.0, 1 / pace - costs.handing / costs.batch - costs.holding)
    most = min(1.0, left / python) if costs.servers.workers else 1.0
    taken = lock_held_share(stats)
    return most if taken is None else min(most, taken / (pace * python))


def _fitted(costs: Costs, pace: float, taken: float | None) -> Costs:
    """Choose what cannot be measured so that the model matches what was measured."""
    alone = replace(costs, blocked=0.0)
    # If the lock is always taken, idle time is waiting for it.
    near = 1.0 if taken is None or taken < LOCK_FULL else _LOCK_CONTENTION
    if costs.servers.workers == 0 or not alone.reaches_more(pace * near):
        costs = costs if costs.servers.workers == 0 else alone
        return replace(costs, gain=pace / costs.pace())
    if costs.reaches_more(pace):
        limits = bounds(costs.demand, costs.servers)
        if limits["workers"] > _EQUAL_LIMITS * min(limits.values()):
            # Another resource than workers is used up; its losses (switching, cold caches) stay as they are.
            return replace(costs, gain=pace / costs.pace())
        # Time between stages: waking up, handing out work.
        return replace(
            costs,
            gap=_bisect(
                lambda gap: replace(costs, gap=gap).reaches_more(pace), costs.batch / pace * costs.servers.workers
            ),
        )
    # Idle time is blocked time, or waiting for cores or for the lock.
    return replace(costs, blocked=_bisect(lambda share: replace(costs, blocked=share).reaches_more(pace), 1.0))


def _bisect(is_less: Callable[[float], bool], most: float) -> float:
    """Return the least value up to ``most`` for which ``is_less`` is false."""
    low, high = 0.0, most
    for _ in range(_BISECTION_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_less(middle) else (low, middle)
    return low
