"""Actors and nodes of a Ray cluster that are killed, removed and added while an epoch runs: no batch changes."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from threading import Timer
from typing import Any

import pytest

import foreload as fl
from foreload.workers.ray.worker import RayWorker
from tests.ray.parts import Counting, Drawn, Part, plain, running_cluster

ray = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore"),
]

ALWAYS: Any = {"batch_size": 4, "shuffle": True, "seed": 7}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    with running_cluster() as cluster:
        yield cluster


def kill(epoch: Any, numbers: Any) -> int:
    """Kill those of these workers that run."""
    killed = 0
    for worker in [epoch._pool.workers[number] for number in numbers]:
        if worker.process.pid > 0 and not worker.is_dead:
            with suppress(ProcessLookupError):
                os.kill(worker.process.pid, signal.SIGKILL)
                killed += 1
    return killed


@pytest.mark.parametrize(
    ("kills", "options"),
    [(30, {}), (10, {"cache": "16MiB", "persistent_workers": True})],
    ids=["alone", "cached"],
)
def test_actors_are_killed_again_and_again(kills: int, options: Any) -> None:
    expected = plain(fl.DataLoader(Drawn(320), num_workers=0, **ALWAYS))
    # (So many that enough are there to be killed on a busy machine too, where others take long to start.)
    draws, killed = random.Random(1), 0
    with fl.DataLoader(Drawn(320), num_workers=2, workers="ray", max_restarts=40, **ALWAYS, **options) as loader:
        got = []
        epoch = iter(loader)
        for batch in epoch:
            got += plain([batch])
            if killed < kills:  # both every other time
                killed += kill(epoch, (0, 1) if draws.random() < 0.5 else (draws.randrange(2),))
        assert got == expected
        assert killed >= kills
        # One that is killed again before that is noticed, or when it has nothing more to do, is counted once less.
        assert kills // 3 <= len(loader.restarts) <= killed
        if options:  # the caches and the workers go on
            loader.set_epoch(0)
            assert plain(loader) == expected
            assert loader.stats()["cache"]["hits"] > 0


def test_a_nodes_cache_is_killed_with_its_workers() -> None:
    expected = plain(fl.DataLoader(Drawn(80), num_workers=0, **ALWAYS))
    options: Any = {"cache": "16MiB", "persistent_workers": True, "max_restarts": 30}
    with fl.DataLoader(Drawn(80), num_workers=2, workers="ray", **ALWAYS, **options) as loader:
        assert plain(loader) == expected
        loader.set_epoch(0)
        epoch, got = iter(loader), []
        for number, batch in enumerate(epoch):
            got += plain([batch])
            if number == 3:
                for keeper in epoch._pool._caches._keepers.values():
                    ray.kill(keeper, no_restart=False)
                assert kill(epoch, (0, 1)) > 0
        assert got == expected


def test_workers_with_parts_or_states_are_killed() -> None:
    streams = [
        fl.DataLoader(Part(160), batch_size=4, num_workers=2, workers=kind) for kind in ("processes", "ray")
    ]
    states = [
        fl.DataLoader(Counting(160), batch_size=4, num_workers=2, workers=kind) for kind in ("processes", "ray")
    ]
    killed = 0
    for stock, ours in (streams, states):
        expected = plain(stock)
        ours.max_restarts = 100
        got = []
        epoch = iter(ours)
        for number, batch in enumerate(epoch):
            got += plain([batch])
            if number % 7 == 3:
                killed += kill(epoch, (number % 2,))
        assert got == expected
    assert killed >= 10


class _Late:
    """A reference to an answer, every other one of which comes after those that follow it."""

    def __init__(self, reference: Any, seconds: float) -> None:
        self.reference, self.seconds = reference, seconds

    def future(self) -> Future[Any]:
        late: Future[Any] = Future()

        def come(future: Future[Any]) -> None:
            error = future.exception()
            late.set_result(future.result()) if error is None else late.set_exception(error)

        self.reference.future().add_done_callback(lambda future: Timer(self.seconds, come, [future]).start())
        return late


@pytest.mark.parametrize("dataset", [Part(96), Counting(96)], ids=["parts", "states"])
def test_workers_whose_answers_come_in_another_order_are_killed(
    dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = RayWorker._watch
    monkeypatch.setattr(
        RayWorker,
        "_watch",
        lambda self, reference, job: watch(
            self, _Late(reference, 0.2 if job is not None and job // 2 % 2 else 0), job
        ),
    )
    options: Any = {"batch_size": 4, "num_workers": 2}
    expected = plain(fl.DataLoader(dataset, workers="processes", **options))
    got = []
    epoch = iter(fl.DataLoader(dataset, workers="ray", max_restarts=100, **options))
    for number, batch in enumerate(epoch):
        got += plain([batch])
        if number % 5 == 3:
            kill(epoch, (number % 2,))
    assert got == expected
