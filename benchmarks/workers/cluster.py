"""Loading on a Ray cluster of two nodes of this machine against the same two cores, and what kills cost."""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

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


def main() -> None:
    options = parser(__doc__, rounds=5)
    options.add_argument("--images", type=int, default=2000)
    arguments = options.parse_args()
    record = Record("workers_cluster")
    data = fl.ImageDataset(images(arguments.images), transform=fl.transforms.train(224))
    how: dict[str, Any] = {"batch_size": 64, "shuffle": True, "seed": 0, "persistent_workers": True}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=512 << 20)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        here = fl.DataLoader(data, num_workers=2, workers="threads", **how)
        processes = fl.DataLoader(data, num_workers=2, workers="processes", **how)
        there = fl.DataLoader(data, num_workers=2, workers="ray", max_restarts=100, **how)
        many = len(there)
        runs: dict[str, Callable[[], float]] = {
            "two threads": lambda: len(data) / epoch(here, 0),
            "two processes": lambda: len(data) / epoch(processes, 0),
            "two Ray nodes": lambda: len(data) / epoch(there, 0),
        }
        speeds = take_turns(runs, arguments.rounds)
        record.samples(speeds, "images/s")
        seconds = take_turns(
            {
                "an epoch on two Ray nodes": lambda: epoch(there, 0),
                "with two kills": lambda: epoch(there, 0, (many // 4, many // 2)),
            },
            arguments.rounds,
        )
        record.samples(seconds, "s")
        middle = {name: statistics.median(values) for name, values in (speeds | seconds).items()}
        record.verdict("two Ray nodes / two threads", middle["two Ray nodes"] / middle["two threads"], 0.85)
        record.verdict("two Ray nodes / two processes", middle["two Ray nodes"] / middle["two processes"], 0.85)
        cost = middle["with two kills"] - middle["an epoch on two Ray nodes"]
        record.verdict("seconds that two kills cost", cost, 5.0, most=True)
        record.note("restarts", len(there.restarts))
        for loader in (here, processes, there):
            loader.close()
    finally:
        ray.shutdown()
        cluster.shutdown()
    record.write()


if __name__ == "__main__":
    main()
