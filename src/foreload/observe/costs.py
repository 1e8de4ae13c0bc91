"""What a sample costs and who pays for it, taken from a loader's statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from foreload.observe.queueing import Crew, Demand, bounds, throughput

if TYPE_CHECKING:
    from foreload.observe.stats import Stats

__all__ = ["Cost", "Costs", "WorkerKind", "measured_pace"]

WorkerKind = Literal["threads", "processes"]

# Stages of a worker, in the order of a sample's journey; `order` and `device` are the consumer's.
WORK = ("read", "decode", "cache", "sample", "transform", "batch")

# The stages that run the user's Python, where the native core does not assemble the batches.
_PYTHON = ("read", "decode", "sample", "transform", "batch")

# So often must have been looked at the interpreter's lock before its share means anything.
_LOOKS = 20

# From this share on, the lock is what workers wait for.
LOCK_FULL = 0.85

_STEPS = 40


@dataclass(frozen=True)
class Cost:
    """Seconds of a stage per sample that passes it.

    Attributes:
        cpu: on a core.
        idle: not on one.
        share: of all samples, those that pass it.
        samples: whether it was told how many pass it.
    """

    cpu: float = 0.0
    idle: float = 0.0
    share: float = 1.0


@dataclass(frozen=True)
class Costs:
    """What a sample costs.

    Attributes:
        stages: of the workers.
        locked: the share of the workers' Python CPU time that holds the interpreter's lock.
        handing: CPU seconds per batch for taking it over.
        loop, away: seconds of the loop's own work per sample, on a core and off it.
        blocked: the share of the stages' idle time in which workers are blocked, and not waiting for each other.
        gap: seconds per sample between the stages that nothing explains.
        gain: what the model has to be multiplied with to give what was measured, where it is too low.
        batch: samples per batch.
        crew: who worked.
        depth: batches kept in the making.
        native: whether the native core assembles the batches.
    """

    stages: Mapping[str, Cost]
    locked: float
    handing: float
    loop: float
    away: float
    batch: float
    crew: Crew
    depth: int
    native: bool
    blocked: float = 1.0
    gap: float = 0.0
    gain: float = 1.0

    @property
    def demand(self) -> Demand:
        """What one sample costs, for the queueing model."""
        python = free = idle = 0.0
        for name, cost in self.stages.items():
            idle += cost.share * cost.idle
            if name in _PYTHON and not self.native:
                python += cost.share * cost.cpu
            else:
                free += cost.share * cost.cpu
        return Demand(
            locked=python * self.locked,
            free=free + python * (1 - self.locked),
            blocked=idle * self.blocked + self.gap,
            handing=self.handing / self.batch,
            loop=self.loop,
            away=self.away,
        )

    @property
    def work(self) -> float:
        """Seconds of work of one sample by workers, without what they wait for."""
        return self.demand.locked + self.demand.free + self.demand.blocked

    def pace(self) -> float:
        """Samples per second, by the model."""
        reached = throughput(self.demand, self.crew)
        return max(reached, min(self.gain * reached, *bounds(self.demand, self.crew).values()))

    @classmethod
    def of(cls, stats: Stats | Mapping[str, Any]) -> Costs:
        """Take them from statistics.

        Raises:
            ValueError: no sample was loaded yet.
        """
        samples, batches = stats["samples"], stats["batches"]
        if samples < 1 or batches < 1 or stats["seconds"] <= 0:
            raise ValueError("nothing was loaded yet: iterate the loader for some batches first")
        workers = stats["workers"]
        count = int(workers["count"])
        depth = int(workers.get("depth") or 2 * max(1, count))
        stages = _stages(stats)
        handing, loose = _handing(stats, stages)
        threads = workers["kind"] != "processes"
        native = bool(stats["loader"]["native"])
        if count and loose:
            stages["batch"] = replace(stages["batch"], cpu=stages["batch"].cpu + loose)
        loop_cpu = min(stats["loop_cpu_seconds"], stats["loop_seconds"])
        costs = cls(
            stages=stages,
            locked=1.0,
            handing=handing,
            loop=loop_cpu / samples,
            away=(stats["loop_seconds"] - loop_cpu) / samples,
            batch=samples / batches,
            crew=crew(count, "threads" if threads else "processes", float(stats["cpu"]["cores"]), depth),
            depth=depth,
            native=native,
        )
        locked = _locked(stats, costs) if threads and not native else 1.0
        return _fitted(replace(costs, locked=locked), measured_pace(stats), _held(stats))


def crew(count: int, kind: WorkerKind, cores: float, depth: int) -> Crew:
    """Make the crew; workers beyond the batches in the making have nothing to do."""
    return Crew(min(count, depth) if kind == "processes" else count, cores, kind == "threads")


def measured_pace(stats: Stats | Mapping[str, Any]) -> float:
    """Give the samples per second once the first batch of an epoch was there."""
    batches, epochs = stats["batches"], max(1, stats["epochs"])
    first = min(stats["first_batch_seconds"] * epochs, 0.9 * stats["seconds"])
    if batches <= 2 * epochs:
        return float(stats["samples"] / stats["seconds"])
    return float(stats["samples"] * (1 - epochs / batches) / (stats["seconds"] - first))


def _stages(stats: Any) -> dict[str, Cost]:
    """Give the costs of the workers' stages; where no CPU time was taken, an even share of what there was."""
    samples = stats["samples"]
    entries = {name: stats["stages"].get(name) for name in WORK}
    known = {name: entry for name, entry in entries.items() if entry is not None}
    told = sum(stage["cpu_seconds"] for stage in stats["stages"].values())
    unknown = sum(entry["seconds"] for entry in known.values() if entry["cpu_seconds"] <= 0)
    left = _cpu(stats) - min(stats["loop_cpu_seconds"], stats["loop_seconds"]) - told
    part = min(1.0, max(0.0, left) / unknown) if unknown > 0 else 0.0
    stages = {}
    for name in WORK:
        entry = entries[name] or {"seconds": 0.0, "cpu_seconds": 0.0, "samples": 0}
        cpu = min(entry["cpu_seconds"] or entry["seconds"] * part, entry["seconds"])
        passed = entry["samples"] or samples
        stages[name] = Cost(cpu / passed, (entry["seconds"] - cpu) / passed, min(1.0, passed / samples))
    return stages


def _cpu(stats: Any) -> float:
    """Give the CPU seconds of all processes."""
    return float(stats["cpu"]["share"] * stats["cpu"]["cores"] * stats["seconds"])


def _handing(stats: Any, stages: Mapping[str, Cost]) -> tuple[float, float]:
    """Give the CPU seconds that the consumer spends on a batch beside the loop, and what workers do per sample.

    CPU time that is in no stage is spent on handing batches over. That is the consumer's, as far as it had time.
    """
    samples, batches = stats["samples"], stats["batches"]
    named = sum(stage.share * stage.cpu for stage in stages.values()) * samples
    own = sum(stats["stages"][name]["seconds"] for name in ("order", "device") if name in stats["stages"])
    loop_cpu = min(stats["loop_cpu_seconds"], stats["loop_seconds"])
    loose = max(0.0, _cpu(stats) - loop_cpu - named - own)
    if stats["workers"]["count"] == 0:
        made = sum(stage.share * (stage.cpu + stage.idle) for stage in stages.values()) * samples
        return max(own, stats["wait_seconds"] - made) / batches, 0.0
    room = max(0.0, stats["wait_seconds"] - own)
    handed = min(loose, 0.5 * room)
    return (own + handed) / batches, (loose - handed) / samples


def _held(stats: Any) -> float | None:
    """Give the share of looks that found the interpreter's lock taken by workers; None where too few were made."""
    lock = stats.get("lock")
    return None if not lock or lock["looks"] < _LOOKS else float(lock["held_share"])


def _locked(stats: Any, costs: Costs) -> float:
    """Give the share of the workers' Python that holds the lock: all, where nothing is known about it."""
    held = _held(stats)
    python = sum(c.share * c.cpu for name, c in costs.stages.items() if name in _PYTHON)
    if python <= 0:
        return 1.0
    pace = measured_pace(stats)
    # A lock cannot be held for more than all of the time.
    most = min(1.0, max(0.0, 1 / pace - costs.handing / costs.batch) / python)
    return most if held is None else min(most, held / (pace * python))


def _fitted(costs: Costs, pace: float, held: float | None) -> Costs:
    """Choose what cannot be measured so that the model gives what was measured."""
    if costs.crew.workers == 0:
        return replace(costs, gain=pace / costs.pace())
    alone = replace(costs, blocked=0.0)
    if alone.pace() <= pace:
        return replace(alone, gain=pace / alone.pace())
    if costs.pace() > pace:
        # Time between the stages: handing out of work, waking up.
        low, high = 0.0, costs.crew.workers / pace
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if replace(costs, gap=middle).pace() > pace else (low, middle)
        return replace(costs, gap=low)
    # What is idle is blocked, or waits for cores or for the lock.
    wanted = pace * 0.98 if held is not None and held > LOCK_FULL else pace
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if replace(costs, blocked=middle).pace() > wanted else (low, middle)
    return replace(costs, blocked=low)
