"""What is said about a loader, for statistics of every kind."""

from __future__ import annotations

from typing import Any

import pytest

from foreload.report.verdict import verdict
from tests.made_stats import stage, stats

NATIVE = {"native": True}
LOCKED, FREE = {"looks": 500, "held_share": 0.99}, {"looks": 500, "held_share": 0.05}
BUSY = {"sample": stage(10.0, 10.0)}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a loop that works": ("consumer-bound", stats(2, loop_seconds=4.9)),
    "nothing yet": ("too-short", stats(2, batches=0, samples=0, seconds=0.001, first_batch_seconds=0.0)),
    "a moment": ("too-short", stats(2, batches=6, samples=60, seconds=0.1)),
    "a dataset that sleeps": ("read-bound", stats(2)),
    "a slow disk": (
        "read-bound",
        stats(2, stages={"read": stage(9.0), "decode": stage(1.0, 1.0)}, cpu={"share": 0.05}, loader=NATIVE),
    ),
    "images": (
        "decode-bound",
        stats(2, stages={"read": stage(0.5, 0.5), "decode": stage(9.5, 9.5)}, cpu={"share": 0.5}, loader=NATIVE),
    ),
    "a heavy transform, in processes": ("decode-bound", stats(2, "processes", stages=BUSY, cpu={"share": 0.5})),
    "Python in threads": (
        "python-bound",
        stats(4, stages={"sample": stage(40.0, 10.0)}, seconds=10.0, cpu={"share": 0.25}, lock=LOCKED),
    ),
    "numpy in threads": ("decode-bound", stats(2, stages=BUSY, cpu={"share": 0.5}, lock=FREE)),
    "tiny batches": (
        "batch-bound",
        stats(
            2,
            "processes",
            stages={"sample": stage(0.1, 0.1), "order": stage(0.2, 0.2)},
            batches=1000,
            seconds=1.0,
            first_batch_seconds=0.01,
            cpu={"share": 0.45},
            loader={"batch_size": 1},
        ),
    ),
    "collation in the loop's own thread": (
        "batch-bound",
        stats(0, stages={"sample": stage(1.0, 1.0), "batch": stage(9.0, 9.0)}, cpu={"share": 0.25}),
    ),
    "copies to a device": (
        "transfer-bound",
        stats(
            2,
            stages={"sample": stage(0.5, 0.5), "device": stage(4.5)},
            cpu={"share": 0.025},
            loader={"stock": True},
        ),
    ),
    "no memory": ("memory-bound", stats(2, memory={"limit": 200_000, "decisions": ["1 batches are made ahead"]})),
    "a full container": ("memory-bound", stats(2, memory={"tree_bytes": (8 << 30) - 1000})),
    "workers that start in each epoch": (
        "startup-bound",
        stats(2, "processes", epochs=10, first_batch_seconds=0.4),
    ),
}


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
    assert found[0].gain == pytest.approx(4, rel=0.1)
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
    assert any(change.endswith("each of which must give a part of its own") for change in found)
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


def test_waiting_for_a_core_is_not_waiting_for_a_disk() -> None:
    # Measured: Python in two threads, while two other programs had most of two cores.
    seen: dict[str, Any] = {
        "batches": 94,
        "samples": 3000,
        "seconds": 3.7,
        "first_batch_seconds": 0.08,
        "loop_seconds": 0.01,
        "stages": {"sample": stage(7.3, 2.2, samples=3000, count=1680)},
        "lock": {"looks": 162, "held_share": 0.62},
    }
    cores = {"cores": 2, "share": 0.3}
    assert verdict(stats(2, **seen, cpu={**cores, "queued_seconds": 5.0})).kind == "python-bound"
    assert verdict(stats(2, **seen, cpu={**cores, "queued_seconds": 0.0})).kind == "read-bound"
    # The same where the lock is mostly free: it computes.
    seen["lock"] = {"looks": 73, "held_share": 0.1}
    assert verdict(stats(2, **seen, cpu={**cores, "queued_seconds": 5.0})).kind == "decode-bound"
