"""Loading on a Ray cluster of two nodes of this machine against the same two cores, and what kills cost.

Ray alone is timed too: the same nodes return batches of the same size that lie ready. Here the processes that
carry a batch from one node's store to the other's share the cores with those that load; on a real cluster each
node has its own.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import foreload as fl

sys.path.append(str(Path(__file__).parent.parent))

from common import Record, images, parser, take_turns


def epoch(loader: Any, number: int, kills: tuple[int, ...] = ()) -> float:
    """Iterate over an epoch, kill a worker after some batches, and return the seconds that it took."""
    loader.set_epoch(number)
    started = time.perf_counter()
    batches = iter(loader)
    for step, _ in enumerate(batches):
        if step in kills:
            ready = [worker for worker in loader.crew.pool.workers if worker.is_ready]
            os.kill(ready[-1].process.pid, signal.SIGKILL)
    return time.perf_counter() - started


@ray.remote(num_cpus=0)
class Ready:
    """A node's batch that lies ready."""

    def __init__(self, size: int) -> None:
        self.batch = np.ones(size, np.uint8)

    def load(self) -> Any:
        return self.batch


def carry(count: int, size: int) -> float:
    """Get batches of a size from two nodes in turn, two ahead of each, and return the seconds that it took."""
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes()]
    nodes: list[Any] = [Ready.options(scheduling_strategy=place).remote(size) for place in places]  # type: ignore[attr-defined]
    try:
        ray.get([node.load.remote() for node in nodes])
        started = time.perf_counter()
        asked = [nodes[number % 2].load.remote() for number in range(4)]
        for number in range(count):
            ray.get(asked.pop(0))
            if number + 4 < count:
                asked.append(nodes[number % 2].load.remote())
        return time.perf_counter() - started
    finally:
        for node in nodes:
            ray.kill(node)


def main() -> None:
    options = parser(__doc__, rounds=5)
    options.add_argument("--images", type=int, default=2000)
    arguments = options.parse_args()
    record = Record("workers_cluster")
    folder = images(arguments.images)
    # The loop is on one of two nodes, so half of the batches cross from one object store to the other.
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": 1 << 30},
    )
    cluster.add_node(num_cpus=1, object_store_memory=1 << 30)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        for name, is_float in (("uint8", False), ("float32", True)):
            # No image is kept: a process has the same images in each epoch, an actor has not.
            transform = fl.transforms.train(224, normalize=is_float)
            data = fl.ImageDataset(folder, transform=transform, cache_size=0)
            compare(name, data, record, arguments.rounds)
    finally:
        ray.shutdown()
        cluster.shutdown()
    record.write()


def compare(name: str, data: Any, record: Record, rounds: int) -> None:
    """Measure speeds with images of a type, and for the first of them the cost of kills."""
    how: dict[str, Any] = {"batch_size": 64, "shuffle": True, "seed": 0, "persistent_workers": True}
    kinds = {"threads": "two threads", "processes": "two processes", "ray": "two Ray nodes"}
    loaders = {
        title: fl.DataLoader(data, num_workers=2, workers=kind, max_restarts=100, **how)
        for kind, title in kinds.items()
    }
    try:
        speeds = take_turns(
            {f"{title}, {name}": partial(_speed, loader, len(data)) for title, loader in loaders.items()}, rounds
        )
        record.samples(speeds, "images/s")
        middle = {title: statistics.median(values) for title, values in speeds.items()}
        limit(name, data, middle[f"two processes, {name}"], record, rounds)
        there = middle[f"two Ray nodes, {name}"]
        for title in ("two threads", "two processes"):
            record.verdict(f"two Ray nodes / {title}, {name}", there / middle[f"{title}, {name}"], 0.85)
        if name == "uint8":
            measure_kills(loaders["two Ray nodes"], record, rounds)
    finally:
        for loader in loaders.values():
            loader.close()


def limit(name: str, data: Any, here: float, record: Record, rounds: int) -> None:
    """Note the speed at which Ray carries such batches, and the share of ``here`` that both together can reach."""
    size = 64 * data[0][0].nbytes
    count = -(-len(data) // 64)
    alone = len(data) / statistics.median(carry(count, size) for _ in range(rounds))
    share = 1 / (1 + here / alone)
    print(f"  Ray alone carries {alone:,.0f} images/s; both together reach {share:.3g} of two processes")
    record.note(f"Ray alone, ready batches, {name}, images/s", round(alone))
    record.note(f"share of two processes that loading and Ray together can reach, {name}", round(share, 3))


def _speed(loader: Any, samples: int) -> float:
    return samples / epoch(loader, 0)


def measure_kills(loader: Any, record: Record, rounds: int) -> None:
    """Measure what two kills cost an epoch that is long enough for the workers that replace them."""
    kills = (len(loader) // 4, len(loader) // 2)
    runs = {
        "an epoch on two Ray nodes": partial(epoch, loader, 0),
        "with two kills": partial(epoch, loader, 0, kills),
    }
    seconds = take_turns(runs, rounds)
    record.samples(seconds, "s")
    alone, killed = (statistics.median(values) for values in seconds.values())
    record.verdict("seconds that two kills cost", killed - alone, 5.0, most=True)
    record.note("restarts", len(loader.restarts))


if __name__ == "__main__":
    main()
