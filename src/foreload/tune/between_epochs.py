"""Between epochs: how many worker processes, whether threads after all, and how a memory budget is split.

These cannot change while an epoch runs: worker processes know how many they are, and a cache is planned for an
epoch. Whether workers are threads or processes stays as it was chosen before the dataset was first used, since one
that was used (with an open file, a connection) must not be forked afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreload.machine import available_memory, granted_cores
from foreload.record.units import number, quantity, workers
from foreload.record.usage import tree_bytes
from foreload.tune.costs import Costs, WorkerKind
from foreload.tune.interval import Reading, between
from foreload.tune.predict import predict
from foreload.tune.trials import Trial, Trials

if TYPE_CHECKING:
    from foreload.loader import DataLoader


__all__ = ["Retuner"]

# Less than these seconds of epochs say nothing.
_ENOUGH = 1.0

# Worker processes per core, which mostly wait, and of what memory is left what they may take.
_PER_CORE = 4
_SHARE_LEFT = 0.5

# How near to the best is as good, with fewer workers.
_AS_FAST = 0.98


class Retuner:
    """Changes what can change only between a loader's epochs: one thing at a time, each kept if it helped.

    Args:
        changes: where it says what it changed and why.
    """

    def __init__(self, changes: list[str]) -> None:
        self.changes = changes
        self._workers: Trials[int] | None = None
        self._reserve: Trials[int] | None = None
        self._began: Reading | None = None

    def begin(self, loader: DataLoader[Any]) -> None:
        """An epoch is about to begin: look at those before it, and change what is worth it."""
        # Most epochs are too short to say anything, and many of them shorter than a reading would take.
        since = self._began
        if since is not None and loader._recorder.seconds - since.seconds < _ENOUGH:
            return
        reading = Reading.of(loader._recorder, processes=loader.by_processes)
        if since is None:
            self._began = reading
            return
        last = loader._recorder.last
        stats = between(loader, since, reading, 0 if last is None else last.depth)
        if stats["samples"] == 0:
            return
        self._began = reading
        if loader._cache is not None:
            self._split(loader, stats)
        elif loader.by_processes or loader.num_workers == 0 or self._workers is not None:
            self._count(loader, stats)

    def _count(self, loader: DataLoader[Any], stats: dict[str, Any]) -> None:
        if self._workers is None:
            self._workers = Trials(loader.num_workers, windows=1)
        kind: WorkerKind = "processes" if loader.by_processes else "threads"

        def propose(count: int, tried: set[int]) -> tuple[int, float] | None:
            most = _PER_CORE * granted_cores()
            others = {1 << power for power in range(most.bit_length())} | {granted_cores()}
            if kind == "processes":
                each = tree_bytes() / (1 + count)
                room = count + _SHARE_LEFT * available_memory() / each
                others = {other for other in others if other <= room}
            return _best({other: predict(stats, workers=other, kind=kind) for other in others - tried}, stats)

        trials = self._workers
        done = len(trials.done)
        if trials.observe(stats["samples"], stats["seconds"], propose):
            loader.num_workers = trials.setting
        self._tell(trials, done, lambda count: workers(count, kind) if count else "no worker")

    def _split(self, loader: DataLoader[Any], stats: dict[str, Any]) -> None:
        budget = loader._memory
        if budget.limit is None or not budget.batch:
            return
        if self._reserve is None:
            self._reserve = Trials(budget.reserve, windows=1)

        def propose(reserve: int, tried: set[int]) -> tuple[int, float] | None:
            most = (loader.prefetch_factor or 2) * max(1, loader.num_workers)
            others = {1 << power for power in range(most.bit_length())} - tried
            return _best({other: _with_reserve(loader, stats, reserve, other) for other in others}, stats)

        trials = self._reserve
        done = len(trials.done)
        if trials.observe(stats["samples"], stats["seconds"], propose):
            budget.reserve = trials.setting
            self._began = None  # the cache has to be filled, or emptied, first
        self._tell(
            trials, done, lambda reserve: f"a cache that leaves room for {quantity(reserve, 'batch', 'batches')}"
        )

    def _tell(self, trials: Trials[int], done: int, named: Any) -> None:
        for trial in trials.done[done:]:
            self.changes.append(_told(trial, named))


def _best(paces: dict[int, float], stats: dict[str, Any]) -> tuple[int, float] | None:
    if not paces:
        return None
    most = max(paces.values())
    best = min(other for other, pace in paces.items() if pace >= _AS_FAST * most)
    return best, paces[best] / predict(stats)


def _with_reserve(loader: DataLoader[Any], stats: dict[str, Any], reserve: int, other: int) -> float:
    """Predict the samples per second where the cache leaves room for another number of batches."""
    now, then = (loader._memory.beside(batches) for batches in (reserve, other))
    rate = stats["cache"]["hit_rate"]
    costs = Costs.of(stats)
    smoother = costs.deeper(reserve, other).pace() / costs.pace()
    return smoother * predict(stats, cache=min(1.0, rate * then / now) if now else 0.0)


def _told(trial: Trial[int], named: Any) -> str:
    told = f"{named(trial.tried)} instead of {named(trial.before)}: {number(trial.predicted)} times the samples/s "
    told += f"predicted, {trial.measured:.2f} times measured"
    return told if trial.kept else f"{told}, and taken back"
