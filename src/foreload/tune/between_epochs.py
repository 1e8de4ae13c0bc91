"""Tuning between epochs: the number of worker processes, and the split of a memory budget.

These cannot change while an epoch runs: worker processes know how many they are, and a cache is planned for an
epoch. The kind of workers stays as it was chosen before the dataset was first used, since a dataset that was used
(with an open file, a connection) must not be forked afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from foreload.cache.budget import MemoryBudget
from foreload.machine import available_memory, granted_cores
from foreload.record.units import quantity, workers
from foreload.record.usage import tree_bytes
from foreload.tune.costs import Costs, busy_share
from foreload.tune.interval import CounterReading, Observed, between
from foreload.tune.predict import predict
from foreload.tune.trials import Trial, Trials

__all__ = ["Retuner", "most_processes"]

if TYPE_CHECKING:
    from foreload.record.stats import Stats


# The fewest seconds of epochs that say anything.
_MIN_SECONDS = 1.0

# The most worker processes per core (many only wait), and the share of the available memory that they may take.
_MAX_PER_CORE = 4
_AVAILABLE_SHARE = 0.5

# Fewer workers are preferred if their pace is at least this share of the best.
_AS_GOOD = 0.98


class Retuner:
    """Tunes a loader between its epochs: one change at a time, kept if it helped.

    Args:
        changes: the list for the changes that it makes and their reasons, in words.
    """

    def __init__(self, changes: list[str]) -> None:
        self.changes = changes
        self._workers: Trials[int] | None = None
        self._reserve: Trials[int] | None = None
        self._began: CounterReading | None = None
        self._epochs = 0  # since then

    def begin(self, observed: Observed, budget: MemoryBudget, prefetch_factor: int | None) -> int:
        """Look at the past epochs before another one begins, and change what is worth changing.

        Args:
            observed: the loader as it ran.
            budget: its memory budget, of which the cache's share may change.
            prefetch_factor: batches made ahead per worker.

        Returns:
            The number of workers for the coming epoch.
        """
        # Most epochs are too short to say anything, and many are shorter than taking a reading.
        since = self._began
        self._epochs += 1
        by_processes = observed.kind == "processes"
        if since is not None and observed.recorder.seconds - since.seconds < _MIN_SECONDS:
            return observed.count
        reading = CounterReading.of(observed.recorder, processes=by_processes)
        epochs, self._epochs = self._epochs, 0
        if since is None:
            self._began = reading
            return observed.count
        last = observed.recorder.last
        stats = between(observed, since, reading, 0 if last is None else last.depth)
        if stats["samples"] == 0:
            return observed.count
        stats["epochs"] = epochs  # each starts its workers anew
        self._began = reading
        if observed.cache is not None:
            self._split(observed, budget, prefetch_factor or 2, stats)
        elif by_processes or observed.count == 0 or self._workers is not None:
            return self._count(observed, stats)
        return observed.count

    def _count(self, observed: Observed, stats: dict[str, Any]) -> int:
        if self._workers is None:
            self._workers = Trials(observed.count, windows=1)
        kind = observed.kind

        def propose(count: int, tried: set[int]) -> tuple[int, float] | None:
            most = _MAX_PER_CORE * granted_cores()
            others = {1 << power for power in range(most.bit_length())} | {granted_cores()}
            if kind == "processes":
                others = {other for other in others if other <= most_processes(stats)}
                each = tree_bytes() / (1 + count)
                room = count + _AVAILABLE_SHARE * available_memory() / each
                others = {other for other in others if other <= room}
            costs = Costs.of(stats)
            paces = {other: predict(stats, workers=other, kind=kind, fitted=costs) for other in others - tried}
            return _best(paces, predict(stats, fitted=costs))

        trials = self._workers
        done = len(trials.done)
        changed = trials.observe(stats["samples"], stats["seconds"], propose)
        self._describe_new(trials, done, lambda count: workers(count, kind) if count else "no worker")
        return trials.setting if changed else observed.count

    def _split(
        self, observed: Observed, budget: MemoryBudget, prefetch_factor: int, stats: dict[str, Any]
    ) -> None:
        if budget.limit is None or not budget.batch:
            return
        if self._reserve is None:
            self._reserve = Trials(budget.reserve, windows=1)

        def propose(reserve: int, tried: set[int]) -> tuple[int, float] | None:
            most = prefetch_factor * max(1, observed.count)
            others = {1 << power for power in range(most.bit_length())} - tried
            costs = Costs.of(stats)
            paces = {other: _with_reserve(budget, stats, costs, reserve, other) for other in others}
            return _best(paces, predict(stats, fitted=costs))

        trials = self._reserve
        done = len(trials.done)
        if trials.observe(stats["samples"], stats["seconds"], propose):
            budget.reserve = trials.setting
            self._began = None  # the cache has to be filled, or emptied, first
        self._describe_new(
            trials, done, lambda reserve: f"a cache that leaves room for {quantity(reserve, 'batch', 'batches')}"
        )

    def _describe_new(self, trials: Trials[int], done: int, named: Any) -> None:
        for trial in trials.done[done:]:
            self.changes.append(_describe(trial, named))


def most_processes(stats: Stats | Mapping[str, Any]) -> int:
    """Return the most worker processes that have anything to run on.

    A sample keeps a core busy for some share of its time. More processes than the cores divided by that share
    would wait for a core, and each costs its start and its memory. If samples only compute, it is the cores.

    >>> stage = {"count": 50, "seconds": 10.0, "cpu_seconds": 9.0, "samples": 5000, "bytes": 0}
    >>> computing = {"samples": 5000, "batches": 50, "seconds": 5.0, "loop_seconds": 0.0, "loop_cpu_seconds": 0.0,
    ...     "stages": {"sample": stage}, "cpu": {"cores": 4, "share": 0.9}, "loader": {}, "workers": {"count": 4}}
    >>> waiting = {**computing, "stages": {"sample": {**stage, "cpu_seconds": 2.5}}}
    >>> most_processes(computing), most_processes(waiting)
    (4, 16)
    """
    busy = busy_share(stats)
    cores = stats["cpu"]["cores"]
    return max(cores, int(cores / busy)) if busy > 0 else _MAX_PER_CORE * cores


def _best(paces: dict[int, float], now: float) -> tuple[int, float] | None:
    if not paces:
        return None
    most = max(paces.values())
    best = min(other for other, pace in paces.items() if pace >= _AS_GOOD * most)
    return best, paces[best] / now


def _with_reserve(budget: MemoryBudget, stats: dict[str, Any], costs: Costs, reserve: int, other: int) -> float:
    """Predict the samples per second if the cache leaves room for another number of batches."""
    now, then = (budget.beside(batches) for batches in (reserve, other))
    rate = stats["cache"]["hit_rate"]
    smoother = costs.deeper(reserve, other).pace() / costs.pace()
    return smoother * predict(stats, cache=min(1.0, rate * then / now) if now else 0.0, fitted=costs)


def _describe(trial: Trial[int], named: Any) -> str:
    return f"{named(trial.tried)} instead of {named(trial.before)}: {trial.outcome}"
