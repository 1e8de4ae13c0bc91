"""The depth at which worker processes load ahead, simulated batch by batch, for workers that take turns."""

from __future__ import annotations

import numpy as np
import pytest

from foreload.epochs.depth import Idleness


def simulated(durations: list[float], workers: int) -> tuple[list[int], float]:
    """Return the depth after each batch, and the seconds until a loop that only waits has all of them.

    Batches go to the workers in turn, as many ahead as the depth says, and come in order.
    """
    now = 0.0
    idleness = Idleness(workers, clock=lambda: now)
    depth, depths = 2 * workers, list[int]()
    finished = [0.0] * len(durations)
    free = [0.0] * workers
    dealt = 0
    for number in range(len(durations)):
        while dealt < min(len(durations), number + depth):
            worker = dealt % workers
            free[worker] = finished[dealt] = max(free[worker], now) + durations[dealt]
            dealt += 1
        waited = max(0.0, finished[number] - now)
        now += waited
        idle = [min(waited, now - each) if each < now else 0.0 for each in free]
        made = sum(each <= now for each in finished[:dealt])
        if waited and any(idle) and idleness.is_much(idle, made, depth):
            depth += workers
        depths.append(depth)
    return depths, now


@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("spread", [0.0, 0.05, 0.15])
@pytest.mark.parametrize("seed", range(3))
def test_workers_that_take_about_as_long_for_each_batch_go_no_further_ahead(
    workers: int, spread: float, seed: int
) -> None:
    durations = np.random.default_rng(seed).normal(0.01, spread * 0.01, 2_000).clip(0.002)
    assert set(simulated(durations.tolist(), workers)[0]) == {2 * workers}


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_batches_that_hold_up_the_others_are_worth_more_ahead(workers: int, seed: int) -> None:
    uneven = np.where(np.random.default_rng(seed).random(3_000) < 0.02, 0.4, 0.01).tolist()
    depths, seconds = simulated(uneven, workers)
    least = sum(uneven) / workers
    assert depths[-1] > 4 * workers
    # Without: each of them is waited for while the others have made the two that they have.
    waiting = sum(0.4 - 2 * 0.01 for each in uneven if each > 0.1) * (1 - 1 / workers)
    assert seconds < least + 0.6 * waiting


def test_one_slow_batch_among_many_is_worth_it_once() -> None:
    durations = [0.01] * 200
    durations[0] = 1.0
    depths, _ = simulated(durations, 2)
    assert depths[0] == 6
    assert depths[-1] <= 8
