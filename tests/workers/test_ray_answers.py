"""The answers of a Ray actor are read in the order in which it was asked, however Ray delivers them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import pytest

from foreload import _native
from foreload.record.spans import Lane
from foreload.workers.messages import Begin
from foreload.workers.ray.calls import RayCalls
from foreload.workers.ray.worker import RayWorker


class _Answer:
    pass


class _Method:
    """A method of an actor, whose answers come when the test says so."""

    def __init__(self, futures: list[Future[Any]]) -> None:
        self.futures = futures

    def remote(self, *_: Any) -> Any:
        self.futures.append(Future())
        return self

    def future(self) -> Future[Any]:
        return self.futures[-1]


class _Actor:
    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []
        self.place = self.begin = self.load = _Method(self.futures)


@pytest.fixture
def actor() -> _Actor:
    return _Actor()


@pytest.fixture
def worker(actor: _Actor) -> Iterator[RayWorker]:
    calls = RayCalls()
    worker = RayWorker(0, actor, Lane("process 0", "process", _native.Lane()), SimpleQueue(), calls)
    actor.futures[0].set_result("place")
    assert [message.future.result() for message in worker.read()] == ["place"]
    worker.placed("127.0.0.1", 1, None)
    worker.tell(Begin((0, 0), arrays=False))
    for number in range(3):
        worker.ask(number, [number])
    yield worker
    calls.close()


def _jobs(worker: RayWorker) -> list[int | None]:
    return [message.job for message in worker.read()]


def test_answers_wait_for_earlier_ones(actor: _Actor, worker: RayWorker) -> None:
    _, begin, *loads = actor.futures
    loads[1].set_result("second")
    assert _jobs(worker) == []
    loads[0].set_result("first")
    assert _jobs(worker) == []
    begin.set_result("begun")
    assert _jobs(worker) == [None, 0, 1]
    loads[2].set_exception(ValueError("lost"))
    assert _jobs(worker) == [2]


@pytest.mark.slow
def test_jobs_that_are_left_are_not_waited_for(
    actor: _Actor, worker: RayWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "cancel", lambda reference: None)
    _, begin, *loads = actor.futures
    worker.skip_to(3)
    worker.ask(3, [3])
    actor.futures[-1].set_result("third")
    assert _jobs(worker) == []  # it has yet to begin
    begin.set_result("begun")
    assert _jobs(worker) == [None, 3]
    loads[0].set_result("late")
    assert _jobs(worker) == []


def test_an_answer_that_was_read_is_free_at_once(actor: _Actor, worker: RayWorker) -> None:
    _, begin, load, *_ = actor.futures
    begin.set_result("begun")
    answer = _Answer()
    gone = weakref.ref(answer)
    load.set_result(answer)
    gc.disable()
    try:
        assert _jobs(worker) == [None, 0]
        worker.answered(0)
        actor.futures.clear()
        del answer, begin, load, _
        assert gone() is None
    finally:
        gc.enable()
