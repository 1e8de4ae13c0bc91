"""Samples are told to be slower while the loop works only if they are, however much they differ."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from foreload.record.recorder import Recorder
from foreload.record.slowed import slowed_seconds
from foreload.record.spans import Spans, Stage
from foreload.record.stats import _lock

# Nanoseconds that the loop waits for a batch, and then works.
WAIT, WORK = 4_000_000, 6_000_000


def recorded(needs: np.ndarray, pace: float, kind: str = "thread") -> tuple[Spans, float]:
    """Load samples one after the other, at ``pace`` while the loop works; return the seconds that this adds."""
    spans = Spans()
    (loop,), (worker,) = spans.take("consumer"), spans.take(kind)  # type: ignore[arg-type]
    now, slower = 0.0, 0.0
    for need in needs:
        begin, left = now, float(need)
        while left > 1e-6:
            phase = now % (WAIT + WORK)
            waits = phase < WAIT
            room = (WAIT if waits else WAIT + WORK) - phase
            step = min(left, room if waits else room * pace)
            spent = step if waits else step / pace
            slower += spent - step
            now, left = now + spent, left - step
        worker.native.add(Stage.sample, int(begin), max(int(begin) + 1, int(now)))
    for batch in range(int(now) // (WAIT + WORK) + 1):
        begin = batch * (WAIT + WORK)
        loop.native.add(Stage.wait, begin, begin + WAIT, batch=batch)
    return spans, slower * 1e-9


UNEVEN = np.random.default_rng(0).exponential(300_000, 2000)


@pytest.mark.parametrize("needs", [np.full(2000, 300_000.0), UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("pace", [0.1, 0.25])
def test_what_the_lock_costs_samples_is_told(needs: np.ndarray, pace: float) -> None:
    spans, slower = recorded(needs, pace)
    assert slowed_seconds(spans) == pytest.approx(slower, rel=0.25)


@pytest.mark.parametrize("needs", [np.full(2000, 300_000.0), UNEVEN, UNEVEN * 30], ids=["even", "uneven", "long"])
@pytest.mark.parametrize("pace", [1.0, 0.8])
def test_samples_that_take_as_long_either_way_are_not_slowed_down(needs: np.ndarray, pace: float) -> None:
    assert slowed_seconds(recorded(needs, pace)[0]) == 0


def test_a_few_samples_tell_nothing_and_processes_have_a_lock_each() -> None:
    assert slowed_seconds(Spans()) == 0
    assert slowed_seconds(recorded(np.full(12, 300_000.0), 0.1)[0]) == 0
    assert slowed_seconds(recorded(np.full(2000, 300_000.0), 0.1, "process")[0]) == 0


def test_threads_that_get_the_lock_at_once_are_not_looked_into() -> None:
    recorder = Recorder()
    recorder.lock = SimpleNamespace(looks=9, held=0, held_seconds=0.0, asked=1000, delay_seconds=0.01)  # type: ignore[assignment]
    spans, _ = recorded(np.full(2000, 300_000.0), 0.1)
    recorder.spans = spans
    assert slowed_seconds(spans) > 0
    lock = _lock(recorder)
    assert lock is not None
    assert lock["slowed_seconds"] == 0


def test_a_loop_that_never_waits_tells_nothing() -> None:
    spans = Spans()
    (worker,) = spans.take("thread")
    for begin in range(0, 100_000, 1_000):
        worker.native.add(Stage.sample, begin, begin + 900)
    assert slowed_seconds(spans) == 0
