"""Too many workers for the cores: verdicts on runs of torch's loader that were recorded beside other programs."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest

from foreload.report.verdict import verdict
from tests.made_stats import stage, stats
from tests.report.cases import STOCK, started


class Run(NamedTuple):
    """Three epochs of 2,000 arrays in batches of 16 on two cores, of which other programs took most."""

    count: int
    seconds: float
    first: float
    loop: float
    loop_cpu: float
    share: float
    queued: float
    start_cpu: float
    end: float
    sample: tuple[float, float]
    batch: tuple[float, float]
    wait: tuple[float, float]


CROWDS = [
    Run(16, 21.98, 1.99, 2.77, 0.28, 0.12, 74.8, 0.48, 1.16, (3.08, 1.36), (1.87, 1.87), (19.21, 0.35)),
    Run(16, 18.72, 2.05, 2.1, 0.26, 0.125, 64.0, 0.41, 1.26, (2.06, 1.25), (1.74, 1.74), (16.62, 0.31)),
    Run(16, 21.82, 2.93, 2.93, 0.29, 0.125, 86.0, 0.54, 1.73, (2.21, 1.42), (1.96, 1.96), (18.89, 0.35)),
]
OTHERS = [
    Run(4, 16.63, 0.58, 1.59, 0.32, 0.151, 31.1, 0.11, 0.53, (1.78, 1.47), (2.05, 2.05), (15.04, 0.38)),
    Run(4, 19.2, 0.34, 2.99, 0.29, 0.125, 42.1, 0.11, 0.2, (1.81, 1.42), (1.95, 1.95), (16.21, 0.35)),
]


def slower(run: Run, time: float = 1.0, first: float = 1.0, end: float = 1.0) -> dict[str, Any]:
    """The run if all, and first batches and the end of workers even more, took as many times as long as here.

    The CPU time stays.
    """
    seconds = run.seconds * time
    stages = {
        "sample": stage(max(run.sample[0] * time, run.sample[1]), run.sample[1], 6000),
        "batch": stage(run.batch[0], run.batch[1], 6000),
        "wait": stage(run.wait[0] * time, run.wait[1], 6000),
    }
    seen = stats(
        run.count,
        "processes",
        loader=STOCK,
        epochs=3,
        batches=375,
        samples=6000,
        seconds=seconds,
        first_batch_seconds=min(run.first * time * first, 0.9 * seconds / 3),
        loop_seconds=run.loop * time,
        loop_cpu_seconds=run.loop_cpu,
        stages=stages,
        cpu={"cores": 2, "share": run.share / time, "queued_seconds": run.queued * time},
    )
    return started(seen, run.start_cpu, end=run.end * time * end)


NOISE = list(itertools.product((0.25, 0.5, 1.0, 1.5), (0.3, 0.7, 1.0, 1.25), (0.3, 1.0)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("run", CROWDS)
def test_too_many_workers_are_named_whatever_else_runs(run: Run) -> None:
    for noise in NOISE:
        found = verdict(slower(run, *noise))
        assert (found.kind, noise) == ("too-many-workers", noise)
        assert "num_workers=2 is enough" in found.sentence
        assert any(each.change == "num_workers=2 instead of 16" for each in found.advice)
        assert all(each.gain is None or each.gain >= 1.1 for each in found.advice)


@pytest.mark.slow
@pytest.mark.parametrize("run", OTHERS)
def test_workers_that_cost_little_to_start_are_not_blamed_for_other_programs(run: Run) -> None:
    for noise in NOISE:
        assert verdict(slower(run, *noise)).kind == "batch-bound"


def test_workers_that_wait_are_kept_however_much_their_start_takes() -> None:
    # Of 16 workers whose samples sleep, starting takes most of the little CPU time that there is.
    run = CROWDS[0]._replace(sample=(60.0, 0.2), batch=(0.2, 0.2), queued=0.5, share=0.06, seconds=8.0, first=0.5)
    assert verdict(slower(run._replace(start_cpu=0.5, end=0.2, loop=0.2, loop_cpu=0.1, wait=(7.8, 0.1)))).kind != (
        "too-many-workers"
    )


# Recorded with eight workers on two cores, which they keep busy: two epochs of 4,000 arrays in batches of 64,
# which took 1.05 s each and 0.91 s with two workers; and of 100,000 rows of tensors, which took 1.86 s, 1.6 s with
# two workers, and 0.34 s without any.
ARRAYS = stats(
    8,
    "processes",
    loader=STOCK,
    epochs=2,
    batches=126,
    samples=8000,
    seconds=2.092,
    first_batch_seconds=0.1105,
    loop_seconds=0.2883,
    loop_cpu_seconds=0.2871,
    stages={
        "sample": stage(1.228, 1.076, 8000, count=126),
        "batch": stage(1.845, 1.845, 0, count=126),
        "wait": stage(1.803, 0.0762, 8000, count=126),
    },
    memory={"batch_bytes": 19_660_800},
    cpu={"cores": 2, "share": 0.894, "queued_seconds": 0.778},
)
ROWS = stats(
    8,
    "processes",
    loader=STOCK,
    epochs=2,
    batches=3126,
    samples=200_000,
    seconds=4.224,
    first_batch_seconds=0.202,
    loop_seconds=0.1776,
    loop_cpu_seconds=0.1697,
    stages={
        "sample": stage(0.819, 0.819, 200_000, count=3126),
        "batch": stage(1.654, 1.654, 0, count=3126),
        "wait": stage(4.047, 2.048, 200_000, count=3126),
    },
    memory={"batch_bytes": 26_112},
    cpu={"cores": 2, "share": 0.891, "queued_seconds": 0.007},
)


@pytest.mark.parametrize(
    ("seen", "enough", "advised"),
    [
        (started(ARRAYS, 0.199, end=0.0568), "num_workers=2 is enough", "num_workers=2 instead of 8"),
        (started(ROWS, 0.34, end=0.086), "num_workers=0, no workers at all", "num_workers=0 instead of 8"),
    ],
)
def test_eight_workers_are_too_many_for_two_cores(seen: dict[str, Any], enough: str, advised: str) -> None:
    found = verdict(seen)
    assert found.kind == "too-many-workers"
    assert enough in found.sentence
    assert any(each.change == advised for each in found.advice)


def test_workers_are_kept_whose_samples_the_loop_would_have_to_make() -> None:
    # Eight workers that compute, on eight cores.
    seen = stats(
        8, "processes", loader=STOCK, stages={"sample": stage(10.0, 10.0)}, cpu={"cores": 8, "share": 1.0}
    )
    assert verdict(seen).kind == "decode-bound"
