"""Verdicts and advice about a loader, for statistics of every kind."""

from __future__ import annotations

from typing import Any

import pytest

from foreload.report.verdict import verdict
from tests.made_stats import stage, stats
from tests.report.cases import BUSY, CASES, DELAYED, NATIVE, STARVED, STOCK, started


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES)
def test_each_cause_is_named(case: str) -> None:
    kind, seen = CASES[case]
    found = verdict(seen)
    assert found.kind == kind
    assert found.sentence.endswith(".")
    assert found.evidence
    assert found.advice or kind == "consumer-bound"
    assert all(advice.gain is None or advice.gain >= 1.05 for advice in found.advice)


@pytest.mark.parametrize("case", [name for name, (kind, _) in CASES.items() if kind != "too-short"])
def test_no_gain_is_promised_that_the_loop_cannot_take(case: str) -> None:
    seen = CASES[case][1]
    # The same with a loop that works two thirds of the time.
    busy = {**seen, "seconds": 3 * seen["seconds"], "loop_seconds": 2 * seen["seconds"], "wait_share": 1 / 3}
    busy |= {"wait_seconds": seen["seconds"], "loop_cpu_seconds": 0.0, "epochs": 3 * seen["epochs"]}
    for advice in verdict(busy).advice:
        assert advice.gain is None or advice.gain <= 1.5 + 1e-9


def advice(seen: dict[str, Any]) -> list[str]:
    return [each.change for each in verdict(seen).advice]


def test_waiting_is_met_with_more_workers_and_a_cache() -> None:
    found = verdict(CASES["a dataset that sleeps"][1]).advice
    assert any(each.change.startswith("num_workers=") for each in found)
    assert any(each.change.startswith("cache=") for each in found)
    assert found[0].gain is not None
    assert found[0].gain > 3
    assert [each.gain or 0.0 for each in found] == sorted((each.gain or 0.0 for each in found), reverse=True)


def test_python_is_met_with_processes() -> None:
    found = verdict(CASES["Python in threads"][1]).advice
    assert found[0].change.startswith('workers="processes"')
    # Four cores, and none of the time that threads take to hand the lock around.
    assert found[0].gain == pytest.approx(4 * 1.15, rel=0.1)
    assert not any(each.change.startswith("num_workers=") for each in found)


def test_cores_that_are_full_are_met_with_more_cores_and_not_with_workers() -> None:
    seen = stats(4, stages={"decode": stage(10.0, 10.0)}, cpu={"share": 0.99}, loader=NATIVE)
    found = advice(seen)
    assert any(change.startswith("8 cores instead of 4") for change in found)
    assert not any(change.startswith("num_workers=") for change in found)


def test_tiny_batches_are_met_with_larger_ones() -> None:
    assert any(change.startswith("batch_size=") for change in advice(CASES["tiny batches"][1]))


def test_stock_loaders_are_told_of_torchs_arguments_first() -> None:
    found = advice(stats(0, stages=BUSY, cpu={"share": 0.25}, loader={"stock": True}))
    assert any(change.startswith("num_workers=") for change in found)
    assert any("foreload.DataLoader" in change for change in found)
    assert not any(change.startswith(("cache=", "workers=")) for change in found)
    assert "pin_memory=True" in advice(CASES["copies to a device"][1])[0]


STREAM = {"iterable": True}


def test_streams_are_told_what_can_be_done_with_streams() -> None:
    found = advice(stats(2, stages={"read": stage(10.0, 0.1, size=10**8)}, loader=STREAM))
    assert any(change.endswith("(each worker must deliver a part of its own)") for change in found)
    assert not any("cache=" in change or "__getitems__" in change for change in found)


def test_collating_is_told_apart_from_samples_that_come_alone_and_from_native_batches() -> None:
    handing: dict[str, Any] = {"stages": {"order": stage(0.9, 0.9)}, "seconds": 1.0, "cpu": {"share": 0.25}}
    alone = advice(stats(1, batches=1000, loader={"batch_size": None}, **handing))
    assert any("batch_size=" in change for change in alone)
    assert not any("collate_fn" in change for change in alone)
    tiny = {"batch": stage(0.01, 0.01), "order": stage(0.01, 0.01)}
    native = advice(stats(2, stages=tiny, seconds=0.1, first_batch_seconds=0.0, cpu={"share": 0.3}, loader=NATIVE))
    assert not any("collate_fn" in change for change in native)
    assert any(change.startswith("num_workers=0 instead of 2") for change in native)


def test_no_gain_is_without_end() -> None:
    one_batch_epochs = stats(
        1, epochs=100, samples=100, loop_seconds=0.0, stages={"sample": stage(1.0, samples=100)}
    )
    assert all(each.gain is None or each.gain < 1e9 for each in verdict(one_batch_epochs).advice)


def test_choosing_workers_that_takes_most_of_the_time_is_met_with_naming_them() -> None:
    seen = stats(8, seconds=2.0, first_batch_seconds=1.2)
    found = verdict({**seen, "workers": {**seen["workers"], "choosing_seconds": 1.1}})
    assert found.kind == "startup-bound"
    assert "choosing the workers took 1.1 s, once" in found.evidence
    changes = [advice.change for advice in found.advice]
    assert 'num_workers=8, workers="threads": no time is spent on choosing workers' in changes


def test_starting_workers_is_met_with_keeping_them() -> None:
    found = verdict(CASES["workers that start in each epoch"][1]).advice
    assert found[0].change.startswith("persistent_workers=True")


def test_workers_are_not_advised_where_handing_batches_over_costs_more_than_making_them() -> None:
    # Torch's own loader without workers, 13,000 batches of one sample a second.
    seen = stats(
        0,
        stages={"sample": stage(0.2, 0.2), "batch": stage(0.3, 0.3)},
        samples=20_000,
        batches=20_000,
        seconds=1.5,
        loop_seconds=0.5,
        first_batch_seconds=0.001,
        loader={"stock": True, "batch_size": 1},
    )
    assert not any(change.startswith("num_workers=") for change in advice(seen))


def test_a_loop_that_keeps_the_lock_is_told_so_with_what_was_measured() -> None:
    found = verdict(CASES["a loop that keeps the lock"][1])
    assert "its own Python code holds the interpreter's lock (GIL)" in found.sentence
    assert any("waited 18 ms for it on average" in line for line in found.evidence)
    assert found.advice[0].change.startswith('workers="processes"')
    assert found.advice[0].gain is not None
    assert any("less Python in the loop" in each.change for each in found.advice)
    assert not any(each.change.startswith("num_workers=") for each in found.advice)


def test_torchs_pinning_thread_is_named_and_processes_are_not_advised_to_those_who_have_them() -> None:
    found = verdict(CASES["a loop that keeps the lock from torch's pinning"][1])
    assert "the thread that pins memory" in found.sentence
    assert not any("processes" in each.change for each in found.advice)
    assert any("less Python in the loop" in each.change for each in found.advice)


@pytest.mark.parametrize(
    "lock",
    [
        None,
        {"looks": 60, "held_share": 0.5},  # as recorded by an earlier version
        {**DELAYED, "delay_seconds": 0.02},  # a switch of threads each time
        {**DELAYED, "asked": 3, "delay_seconds": 0.06},
    ],
)
def test_a_loop_that_computes_without_the_lock_is_not_accused(lock: Any) -> None:
    assert verdict(stats(2, lock=lock, **STARVED)).kind == "read-bound"


def test_another_machine_is_advised_last() -> None:
    seen = stats(
        1, stages={"read": stage(1.0), "decode": stage(9.0, 9.0)}, cpu={"cores": 2, "share": 0.9}, loader=NATIVE
    )
    found = advice(seen)
    assert found[-1].startswith("4 cores instead of 2")


def test_workers_that_keep_the_lock_from_each_other_are_not_the_loop() -> None:
    # Two threads of Python wait for each other half of the time, whatever the loop does.
    seen = stats(
        2,
        seconds=10.0,
        loop_seconds=4.0,
        loop_cpu_seconds=4.0,
        stages={"sample": stage(19.0, 9.8)},
        cpu={"share": 0.35},
        lock={"looks": 100, "held_share": 0.99, "held_seconds": 0.2, "asked": 2000, "delay_seconds": 4.0},
    )
    found = verdict(seen)
    assert found.kind == "python-bound"
    assert "your dataset is Python code" in found.sentence


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", ["too many of torch's workers", "too many processes"])
def test_too_many_workers_are_told_the_number_that_is_enough(case: str) -> None:
    found = verdict(CASES[case][1])
    assert "16 workers are too many for 2 cores" in found.sentence
    assert "num_workers=2 is enough" in found.sentence
    assert found.advice[0].change == "num_workers=2 instead of 16"


def crowd(others: float, count: int = 16, start: float = 0.025) -> dict[str, Any]:
    """Two seconds of computing by torch's workers on two cores, of which other programs take a part."""
    cpu = 2.0 + count * start
    time = cpu / 2 / (1 - others)
    seen = stats(
        count,
        "processes",
        loader=STOCK,
        batches=63,
        samples=2000,
        seconds=time,
        # The first batches of all workers come at once.
        first_batch_seconds=(16 / 63 * 2.0 + count * start) / 2 / (1 - others),
        stages={"sample": stage(2.0, 2.0, 2000)},
        cpu={"cores": 2, "share": 1 - others, "queued_seconds": (count - 2) * time},
    )
    return started(seen, count * start, end=count * start / 2 / (1 - others))


@pytest.mark.parametrize("others", [0.0, 0.4, 0.8])
def test_what_other_programs_do_makes_workers_neither_too_many_nor_few(others: float) -> None:
    found = verdict(crowd(others))
    assert found.kind == "too-many-workers"
    assert "num_workers=2 is enough" in found.sentence
    # 2 seconds of computing, with 25 ms for each worker to start, on two cores; and 12.5 ms for it to end.
    assert found.advice[0].gain == pytest.approx((1.2 + 0.2) / (1.025 + 0.025), rel=0.03)
    # A long epoch does not care how many there are.
    assert verdict(crowd(others, start=0.001)).kind == "decode-bound"


def test_workers_that_wait_are_not_too_many() -> None:
    # Sixteen workers whose samples sleep need no more than two cores.
    assert verdict(stats(16, "processes", cpu={"cores": 2, "share": 0.8})).kind == "read-bound"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_the_best_advice_comes_first_and_what_has_no_figure_last(case: str) -> None:
    gains = [each.gain for each in verdict(CASES[case][1]).advice]
    known = [gain for gain in gains if gain is not None]
    assert gains == [*sorted(known, reverse=True), *[None] * (len(gains) - len(known))]
    assert all(gain >= 1.1 for gain in known)  # less is within the error of a prediction


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cores", [1, 2, 4, 16])
def test_no_advice_contradicts_another(case: str, cores: int) -> None:
    seen = CASES[case][1]
    found = advice({**seen, "cpu": {**seen["cpu"], "cores": cores}})
    assert sum("num_workers=" in change and " cores instead of " not in change for change in found) <= 1
    assert sum(change.startswith("cache=") for change in found) <= 1
    assert len(set(found)) == len(found)


LARGE: dict[str, Any] = {"memory": {"batch_bytes": 100 << 20}}


def test_the_swap_carries_a_figure_where_handing_over_takes_the_time() -> None:
    handing = {"sample": stage(1.0, 1.0), "batch": stage(6.0, 6.0), "wait": stage(4.0, 3.0)}
    settings: dict[str, Any] = {"stages": handing, "seconds": 4.0, "cpu": {"share": 0.6}, **LARGE}
    found = verdict(stats(2, "processes", loader=STOCK, **settings)).advice
    (swap,) = [each for each in found if "foreload.DataLoader" in each.change]
    assert swap.gain is not None
    assert swap.gain > 1.1
    # More is not saved than handing over takes, whatever a batch holds.
    many = {**STOCK, "batch_tensors": 1000}
    (swap,) = [
        each
        for each in verdict(stats(2, "processes", loader=many, **settings)).advice
        if "foreload.DataLoader" in each.change
    ]
    assert swap.gain is not None
    assert swap.gain < 9


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (stats(0, stages=BUSY, cpu={"share": 0.25}, loader=STOCK), "without workers no batch is handed over"),
        (stats(2, "processes", stages=BUSY, cpu={"share": 0.5}, loader={"stock": True}), "was not recorded"),
        (stats(2, "processes", stages=BUSY, cpu={"share": 0.5}, loader=STOCK), "takes little of the time"),
    ],
)
def test_a_swap_without_a_figure_says_why(seen: dict[str, Any], why: str) -> None:
    (swap,) = [each for each in verdict(seen).advice if "foreload.DataLoader in place" in each.change]
    assert swap.gain is None
    assert why in swap.change


def test_torchvisions_images_are_met_with_native_decoding() -> None:
    stages = {"decode": stage(14.0, 14.0), "transform": stage(5.0, 5.0), "batch": stage(0.5, 0.5)}
    seen = stats(
        2,
        "processes",
        stages=stages,
        seconds=10.0,
        cpu={"cores": 2, "share": 0.98},
        loader={**STOCK, "dataset": "ImageFolder"},
    )
    found = verdict(seen).advice
    assert "foreload.ImageDataset" in found[0].change
    assert found[0].gain is not None
    assert 1.8 < found[0].gain < 2.6
    other = {**seen, "loader": {**seen["loader"], "dataset": "MyImages"}}
    assert not any("foreload.ImageDataset in" in change for change in advice(other))


@pytest.mark.parametrize(("epochs", "kind"), [(2, "startup-bound"), (6, "decode-bound")])
def test_choosing_workers_is_not_handing_batches_over(epochs: int, kind: str) -> None:
    # Measured: under forkserver, on a busy machine, workers were chosen for 8 s, and then not started.
    seen: dict[str, Any] = {
        "epochs": epochs,
        "batches": 20 * epochs,
        "samples": 200 * epochs,
        "seconds": 8.1 + 4.8 * epochs,
        "first_batch_seconds": 0.24,
        "loop_seconds": 0.002,
        "stages": {"sample": stage(4.8 * epochs, 4.3 * epochs, 200 * epochs)},
    }
    measured = stats(0, **seen, cpu={"cores": 2, "share": 0.3, "queued_seconds": 0.0})
    measured["workers"]["choosing_seconds"] = 8.1
    found = verdict(measured)
    assert found.kind == kind
    assert ("while the workers were chosen" in found.sentence) == (kind == "startup-bound")
    assert not any("handing a batch over" in line for line in found.evidence)


def test_waiting_for_a_core_is_not_handing_batches_over() -> None:
    # The calling thread loads, beside programs that have most of the cores.
    seen = stats(0, stages={"sample": stage(10.0, 2.0)}, cpu={"cores": 2, "share": 0.1, "queued_seconds": 8.0})
    assert verdict(seen).kind == "decode-bound"
