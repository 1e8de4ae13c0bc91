"""The number of workers to advise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from foreload.tune.costs import Costs
from foreload.tune.predict import predict

if TYPE_CHECKING:
    from foreload.record.stats import Stats


__all__ = ["MIN_GAIN", "excess_workers", "numbers_of_workers", "predicted_gain", "smallest_good"]

# A smaller gain is within the error of a prediction, and not worth a change.
MIN_GAIN = 1.1

# If so much of the CPU time goes into starting workers that are not needed, fewer are better, and only by how much
# is in doubt: other programs change how long things take, but hardly the CPU time that they take.
_STARTING_SHARE, _LEAST_IF_CERTAIN = 0.03, 1.03

# From this share of the cores' time on, CPU time that is saved is time that is saved.
_CORES_USED_UP = 0.8

# Of several settings, the smallest that reaches this share of the best one's gain is advised.
_NEAR_BEST = 0.95

# Waiting threads cost little, but not nothing.
_MAX_WORKERS = 32


def predicted_gain(stats: Any, costs: Costs, now: float, **change: Any) -> float:
    """Return the predicted samples per second over those ``now``; at most that of a loop that never waits."""
    most = stats["seconds"] / stats["loop_seconds"] if stats["loop_seconds"] > 0 else float("inf")
    return min(predict(stats, fitted=costs, **change) / now, most)


def smallest_good(gains: Mapping[int, float]) -> int:
    """Return the smallest setting whose gain is next to the best one's.

    >>> smallest_good({1: 1.0, 2: 1.97, 4: 2.0, 8: 1.99})
    2
    """
    best = max(gains.values())
    return min(number for number, gain in gains.items() if gain >= _NEAR_BEST * best)


def numbers_of_workers(stats: Any) -> list[int]:
    """List numbers of workers to try, other than the present one."""
    count, cores = int(stats["workers"]["count"]), int(stats["cpu"]["cores"])
    most = min(_MAX_WORKERS, max(4 * count, 8))
    if stats["workers"]["kind"] != "threads" or stats["loader"].get("stock"):
        most = min(most, max(2 * cores, 8))
    numbers = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, cores}
    return sorted(number for number in numbers if number != count and (number < count or number <= most))


def _with_end(stats: Any, share: float, gain: float) -> float:
    """Return a gain of epochs that are over only when their workers have ended, if a share of them is left."""
    if not 0 < gain < float("inf"):
        return 0.0  # too little was measured to tell
    end = stats["workers"].get("end_seconds", 0.0)
    return float((stats["seconds"] + end) / (stats["seconds"] / gain + end * share))


def _starting_share(stats: Any, enough: float) -> float:
    """Return the share of the CPU time that starting those workers took which are more than enough."""
    used = float(stats["cpu"]["share"] * stats["cpu"]["cores"] * stats["seconds"])
    starting = float(stats["workers"].get("start_cpu_seconds", 0.0))
    return min(1.0, starting / used) * (1 - enough / int(stats["workers"]["count"])) if used > 0 else 0.0


def _gain_of_fewer(stats: Any, costs: Costs, now: float, number: int) -> float:
    """Return the predicted gain of fewer workers, to the end of the last one."""
    gain = _with_end(stats, number / stats["workers"]["count"], predicted_gain(stats, costs, now, workers=number))
    if number < stats["cpu"]["cores"] or stats["cpu"]["share"] < _CORES_USED_UP:
        return gain
    # They still keep all cores busy, with less to do.
    return max(gain, 1 / (1 - min(0.9, _starting_share(stats, number))))


def excess_workers(stats: Stats | Mapping[str, Any], costs: Costs) -> tuple[int, float] | None:
    """Return the number of workers that is enough, and its predicted gain, if there are too many for the cores.

    It is 0 if no number of workers is nearly as good as the loop without any.
    """
    count, cores = int(stats["workers"]["count"]), stats["cpu"]["cores"]
    if count <= cores:
        return None
    fewer = [number for number in numbers_of_workers(stats) if number < count]
    now = predict(stats, fitted=costs)
    gains = {number: _gain_of_fewer(stats, costs, now, number) for number in fewer}
    alone = _with_end(stats, 0, predicted_gain(stats, costs, now, workers=0))
    if alone >= MIN_GAIN * max(1.0, *gains.values()):
        return 0, alone
    # Of those that gain at all, the smallest, unless another gains clearly more.
    least = _LEAST_IF_CERTAIN if _starting_share(stats, cores) >= _STARTING_SHARE else MIN_GAIN
    gains = {number: gain for number, gain in gains.items() if gain >= least}
    number = min((number for number in gains if gains[number] * MIN_GAIN >= max(gains.values())), default=None)
    return None if number is None else (number, gains[number])
