"""Ray Data: its readers, map_batches, iter_torch_batches, on a local cluster with all cores.

https://docs.ray.io/en/latest/data: a random shuffle of all rows before each epoch, prefetch_batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.data
import torch
from benchmarks.peers import decode
from benchmarks.peers.adapters import Epochs, loads
from benchmarks.peers.work import CORES, ROOT, Work


def start() -> None:
    """A cluster on this machine."""
    if not ray.is_initialized():
        environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
        options: Any = {"num_cpus": CORES, "include_dashboard": False, "log_to_driver": False}
        ray.init(runtime_env=environment, **options)
        ray.data.DataContext.get_current().enable_progress_bars = False


def _decoded(rows: Any, work: Work) -> Any:
    images = [decode.one(Path(path).read_bytes(), work) for path in rows["path"]]
    return {"image": np.stack(images), "number": rows["number"]}


@loads("train", "simplejpeg and OpenCV in map_batches")
def train(work: Work) -> Any:
    start()
    files = work.files
    rows = [{"path": path, "number": number} for number, path in enumerate(files)]

    def epoch(number: int) -> Iterator[Any]:
        source = ray.data.from_items(rows, override_num_blocks=2 * CORES).random_shuffle(seed=number)
        dataset = source.map_batches(_decoded, batch_size=work.batch_size, fn_kwargs={"work": work})
        for batch in dataset.iter_batches(batch_size=work.batch_size, prefetch_batches=2):
            yield decode.finish(np.array(batch["image"]), work), torch.from_numpy(np.array(batch["number"]))

    return Epochs(epoch)


@loads("parquet", "read_parquet, random_shuffle")
def parquet(work: Work) -> Any:
    start()

    def epoch(number: int) -> Iterator[Any]:
        dataset = ray.data.read_parquet(str(work.folder), columns=["values"]).random_shuffle(seed=number)
        for batch in dataset.iter_batches(batch_size=work.batch_size, prefetch_batches=2):
            yield torch.from_numpy(np.stack(batch["values"]))

    return Epochs(epoch)
