"""The queueing model against bounds, closed forms and a simulation; predictions from statistics."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreload.report.verdict import verdict
from foreload.tune.costs import Costs
from foreload.tune.predict import predict
from foreload.tune.queueing import Demand, Servers, bounds, reaches_more, throughput
from tests.made_stats import stage, stats
from tests.queue_simulation import Simulation

times = st.sampled_from([0.0, 0.1, 0.3, 1.0, 2.0])
demands = st.builds(Demand, times, times, times, st.sampled_from([0.0, 0.02, 0.1]), times, times).filter(
    lambda demand: sum(demand[:3]) > 0
)
server_kinds = st.builds(Servers, st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.booleans())


@given(demands, server_kinds)
def test_nothing_exceeds_a_bound(demand: Demand, servers: Servers) -> None:
    pace = throughput(demand, servers)
    assert 0 < pace <= min(bounds(demand, servers).values())
    assert bounds(demand, servers)["workers"] == pytest.approx(servers.workers / sum(demand[:3]))


@given(demands, st.sampled_from([1, 2, 4]), st.booleans())
def test_more_cores_never_harm(demand: Demand, workers: int, one_lock: bool) -> None:
    paces = [throughput(demand, Servers(workers, cores, one_lock)) for cores in (1, 1.5, 2, 3, 4, 8, 64)]
    assert all(after >= before * (1 - 1e-4) for before, after in itertools.pairwise(paces))


@given(demands, st.sampled_from([1, 2, 4]), st.booleans())
def test_more_workers_never_harm(demand: Demand, cores: int, one_lock: bool) -> None:
    paces = [throughput(demand, Servers(workers, cores, one_lock)) for workers in (1, 2, 3, 4, 8, 16)]
    assert all(after >= before * (1 - 1e-4) for before, after in itertools.pairwise(paces))


@given(demands, server_kinds, st.sampled_from([0.5, 0.999, 1.001, 2.0]))
def test_a_pace_is_reached_up_to_the_highest_one(demand: Demand, servers: Servers, part: float) -> None:
    assert reaches_more(demand, servers, part * throughput(demand, servers)) == (part < 1)


@pytest.mark.parametrize(
    ("demand", "servers", "pace"),
    [
        (Demand(blocked=0.5), Servers(8, 1), 16),  # waiting takes no core
        (Demand(free=0.5), Servers(8, 4), 8),  # four cores
        (Demand(free=0.5), Servers(2, 4), 4),  # two workers
        (Demand(locked=0.5), Servers(8, 4), 2),  # one lock
        (Demand(locked=0.5), Servers(4, 4, one_lock=False), 8),  # a lock each
        (Demand(free=0.1, away=0.5), Servers(4, 4), 2),  # the loop
        (Demand(free=0.25, loop=0.25), Servers(0, 4), 2),  # the consumer does it all
        (Demand(free=0.2, blocked=0.3), Servers(1, 2), 2),
        (Demand(free=0.5, loop=0.25), Servers(1, 64), 2),
    ],
)
def test_extreme_cases_have_closed_forms(demand: Demand, servers: Servers, pace: float) -> None:
    assert throughput(demand, servers) == pytest.approx(pace, rel=1e-4)


@given(demands, server_kinds)
def test_the_model_agrees_with_a_simulation(demand: Demand, servers: Servers) -> None:
    if servers.one_lock:
        demand = demand._replace(
            handing=0.0
        )  # (a lock that is queued for by sample is not how batches are handed)
    simulated = Simulation(demand, servers).run(300)
    assert 0.75 < throughput(demand, servers) / simulated < 1.2


def test_what_was_measured_is_what_is_predicted_for_it() -> None:
    for workers, kind in ((0, "threads"), (1, "threads"), (2, "threads"), (2, "processes")):
        seen = stats(workers, kind)
        assert predict(seen) == pytest.approx(seen["samples"] / seen["seconds"], rel=0.02)


def test_workers_that_sleep_sleep_together() -> None:
    seen = stats(2)
    assert predict(seen, workers=4) == pytest.approx(400, rel=0.1)
    assert predict(seen, workers=1) == pytest.approx(100, rel=0.1)
    assert predict(seen, workers=64) <= 1000  # 1 ms with the lock
    assert predict(seen, workers=64, kind="processes") > 1200


def test_a_lock_that_is_not_held_is_told_from_one_that_is() -> None:
    seen = stats(1, stages={"sample": stage(1.0, 1.0)}, seconds=1.0, first_batch_seconds=0.01, cpu={"share": 0.25})
    held = {"looks": 100, "held_share": 1.0}
    assert predict({**seen, "lock": held}, workers=4) == pytest.approx(1000, rel=0.05)
    assert predict({**seen, "lock": {**held, "held_share": 0.0}}, workers=4) == pytest.approx(4000, rel=0.05)
    # Where nobody looked, the worst is taken; two cores' worth of work shows that it is not always held.
    assert predict(seen, workers=4) == pytest.approx(1000, rel=0.05)
    both = {"sample": stage(1.0, 1.0)}
    two = stats(2, stages=both, seconds=0.5, first_batch_seconds=0.005, cpu={"share": 0.5})
    assert predict(two, workers=4) == pytest.approx(2000, rel=0.1)


def test_the_loop_limits_what_loading_gains() -> None:
    seen = stats(2, loop_seconds=3.0)
    for workers in (4, 8, 32):
        assert predict(seen, workers=workers) <= 1000 / 3.0 * 1.001


def test_hits_save_reading_or_decoding_too() -> None:
    stages = {"read": stage(5.0, size=10**8), "decode": stage(5.0, 5.0)}
    native = {"native": True}
    seen = stats(1, stages=stages, cpu={"share": 0.125}, loader=native)
    assert predict(seen, cache=1.0, keep="encoded") == pytest.approx(200, rel=0.05)
    assert predict(seen, cache=0.5, keep="decoded") == pytest.approx(200, rel=0.05)
    assert predict(seen, cache=1.0, keep="decoded") > 10_000
    stages = {"read": stage(5.0, samples=500), "decode": stage(5.0, 5.0, samples=500)}
    half = stats(1, stages=stages, cpu={"share": 0.125}, loader=native, cache={"hit_rate": 0.5})
    assert predict(half, cache=0.0) == pytest.approx(50, rel=0.05)
    with pytest.raises(ValueError, match="every sample came from the cache"):
        predict({**half, "cache": {"hit_rate": 1.0}}, cache=0.5)
    assert predict({**seen, "cache": {"hit_rate": 1.0}}, cache=1.0) > 0


def test_what_is_made_in_the_loop_is_not_handed_over() -> None:
    tiny = {"batch": stage(0.0005, 0.0005), "order": stage(0.0002, 0.0002)}
    native = {"native": True}
    alone = stats(0, stages=tiny, seconds=0.001, first_batch_seconds=0.0, cpu={"share": 0.25}, loader=native)
    assert predict(alone, workers=2) < 0.6 * predict(alone)
    assert predict(alone, workers=2, kind="processes") < 0.5 * predict(alone, workers=2)
    handed = stats(2, stages=tiny, seconds=0.05, first_batch_seconds=0.0, cpu={"share": 0.25}, loader=native)
    assert predict(handed, workers=0) > 3 * predict(handed)


def test_threads_that_a_stage_starts_are_not_what_handing_over_takes() -> None:
    seen = stats(2, "processes", stages={"sample": stage(19.0, 10.0)}, seconds=10.0, cpu={"share": 0.9})
    assert Costs.of(seen).dispatch * seen["batches"] <= 1.0
    assert verdict(seen).kind != "batch-bound"


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_very_many_workers_do_not_take_long_to_think_about() -> None:
    busy = {"sample": stage(1280.0, 512.0)}
    seen = stats(
        256, stages=busy, seconds=10.0, cpu={"share": 0.5, "cores": 64}, lock={"looks": 99, "held_share": 0.5}
    )
    assert verdict(seen).advice


def test_larger_batches_are_handed_over_less_often() -> None:
    stages = {"order": stage(0.9, 0.9), "sample": stage(0.1, 0.1)}
    seen = stats(1, stages=stages, batches=1000, seconds=1.0, first_batch_seconds=0.001, cpu={"share": 0.25})
    assert predict(seen, batch_size=10) > 4 * predict(seen)


def test_a_start_is_spread_over_an_epoch() -> None:
    seen = stats(2, seconds=10.0, first_batch_seconds=5.05)
    assert predict(seen) == pytest.approx(100, rel=0.05)
    assert 100 < predict(seen, workers=64) < 200  # whatever follows, the first batch takes five seconds


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workers": -1}, "workers must be 0 or more"),
        ({"kind": "ray"}, "kind must be"),
        ({"cache": 1.5}, "cache must be a hit rate"),
        ({"keep": "raw"}, "keep must be"),
        ({"source": "loose"}, "source must be"),
        ({"cores": 0}, "cores must be positive"),
        ({"batch_size": 0}, "batch_size must be positive"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predict(stats(), **change)


def test_nothing_loaded_predicts_nothing() -> None:
    with pytest.raises(ValueError, match="nothing has been loaded yet"):
        predict(stats(samples=0))


def test_stages_take_no_more_of_the_cores_than_the_processes() -> None:
    # Measured: two threads on one core, whose sampled CPU time is 1.48 s of 1.05.
    stages = {
        "read": stage(0.25, 0.01, 2000),
        "decode": stage(1.54, 1.42, 2000),
        "transform": stage(0.28, 0.06, 2000),
    }
    seen = stats(
        2,
        stages=stages,
        samples=2000,
        batches=32,
        seconds=1.05,
        first_batch_seconds=0.03,
        cpu={"cores": 1, "share": 0.98, "queued_seconds": 1.07},
        loader={"native": True},
    )
    assert predict(seen, cores=2) == pytest.approx(2 * predict(seen), rel=0.1)


def test_images_in_the_cache_are_read_where_they_are() -> None:
    def hit_seconds(size: int) -> float:
        stages = {"read": stage(0.1, 0.1, size=size), "decode": stage(1.0, 1.0), "transform": stage(0.1, 0.1)}
        seen = stats(1, stages=stages, seconds=1.2, cpu={"share": 0.25}, loader={"native": True})
        return 1 / predict(seen, cache=1.0, keep="decoded")

    # Half the time of copying three times the file, at 4 GB/s.
    assert hit_seconds(10**8) - hit_seconds(10**3) == pytest.approx(0.5 * 3e5 / 4e9, rel=0.1)


def test_fewer_processes_start_sooner() -> None:
    crowd = stats(
        16,
        "processes",
        stages={"sample": stage(1.0, 1.0)},
        seconds=1.5,
        first_batch_seconds=1.0,
        cpu={"cores": 2, "share": 0.4},
    )
    assert predict(crowd, workers=2) > 1.5 * predict(crowd)
    assert predict(crowd, workers=16) == pytest.approx(predict(crowd))


def test_a_loop_that_keeps_the_lock_does_not_keep_it_from_processes() -> None:
    lock = {"looks": 60, "held_share": 0.5, "asked": 500, "delay_seconds": 9.0}
    loop: dict[str, Any] = {"seconds": 10.0, "loop_seconds": 6.0, "loop_cpu_seconds": 6.0}
    seen = stats(2, stages={"sample": stage(18.0, 3.0)}, cpu={"share": 0.225}, lock=lock, **loop)
    assert Costs.of(seen).holding > 0
    assert predict(seen, workers=8) < 1.1 * predict(seen)
    assert predict(seen, kind="processes") > 1.3 * predict(seen)
    assert Costs.of({**seen, "lock": None}).holding == 0


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("workers", [0, 2, 8])
@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("stock", [False, True])
def test_a_run_that_ended_at_once_divides_by_no_zero(workers: int, kind: str, stock: bool) -> None:
    # Its CPU time is too short to be measured, but its workers have waited for a core already.
    for queued, share, busy in itertools.product((0.0, 0.3, 50.0), (0.0, 1e-9), (0.0, 1.0)):
        seen = stats(
            workers,
            kind,
            {"sample": stage(np.float64(busy), np.float64(busy / 2))},
            seconds=0.6,
            first_batch_seconds=0.2,
            loader={"stock": stock, "batch_tensors": 2},
            cpu={"cores": 2, "share": share, "queued_seconds": np.float64(queued)},
        )
        verdict(seen)
        assert predict(seen) > 0
        assert not math.isnan(predict(seen, workers=4))


def test_processes_are_spared_what_threads_lose_to_their_lock() -> None:
    """Handing the lock around takes CPU time, which is in that of the samples."""
    lock = {"looks": 100, "held_share": 0.98, "held_seconds": 0.1, "asked": 0, "delay_seconds": 0.0}
    full = stats(2, stages={"sample": stage(2.0, 1.0)}, seconds=1.0, cpu={"cores": 2, "share": 0.5}, lock=lock)
    # A millisecond of a core per sample, 40 to start two processes.
    assert predict(full, kind="processes") > 1.01 * 1000 / (0.5 + 0.04)


def test_a_loop_of_larger_batches_is_entered_less_often() -> None:
    """Five microseconds of an empty loop per batch are not those of its samples."""
    loop = {"loop_seconds": 0.0005, "loop_cpu_seconds": 0.0005, "first_batch_seconds": 6e-6}
    seen = stats(0, stages={"sample": stage(1e-4, 1e-4)}, seconds=0.0006, cpu={"share": 0.25}, **loop)
    assert predict(seen, batch_size=100) > 2.4 * predict(seen)


def test_hits_leave_behind_what_the_work_of_misses_took_besides() -> None:
    """CPU time outside the stages is mostly theirs, counted too low."""

    def pace_of_hits(outside: float) -> float:
        share = (1.0 + outside) / 2
        seen = stats(2, stages={"sample": stage(1.4, 1.0)}, seconds=1.0, cpu={"cores": 2, "share": share})
        return predict(seen, cache=1.0)

    assert pace_of_hits(0.4) > 0.8 * pace_of_hits(0.0)


def test_objects_of_python_are_made_of_each_hit() -> None:
    seen = stats(
        1, stages={"sample": stage(1.0, 1.0)}, seconds=1.0, cpu={"share": 0.25}, memory={"batch_bytes": 80}
    )
    assert 1 / predict(seen, cache=1.0) > 2e-5


def test_more_processes_than_cores_lose_time_to_switches() -> None:
    """A second worker takes the core that the loop had to itself, and small batches come in between."""

    def pace_of_two(cores: float) -> float:
        work = {"sample": stage(1.0, 1.0, samples=100_000)}
        how: dict[str, Any] = {"samples": 100_000, "batches": 10_000, "loop_seconds": 0.1, "loop_cpu_seconds": 0.1}
        cpu = {"cores": cores, "share": 1.1 / cores}
        return predict(stats(1, "processes", stages=work, seconds=1.0, cpu=cpu, **how), workers=2)

    assert pace_of_two(2) < 0.5 * pace_of_two(3)


def test_a_hit_rate_as_it_is_changes_nothing() -> None:
    seen = stats(2, stages={"sample": stage(1.4, 1.0)}, seconds=1.0, cpu={"cores": 2, "share": 0.7})
    assert predict(seen, cache=0.0) == pytest.approx(predict(seen))
