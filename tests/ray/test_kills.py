"""Actors and nodes of a Ray cluster that are killed, removed and added while an epoch runs: no batch changes."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import foreload as fl
from tests.ray.parts import Counting, Drawn, Part, plain, running_cluster

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]

ALWAYS: Any = {"batch_size": 4, "shuffle": True, "seed": 7}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    with running_cluster() as cluster:
        yield cluster


def kill(loader: Any, numbers: Any) -> int:
    """Kill those of these workers that run."""
    killed = 0
    for worker in [loader.crew.pool.workers[number] for number in numbers]:
        if worker.process.pid > 0 and not worker.is_dead:
            with suppress(ProcessLookupError):
                os.kill(worker.process.pid, signal.SIGKILL)
                killed += 1
    return killed


@pytest.mark.parametrize("options", [{}, {"cache": "16MiB", "persistent_workers": True}], ids=["alone", "cached"])
def test_actors_are_killed_again_and_again(options: Any) -> None:
    expected = plain(fl.DataLoader(Drawn(160), num_workers=0, **ALWAYS))
    draws, killed = random.Random(1), 0
    with fl.DataLoader(Drawn(160), num_workers=2, workers="ray", max_restarts=10, **ALWAYS, **options) as loader:
        got = []
        for number, batch in enumerate(loader):
            got += plain([batch])
            if number % 3 == 0:  # both every other time
                killed += kill(loader, (0, 1) if draws.random() < 0.5 else (draws.randrange(2),))
        assert got == expected
        assert killed >= 14
        # One that is killed when it has nothing to do any more need not be noticed.
        assert killed - 4 <= len(loader.restarts) <= killed
        if options:  # the caches and the workers go on
            loader.set_epoch(0)
            assert plain(loader) == expected
            assert loader.stats()["cache"]["hits"] > 0


def test_workers_with_parts_or_states_are_killed() -> None:
    streams = [fl.DataLoader(Part(160), batch_size=4, num_workers=2, workers=kind) for kind in ("processes", "ray")]
    states = [fl.DataLoader(Counting(160), batch_size=4, num_workers=2, workers=kind) for kind in ("processes", "ray")]
    killed = 0
    for stock, ours in (streams, states):
        expected = plain(stock)
        ours.max_restarts = 100
        got = []
        for number, batch in enumerate(ours):
            got += plain([batch])
            if number % 7 == 3:
                killed += kill(ours, (number % 2,))
        assert got == expected
    assert killed >= 10


def test_nodes_are_removed_and_added(cluster: Any) -> None:
    expected = plain(fl.DataLoader(Drawn(120), num_workers=0, **ALWAYS))
    loader = fl.DataLoader(Drawn(120), num_workers=2, workers="ray", max_restarts=0 + 5, **ALWAYS)
    got = []
    for number, batch in enumerate(loader):
        got += plain([batch])
        if number in (4, 14):
            cluster.remove_node(sorted(cluster.worker_nodes, key=str)[0], allow_graceful=False)
        if number in (8, 18):
            cluster.add_node(num_cpus=1)
    assert got == expected
    assert 2 <= len(loader.restarts) <= 6


def test_without_any_node_loading_goes_on_when_one_comes(cluster: Any) -> None:
    expected = plain(fl.DataLoader(Drawn(60), num_workers=0, **ALWAYS))
    loader = fl.DataLoader(Drawn(60), num_workers=2, workers="ray", **ALWAYS)
    epoch = iter(loader)
    got = plain([next(epoch)])
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node, allow_graceful=False)
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    assert got + plain(epoch) == expected


def test_the_number_of_workers_follows_the_cluster(cluster: Any) -> None:
    class Slow(Drawn):
        def __getitem__(self, index: int) -> Any:
            import time

            time.sleep(0.05)
            return super().__getitem__(index)

    expected = plain(fl.DataLoader(Slow(240), num_workers=0, **ALWAYS))
    loader = fl.DataLoader(Slow(240), workers="ray", **ALWAYS)
    got, pids = [], set()
    node = None
    for number, batch in enumerate(loader):
        got += plain([batch])
        pids |= {worker.process.pid for worker in loader.crew.pool.workers if worker.is_ready}
        if number == 4:
            assert len(pids) == 2
            node = cluster.add_node(num_cpus=1)
    cluster.remove_node(node)
    assert got == expected
    assert len(pids) == 3
    assert loader.num_workers >= 3
