"""What holds a loop back, in words: a pure function of a loader's statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from foreload.record.units import number, percent, quantity, seconds
from foreload.report.advice import Advice, advise
from foreload.tune.costs import LOCK_FULL, Costs, held, measured_pace
from foreload.tune.queueing import bounds

if TYPE_CHECKING:
    from foreload.record.stats import Stats


__all__ = ["Verdict", "VerdictKind", "verdict"]

VerdictKind = Literal[
    "consumer-bound",
    "read-bound",
    "decode-bound",
    "python-bound",
    "batch-bound",
    "transfer-bound",
    "memory-bound",
    "startup-bound",
    "too-short",
]

# Fewer batches say nothing; so few only if they took that long; and in less time than the last one nothing does.
_FEWEST, _FEW, _LONG, _SHORTEST = 4, 10, 0.5, 0.02

# A loop that waits less than this has its data in time.
_IN_TIME = 0.10

# The start of epochs is to blame from this share of all the time on.
_START = 0.4

# Something is used up from this share of what there is of it on.
_FULL = 0.8

# Who uses so much of the memory has none left for batches.
_NO_MEMORY = 0.95


@dataclass(frozen=True)
class Verdict:
    """What holds a loop back.

    Attributes:
        kind: ``"consumer-bound"`` is good: the data are there in time.
        sentence: the same in plain words.
        evidence: what was measured that says so, each a short sentence.
        advice: what to change, best first.
    """

    kind: VerdictKind
    sentence: str
    evidence: list[str] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)


def verdict(stats: Stats | Mapping[str, Any]) -> Verdict:
    """Judge what a loop waits for, and what to change.

    Args:
        stats: of a loader, from ``loader.stats()``.

    >>> verdict({"samples": 0, "batches": 0, "seconds": 0.0}).kind
    'too-short'
    """
    batches = stats["batches"]
    if stats["samples"] < 1 or batches < _FEWEST or stats["seconds"] < (_LONG if batches < _FEW else _SHORTEST):
        return Verdict(
            "too-short",
            "Too little was loaded to say what is slow.",
            [f"{quantity(batches, 'batch', 'batches')} in {seconds(stats['seconds'])}"],
            [Advice("ask again after some more batches")],
        )
    costs = Costs.of(stats)
    kind = _kind(stats, costs)
    return Verdict(kind, _sentence(kind, stats, costs), _evidence(kind, stats, costs), advise(kind, stats, costs))


def _kind(stats: Any, costs: Costs) -> VerdictKind:
    if stats["wait_share"] < _IN_TIME:
        return "consumer-bound"
    if stats["epochs"] * stats["first_batch_seconds"] >= _START * stats["seconds"]:
        return "startup-bound"
    if _is_short_of_memory(stats):
        return "memory-bound"
    parts = shares(stats, costs)
    main = max(parts["device"], parts["main"])
    if costs.servers.workers:
        limits, pace = bounds(costs.demand, costs.servers), measured_pace(stats)
        if pace >= _FULL * limits["loop"] and limits["loop"] <= min(limits.values()) * 1.05:
            return "transfer-bound" if parts["device"] >= main else "batch-bound"
        is_full = "lock" in limits and (
            pace >= _FULL * limits["lock"] or (held(stats) or 0.0) >= LOCK_FULL or _lock_lacks_cores(stats, costs)
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


def _lock_lacks_cores(stats: Any, costs: Costs) -> bool:
    """Whether the lock is all that workers use, on cores that others use too: it is passed on less often then."""
    locked, free = costs.demand.locked, costs.demand.free
    return (
        costs.servers.workers > 1
        and locked >= _FULL * (locked + free)
        and locked > costs.demand.blocked
        and costs.servers.cores < _FULL * stats["cpu"]["cores"]
    )


def _is_short_of_memory(stats: Any) -> bool:
    memory = stats["memory"]
    limit, batch = memory["limit"], memory["batch_bytes"]
    # One batch ahead, beside the two that the loop holds: less cannot be made ahead.
    if limit is not None and batch and limit < 4 * batch:
        return True
    return bool(memory["tree_bytes"] > _NO_MEMORY * memory["granted_bytes"])


def shares(stats: Any, costs: Costs) -> dict[str, float]:
    """Give the seconds per sample of what a loader's time goes to.

    Returns:
        ``read``, ``decode`` (and transforms), ``sample`` (the user's code, on a core), ``blocked`` (the user's
        code, waiting for something), ``batch``, ``main`` (handing over), ``device``.
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


def _sentence(kind: VerdictKind, stats: Any, costs: Costs) -> str:
    waits = f"Your loop waits for data {percent(stats['wait_share'])} of the time"
    count, processes = costs.servers.workers, stats["workers"]["kind"] == "processes"
    own = "its own thread" if count == 0 else quantity(count, "worker", "workers")
    match kind:
        case "consumer-bound":
            return (
                f"All is well: your loop waits for data only {percent(stats['wait_share'])} of the time, so "
                "faster loading would gain next to nothing. What takes the time is the loop's own work."
            )
        case "read-bound":
            what = "the dataset is waiting for something else (a disk, a network)"
            if shares(stats, costs)["read"] >= shares(stats, costs)["blocked"]:
                what = "data are being read"
            return f"{waits}, and mostly because {what}."
        case "decode-bound":
            what = "the dataset computes its samples" if costs.stages["sample"].cpu else "samples are decoded"
            return f"{waits}, and mostly because {what}: {own} cannot make them as fast as the loop takes them."
        case "python-bound":
            return (
                f"{waits}, because the dataset is Python code and only one thread at a time can run Python (the "
                f"interpreter's lock, GIL): {quantity(count, 'thread', 'threads')} load as fast as one."
            )
        case "batch-bound":
            where = (
                ""
                if processes or shares(stats, costs)["batch"] > shares(stats, costs)["main"]
                else " and handed over"
            )
            return (
                f"{waits}, and mostly because of the work that comes with each batch: samples are put together"
                f"{where}, {number(costs.batch)} at a time."
            )
        case "transfer-bound":
            return f"{waits}, and mostly because batches are copied to the device."
        case "memory-bound":
            return f"{waits}, because there is no memory to make more batches ahead."
        case _:
            first = stats["first_batch_seconds"]
            return f"{waits}, and mostly for the first batch of each epoch, which takes {seconds(first)} to come."


def _evidence(kind: VerdictKind, stats: Any, costs: Costs) -> list[str]:
    loop = stats["loop_seconds"] / stats["samples"]
    lines = [
        f"{number(stats['samples_per_second'])} samples/s; the loop alone could take "
        + (f"{number(1 / loop)}" if loop > 0 else "any number"),
        f"waited {seconds(stats['wait_seconds'])}, worked {seconds(stats['loop_seconds'])}",
    ]
    parts = {name: value for name, value in shares(stats, costs).items() if value > 0}
    named = {
        "read": "reading",
        "decode": "decoding and transforms",
        "sample": "your dataset, computing",
        "blocked": "your dataset, waiting",
        "batch": "putting batches together",
        "main": "handing over",
        "device": "copying to the device",
    }
    if parts:
        largest = sorted(parts, key=lambda name: -parts[name])[:3]
        lines.append("per sample: " + ", ".join(f"{named[name]} {seconds(parts[name])}" for name in largest))
    cores = stats["cpu"]["cores"]
    who = "no workers"
    if costs.servers.workers:
        one, many = ("thread", "threads") if stats["workers"]["kind"] != "processes" else ("process", "processes")
        who = quantity(stats["workers"]["count"], f"worker {one}", f"worker {many}")
    lines.append(f"{who}; {percent(stats['cpu']['share'])} of {quantity(cores, 'core', 'cores')} in use")
    lock = stats.get("lock")
    if kind == "python-bound" and lock:
        lines.append(f"whenever the loop looked, the interpreter's lock was taken: {percent(lock['held_share'])}")
    if stats["cache"]:
        lines.append(f"cache: {percent(stats['cache']['hit_rate'])} of the samples were there")
    if stats.get("gpu"):
        lines.append(f"the GPU was idle {percent(stats['gpu']['idle_share'])} of the time")
    if kind == "memory-bound":
        lines += stats["memory"]["decisions"][-2:]
    if kind == "startup-bound":
        lines.append(
            f"{quantity(stats['epochs'], 'epoch', 'epochs')} of {seconds(stats['seconds'] / stats['epochs'])}"
        )
        if stats["workers"]["choosing_seconds"] > 0:
            lines.append(f"choosing the workers took {seconds(stats['workers']['choosing_seconds'])}, once")
    return lines
