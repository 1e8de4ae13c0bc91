"""The gain of foreload's loader in place of torch's, as predicted from torch's, against what the change gave."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from foreload.report.verdict import verdict
from foreload.tune.predict import predict
from tests.made_stats import stage, stats
from tests.report.cases import STOCK, started


class Run(NamedTuple):
    """Epochs of torch's loader on two cores, recorded by ``foreload profile``; times are (wall, CPU) seconds."""

    gain: float  # that was measured: benchmarks/record/swap.py
    count: int
    epochs: int
    batches: int
    samples: int
    seconds: float
    first: float
    loop: tuple[float, float]
    share: float
    queued: float
    start_cpu: float
    batch_bytes: int
    order: float
    sample: tuple[float, float]
    batch: float
    wait: tuple[float, float]


RUNS = {
    "numbers, small batches": Run(
        4.8,
        2,
        3,
        6000,
        24000,
        3.538,
        0.0311,
        (0.2359, 0.2216),
        0.8668,
        0.0005235,
        0.09965,
        32,
        0.03722,
        (0.07142, 0.06627),
        0.591,
        (3.302, 2.203),
    ),
    "numbers": Run(
        4.2,
        2,
        3,
        2814,
        180000,
        1.839,
        0.02981,
        (0.1156, 0.1083),
        0.8557,
        0.0001988,
        0.1036,
        512,
        0.03637,
        (0.05109, 0.04854),
        0.3303,
        (1.723, 1.136),
    ),
    "numbers, one worker": Run(
        5.9,
        1,
        3,
        2814,
        180000,
        3.46,
        0.02668,
        (0.1396, 0.1309),
        0.7251,
        0.0008548,
        0.04804,
        512,
        0.04186,
        (0.05185, 0.04903),
        0.4181,
        (3.321, 1.628),
    ),
    "numbers, large batches": Run(
        2.1,
        2,
        3,
        588,
        600000,
        0.4384,
        0.03082,
        (0.01686, 0.01599),
        0.7498,
        6.524e-05,
        0.09123,
        8192,
        0.01492,
        (0.03158, 0.0311),
        0.1304,
        (0.4216, 0.194),
    ),
    "arrays": Run(
        4.3,
        2,
        3,
        375,
        6000,
        1.792,
        0.03548,
        (0.2451, 0.2445),
        0.8776,
        0.07315,
        0.05568,
        4915200,
        0.004296,
        (0.7904, 0.7848),
        1.543,
        (1.547, 0.2309),
    ),
    "arrays, large batches": Run(
        2.2,
        2,
        3,
        48,
        6000,
        1.69,
        0.1386,
        (0.2027, 0.2),
        0.8968,
        0.1611,
        0.07117,
        39321600,
        0.00133,
        (1.248, 1.229),
        1.428,
        (1.487, 0.04724),
    ),
    "samples of megabytes": Run(
        3.9,
        2,
        3,
        150,
        600,
        2.385,
        0.07989,
        (0.3159, 0.3156),
        0.9063,
        0.2072,
        0.09684,
        17280000,
        0.001993,
        (1.611, 1.602),
        1.914,
        (2.069, 0.115),
    ),
    "text in Python": Run(
        1.32,
        2,
        3,
        375,
        6000,
        0.6373,
        0.03005,
        (0.01352, 0.01056),
        0.8323,
        0.0001828,
        0.09683,
        128,
        0.003108,
        (0.5476, 0.5474),
        0.04399,
        (0.6238, 0.1509),
    ),
}


def recorded(run: Run) -> dict[str, Any]:
    stages = {
        "order": stage(run.order, run.order, 0, count=run.batches),
        "sample": stage(*run.sample, run.samples, count=run.batches),
        "batch": stage(run.batch, run.batch, 0, count=run.batches),
        "wait": stage(*run.wait, run.samples, count=run.batches),
    }
    seen = stats(
        run.count,
        "processes",
        stages,
        loader={**STOCK, "batch_tensors": 1},
        epochs=run.epochs,
        batches=run.batches,
        samples=run.samples,
        seconds=run.seconds,
        first_batch_seconds=run.first,
        loop_seconds=run.loop[0],
        loop_cpu_seconds=run.loop[1],
        memory={"batch_bytes": run.batch_bytes},
        cpu={"cores": 2, "share": run.share, "queued_seconds": run.queued},
    )
    return started(seen, run.start_cpu)


@pytest.mark.parametrize("name", RUNS)
def test_the_predicted_gain_of_the_swap_is_near_the_measured_one(name: str) -> None:
    seen = recorded(RUNS[name])
    gain = predict(seen, loader="foreload") / predict(seen)
    # The runs were recorded, and the gains measured, beside other programs.
    assert 0.7 < gain / RUNS[name].gain < 1.15


def test_batches_do_not_come_faster_than_they_can_be_copied() -> None:
    # Of ten samples in 100 MiB, whose handing over takes nearly all of the time.
    stages = {"sample": stage(0.1, 0.1), "batch": stage(7.0, 7.0), "wait": stage(4.0, 0.5)}
    seen = stats(
        2,
        "processes",
        stages,
        seconds=4.0,
        loader=STOCK,
        cpu={"cores": 2, "share": 0.95},
        memory={"batch_bytes": 100 << 20},
    )
    batches = predict(seen, loader="foreload") / 10
    assert batches * (100 << 20) < 2 / 1.5e-10


def test_rows_of_tensors_without_workers_have_a_predicted_gain_too() -> None:
    # Measured: a TensorDataset of 100,000 x 100 floats in batches of 64, 8 to 11 times as fast.
    seen = stats(
        0,
        epochs=3,
        batches=4689,
        samples=300_000,
        seconds=0.811,
        wait_seconds=0.791,
        wait_share=0.975,
        first_batch_seconds=0.0019,
        loop_seconds=0.02,
        loop_cpu_seconds=0.02,
        stages={"sample": stage(0.51, 0.51, 300_000), "batch": stage(0.19, 0.19, 300_000)},
        memory={"batch_bytes": 64 * 408},
        cpu={"cores": 2, "share": 0.52},
        loader={**STOCK, "is_rows": True, "dataset": "TensorDataset"},
    )
    assert 6 < predict(seen, loader="foreload") / predict(seen) < 14
    best = verdict(seen).advice[0]
    assert "foreload.DataLoader" in best.change
    assert best.gain is not None
    assert not any("images" in each.change or "collate_fn" in each.change for each in verdict(seen).advice)
    other = {**seen, "loader": {**seen["loader"], "is_rows": False}}
    assert verdict(other).advice[0].gain is None
