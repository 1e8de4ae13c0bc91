"""Nodes of a Ray cluster that are removed and added while an epoch runs: no batch changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import psutil
import pytest

import foreload as fl
from tests.ray.parts import Drawn, plain, running_cluster

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
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
    expected = plain(fl.DataLoader(Drawn(160), num_workers=0, **ALWAYS))
    loader = fl.DataLoader(Slow(160), num_workers=2, workers="ray", **ALWAYS)
    got, removed, epoch = [], 0, iter(loader)
    for number, batch in enumerate(epoch):
        got += plain([batch])
        if number in (4, 14):
            removed += remove_a_node_with_a_worker(cluster, epoch)
        if number in (8, 18):
            cluster.add_node(num_cpus=1)
        if number == 24:  # all of them
            removed += remove_a_node_with_a_worker(cluster, epoch)
            for node in list(cluster.worker_nodes):
                cluster.remove_node(node, allow_graceful=False)
            for _ in range(2):
                cluster.add_node(num_cpus=1)
    assert got == expected
    # A worker that Ray had not started yet is on no node that could be removed under it.
    assert removed >= 1
    assert len(loader.restarts) >= removed


def remove_a_node_with_a_worker(cluster: Any, epoch: Any) -> int:
    """Remove a node whose worker has batches to load, if there is one, and return how many were removed."""
    busy = {worker.process.pid for worker in epoch._pool.workers if worker.is_ready and worker.asked}
    for node in list(cluster.worker_nodes):
        (raylet,) = node.all_processes["raylet"]
        if busy & {child.pid for child in psutil.Process(raylet.process.pid).children()}:
            cluster.remove_node(node, allow_graceful=False)
            return 1
    return 0


def test_the_number_of_workers_follows_the_cluster(cluster: Any) -> None:
    size = 40_000  # more than are loaded, however long Ray takes to start a worker
    loader = fl.DataLoader(Slow(size, side=4), workers="ray", **ALWAYS)
    got, pids, node, last = [], set(), None, None
    epoch: Any = iter(loader)
    for number, batch in enumerate(epoch):
        got += plain([batch])
        pids |= {worker.process.pid for worker in epoch._pool.workers if worker.is_ready}
        if number == 4:
            assert len(pids) <= 2
            node = cluster.add_node(num_cpus=1)
        if last is None and len(pids) >= 3:
            cluster.remove_node(node, allow_graceful=False)
            last = number + 20
        if number == last:
            break
    assert loader.num_workers >= 3
    expected = fl.DataLoader(Drawn(size, side=4), num_workers=0, **ALWAYS)
    assert got == plain(islice(expected, len(got)))


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
