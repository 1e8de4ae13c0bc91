"""Verdicts: the bottleneck of a loop in words, as a pure function of a loader's statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from foreload.record.pace import choosing_seconds, measured_pace, start_seconds
from foreload.record.units import number, percent, quantity, seconds
from foreload.report.advice import Advice, advise
from foreload.report.stages import stage_times
from foreload.report.workers import excess_workers
from foreload.tune.costs import Costs
from foreload.tune.gil import LOCK_FULL, lock_delay, lock_held_share
from foreload.tune.queueing import bounds

if TYPE_CHECKING:
    from foreload.record.stats import Stats


__all__ = ["Verdict", "VerdictKind", "verdict"]

VerdictKind = Literal[
    "consumer-bound",
    "read-bound",
    "decode-bound",
    "python-bound",
    "lock-bound",
    "batch-bound",
    "transfer-bound",
    "memory-bound",
    "startup-bound",
    "too-many-workers",
    "too-short",
]

# A verdict needs at least this many batches and seconds, and more seconds if there are few batches.
_MIN_BATCHES, _MIN_SECONDS = 4, 0.02
_FEW_BATCHES, _MIN_SECONDS_IF_FEW = 10, 0.5

# A loop that waits for a smaller share of its time has its data in time.
_MAX_WAIT_IN_TIME = 0.10

# Starting epochs is the bottleneck from this share of the time on.
_MIN_START_SHARE = 0.4

# A resource counts as used up from this share of its limit on.
_USED_UP = 0.8

# Memory is short from this share of the granted memory on.
_MEMORY_USED_UP = 0.95

# On cores that other programs use too, a lock that threads wait for is often free for a moment, since its next
# owner has no core yet. This share of the looks at it, or more, finds it taken.
_TAKEN_WITHOUT_CORES = 0.3

# Of torch's loaders, the loop's work on a core counts as Python's from this share of the time on.
_MIN_LOOP_SHARE = 0.2

# Waiting for a core is worth a line from this share of the loop's time on.
_MIN_QUEUED_SHARE = 0.05


@dataclass(frozen=True)
class Verdict:
    """The bottleneck of a loop.

    Attributes:
        kind: ``"consumer-bound"`` is good: the data is there in time.
        sentence: the same in plain words.
        evidence: the measurements behind it, each a short sentence.
        advice: what to change, best first.
    """

    kind: VerdictKind
    sentence: str
    evidence: list[str] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)


def verdict(stats: Stats | Mapping[str, Any]) -> Verdict:
    """Find what a loop waits for, and what to change.

    Args:
        stats: from ``loader.stats()``.

    >>> verdict({"samples": 0, "batches": 0, "seconds": 0.0}).kind
    'too-short'
    """
    batches = stats["batches"]
    shortest = _MIN_SECONDS_IF_FEW if batches < _FEW_BATCHES else _MIN_SECONDS
    if stats["samples"] < 1 or batches < _MIN_BATCHES or stats["seconds"] < shortest:
        return Verdict(
            "too-short",
            "Too little has been loaded to say what is slow.",
            [f"{quantity(batches, 'batch', 'batches')} in {seconds(stats['seconds'])}"],
            [Advice("let it load some more batches, and ask again")],
        )
    costs = Costs.of(stats)
    excess = excess_workers(stats, costs) if stats["wait_share"] >= _MAX_WAIT_IN_TIME else None
    kind: VerdictKind = "too-many-workers" if excess else _kind(stats, costs)
    return Verdict(
        kind,
        _sentence(kind, stats, costs, excess[0] if excess else 0),
        _evidence(kind, stats, costs),
        advise(kind, stats, costs),
    )


def _kind(stats: Any, costs: Costs) -> VerdictKind:
    if stats["wait_share"] < _MAX_WAIT_IN_TIME:
        return "consumer-bound"
    # The first batch of a crowd of processes comes late, but with it come others.
    start = stats["seconds"] - stats["samples"] / costs.steady_pace(stats)
    if min(start, start_seconds(stats)) >= _MIN_START_SHARE * stats["seconds"]:
        return "startup-bound"
    if _is_short_of_memory(stats):
        return "memory-bound"
    if _loop_keeps_lock(stats, costs):
        return "lock-bound"
    parts = shares(stats, costs)
    main = max(parts["device"], parts["main"])
    if costs.servers.workers:
        limits, pace = bounds(costs.demand, costs.servers), measured_pace(stats)
        if pace >= _USED_UP * limits["loop"] and limits["loop"] <= min(limits.values()) * 1.05:
            return "transfer-bound" if parts["device"] >= main else "batch-bound"
        is_full = "lock" in limits and (
            pace >= _USED_UP * limits["lock"]
            or (lock_held_share(stats) or 0.0) >= LOCK_FULL
            or _lock_lacks_cores(stats, costs)
        )
        if is_full and costs.demand.locked > costs.demand.handing:
            return "python-bound" if parts["batch"] < parts["sample"] + parts["decode"] else "batch-bound"
    groups: dict[VerdictKind, float] = {
        "read-bound": parts["read"] + parts["blocked"],
        "decode-bound": parts["decode"] + parts["sample"],
        "batch-bound": parts["batch"] + parts["main"],
        "transfer-bound": parts["device"],
    }
    return max(groups, key=lambda kind: groups[kind])


def _loop_keeps_lock(stats: Any, costs: Costs) -> bool:
    """Whether threads that load (or pin memory, for torch) starve, since the loop's Python code has the lock."""
    if stats["loader"].get("stock"):
        works = stats["loop_cpu_seconds"] >= _MIN_LOOP_SHARE * stats["seconds"]
        return bool(works and lock_delay(stats).starves(stats["seconds"]))
    return costs.holding > 0 and costs.holding >= costs.demand.locked


def _lock_lacks_cores(stats: Any, costs: Costs) -> bool:
    """Whether workers need little but the lock, on cores shared with other programs, which slow its hand-over."""
    locked, free, blocked = costs.demand.locked, costs.demand.free, costs.demand.blocked
    if costs.servers.workers < 2 or costs.servers.cores >= _USED_UP * stats["cpu"]["cores"]:
        return False
    # Whoever waits for a core with the lock, or as the next to have it, keeps the other threads waiting.
    queued = float(stats["cpu"].get("queued_seconds", 0.0)) / stats["samples"]
    by_others = (costs.servers.workers - 1) * (locked + queued)
    is_taken = (lock_held_share(stats) or 0.0) >= _TAKEN_WITHOUT_CORES
    return locked >= _USED_UP * (locked + free) and (locked > blocked or (is_taken and by_others >= blocked))


def _is_short_of_memory(stats: Any) -> bool:
    memory = stats["memory"]
    limit, batch = memory["limit"], memory["batch_bytes"]
    # Prefetching needs room for a batch ahead, beside the two that the loop holds.
    if limit is not None and batch and limit < 4 * batch:
        return True
    return bool(memory["tree_bytes"] > _MEMORY_USED_UP * memory["granted_bytes"])


def shares(stats: Any, costs: Costs) -> dict[str, float]:
    """Split a loader's time: seconds per sample for each kind of work.

    Returns:
        ``read``, ``decode`` (and transforms), ``sample`` (the user's code, on a core), ``blocked`` (the user's
        code, waiting for something), ``batch``, ``main`` (handing batches over), ``device``.
    """
    stages = costs.stages

    def all_of(name: str) -> float:
        return stages[name].share * (stages[name].cpu + stages[name].idle)

    sample = stages["sample"]
    device = stats["stages"].get("device", {"seconds": 0.0})["seconds"] / stats["samples"]
    return {
        "read": all_of("read"),
        "decode": all_of("decode") + all_of("transform") + all_of("cache"),
        "sample": sample.share * sample.cpu,
        "blocked": sample.share * sample.idle * costs.blocked,
        "batch": all_of("batch"),
        "main": costs.demand.handing + costs.dispatch / costs.batch,
        "device": device,
    }


def _sentence(kind: VerdictKind, stats: Any, costs: Costs, enough: int) -> str:
    waits = f"Your loop waits for data {percent(stats['wait_share'])} of the time"
    stock = stats["loader"].get("stock")
    count, processes = costs.servers.workers, stats["workers"]["kind"] != "threads"
    own = "a single thread" if count == 0 else quantity(count, "worker", "workers")
    match kind:
        case "consumer-bound":
            return (
                f"All is well: your loop waits for data only {percent(stats['wait_share'])} of the time, so "
                "faster loading would gain almost nothing. The loop's own work takes the time."
            )
        case "read-bound":
            what = "your dataset waits for something (a disk, a network)"
            if shares(stats, costs)["read"] >= shares(stats, costs)["blocked"]:
                what = "reading the data takes long"
            return f"{waits}, mostly because {what}."
        case "decode-bound":
            what = "computing" if costs.stages["sample"].cpu else "decoding"
            return f"{waits}, mostly because {what} samples takes long: {own} cannot keep up with the loop."
        case "python-bound":
            return (
                f"{waits}, because your dataset is Python code and only one thread at a time can run Python (the "
                f"interpreter's lock, GIL): {quantity(count, 'thread', 'threads')} load no faster than one."
            )
        case "lock-bound":
            threads = "the thread that pins memory needs" if stock else "the threads that load need"
            return f"{waits}, because its own Python code holds the interpreter's lock (GIL), which {threads} too."
        case "too-many-workers":
            given, cores = stats["workers"]["count"], stats["cpu"]["cores"]
            crowd = f"{waits}, because {given} workers are too many for {quantity(cores, 'core', 'cores')}: they "
            if not enough:
                return (
                    f"{crowd}have little to do but hand batches over, and take the cores from the loop for it. "
                    "num_workers=0, no workers at all, is faster."
                )
            return (
                f"{crowd}take long to start, and take the cores from each other. num_workers={enough} is enough."
            )
        case "batch-bound":
            collated = processes or shares(stats, costs)["batch"] > shares(stats, costs)["main"]
            work = "collating" if collated else "collating and handing over"
            return (
                f"{waits}, mostly because of the work per batch: {work} {number(costs.batch)} samples at a time."
            )
        case "transfer-bound":
            return f"{waits}, mostly because copying batches to the device takes long."
        case "memory-bound":
            return f"{waits}, because there is no memory to make more batches ahead of it."
        case _:
            if choosing_seconds(stats) > start_seconds(stats) / 2:
                return f"{waits}, mostly while the workers were chosen, in the first epoch."
            first = stats["first_batch_seconds"]
            return f"{waits}, mostly for the first batch of each epoch, which takes {seconds(first)}."


def _evidence(kind: VerdictKind, stats: Any, costs: Costs) -> list[str]:
    loop = stats["loop_seconds"] / stats["samples"]
    lines = [
        f"{number(stats['samples_per_second'])} samples/s; the loop by itself could take "
        + (f"{number(1 / loop)} samples/s" if loop > 0 else "any number"),
        f"the loop waited for {seconds(stats['wait_seconds'])} and worked for {seconds(stats['loop_seconds'])}",
    ]
    lines += _busiest(stats)
    if kind == "batch-bound":
        main = shares(stats, costs)["main"] * costs.batch
        lines.append(f"handing a batch over takes {seconds(main)} on a core, on both sides together")
    cores = stats["cpu"]["cores"]
    pool = "no workers"
    if costs.servers.workers:
        nouns = {
            "processes": ("worker process", "worker processes"),
            "ray": ("Ray worker", "Ray workers"),
        }
        one, many = nouns.get(stats["workers"]["kind"], ("worker thread", "worker threads"))
        pool = quantity(stats["workers"]["count"], one, many)
    lines.append(f"{pool}; {percent(stats['cpu']['share'])} of {quantity(cores, 'core', 'cores')} in use")
    lines += _queues(stats, costs.servers.workers)
    lines += _lock_evidence(kind, stats, costs)
    if stats["cache"]:
        lines.append(f"{percent(stats['cache']['hit_rate'])} of the samples came from the cache")
    if stats.get("gpu"):
        lines.append(f"the GPU was idle {percent(stats['gpu']['idle_share'])} of the time")
    if kind == "memory-bound":
        lines += stats["memory"]["decisions"][-2:]
    if kind == "startup-bound":
        lines.append(
            f"{quantity(stats['epochs'], 'epoch', 'epochs')} of {seconds(stats['seconds'] / stats['epochs'])} each"
        )
        if choosing_seconds(stats) > 0:
            lines.append(f"choosing the workers took {seconds(choosing_seconds(stats))}, once")
    return lines


def _queues(stats: Any, workers: int) -> list[str]:
    """Say how long workers had to wait for a core, which is in none of their stages for torch's loaders."""
    queued = float(stats["cpu"].get("queued_seconds", 0.0))
    share = queued / (stats["seconds"] * max(1, workers))
    if workers == 0 or share < _MIN_QUEUED_SHARE:
        return []
    whose = "each worker was" if workers > 1 else "the worker was"
    return [f"{percent(min(1.0, share))} of the time, {whose} ready to work, but had no core"]


def _busiest(stats: Any) -> list[str]:
    """Say what takes most of the time, in shares of the loop's time as in the table of stages."""
    words = {
        "read": "reading",
        "decode": "decoding",
        "cache": "looking up and storing in the cache",
        "sample": "in your dataset",
        "transform": "in transforms",
        "batch": "collating",
    }
    times = sorted((time for time in stage_times(stats) if time.stage in words), key=lambda time: -time.share)
    if not times:
        return []
    spends = "each worker spends" if stats["workers"]["count"] > 1 else "the worker spends"
    spends = spends if stats["workers"]["count"] else "the loop itself spends"
    parts = ", ".join(f"{percent(time.share)} {words[time.stage]}" for time in times[:3])
    return [f"of the loop's {seconds(stats['seconds'])}, {spends} {parts}"]


def _lock_evidence(kind: VerdictKind, stats: Any, costs: Costs) -> list[str]:
    lines, held, delay = [], lock_held_share(stats), lock_delay(stats)
    if kind in ("python-bound", "lock-bound") and held is not None:
        lines.append(
            f"the interpreter's lock was taken {percent(held)} of the times it was checked while the loop waited"
        )
    if kind == "lock-bound" or (kind == "python-bound" and costs.holding):
        lines.append(
            f"while the loop worked ({seconds(stats['loop_cpu_seconds'])} of {seconds(stats['loop_seconds'])} on "
            f"a core), threads that asked for the lock waited {seconds(delay.mean)} for it on average"
        )
        if delay.within:
            lines.append(
                f"samples took {seconds(delay.within)} longer then, in all threads, than while the loop waited"
            )
    return lines
