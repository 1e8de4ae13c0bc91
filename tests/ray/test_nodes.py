"""Nodes of a Ray cluster that are removed and added while an epoch runs: no batch changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import foreload as fl
from tests.ray.parts import Drawn, plain, running_cluster

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(150),
    pytest.mark.filterwarnings("ignore"),
]

ALWAYS: Any = {"batch_size": 4, "shuffle": True, "seed": 7}


@pytest.fixture
def cluster() -> Iterator[Any]:
    with running_cluster() as cluster:
        yield cluster


class Slow(Drawn):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.03)
        return super().__getitem__(index)


def test_nodes_are_removed_and_added(cluster: Any) -> None:
    expected = plain(fl.DataLoader(Drawn(120), num_workers=0, **ALWAYS))
    loader = fl.DataLoader(Drawn(120), num_workers=2, workers="ray", **ALWAYS)
    got = []
    for number, batch in enumerate(loader):
        got += plain([batch])
        if number in (4, 14):
            cluster.remove_node(sorted(cluster.worker_nodes, key=str)[0], allow_graceful=False)
        if number in (8, 18):
            cluster.add_node(num_cpus=1)
        if number == 24:  # all of them
            for node in list(cluster.worker_nodes):
                cluster.remove_node(node, allow_graceful=False)
            for _ in range(2):
                cluster.add_node(num_cpus=1)
    assert got == expected
    assert len(loader.restarts) >= 3


def test_the_number_of_workers_follows_the_cluster(cluster: Any) -> None:
    expected = plain(fl.DataLoader(Drawn(400), num_workers=0, **ALWAYS))
    loader = fl.DataLoader(Slow(400), workers="ray", **ALWAYS)
    got, pids = [], set()
    epoch: Any = iter(loader)
    for number, batch in enumerate(epoch):
        got += plain([batch])
        pids |= {worker.process.pid for worker in epoch._pool.workers if worker.is_ready}
        if number == 4:
            assert len(pids) <= 2
            node = cluster.add_node(num_cpus=1)
        if number == 80:
            cluster.remove_node(node, allow_graceful=False)
    assert got == expected
    assert len(pids) >= 3
    assert loader.num_workers >= 3


def test_persistent_workers_of_a_cluster_that_is_gone_are_not_asked() -> None:
    options: Any = {"batch_size": 4, "shuffle": True, "seed": 7, "cache": "1MiB"}
    loader = fl.DataLoader(Drawn(16), num_workers=1, workers="ray", persistent_workers=True, **options)
    expected = fl.DataLoader(Drawn(16), num_workers=0, **options)
    for epoch in range(2):  # each cluster counts its jobs from 1
        with running_cluster(1):
            loader.set_epoch(epoch)
            expected.set_epoch(epoch)
            assert [batch["index"].tolist() for batch in loader] == [batch["index"].tolist() for batch in expected]
            assert loader.stats()["cache"]["misses"] >= 16
        # (Ray ends a process that leaves a cluster while it waits for an object of it.)
    loader.close()
