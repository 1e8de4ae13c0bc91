"""torchdata.nodes: sampler, batcher, parallel mapper, prefetcher.

https://meta-pytorch.org/data/beta/torchdata.nodes.html: Prefetcher(ParallelMapper(Batcher(SamplerWrapper))) in a
Loader, with samplers that have a state; a batch per task, threads where the work releases the GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peers import decode
from benchmarks.peers.adapters import loads
from benchmarks.peers.datasets import Cifar
from benchmarks.peers.work import CORES, Work
from benchmarks.peers.workloads.python import DATASETS
from torch.utils.data import SequentialSampler, default_collate
from torchdata.nodes import Batcher, Loader, ParallelMapper, Prefetcher, SamplerWrapper
from torchdata.stateful_dataloader.sampler import RandomSampler


def graph(work: Work, make: Callable[[list[int]], Any], *, shuffle: bool = True, method: str = "thread") -> Any:
    """A loader whose workers make whole batches."""
    indices = range(work.count)
    sampler: Any = RandomSampler(indices, generator=torch.Generator()) if shuffle else SequentialSampler(indices)
    node: Any = Batcher(SamplerWrapper(sampler), batch_size=work.batch_size, drop_last=False)
    node = ParallelMapper(node, make, num_workers=CORES, in_order=True, method=method)
    return Loader(Prefetcher(node, prefetch_factor=2))


@loads("train", "simplejpeg and OpenCV, threads")
def train(work: Work) -> Any:
    files = work.files

    def make(numbers: list[int]) -> Any:
        images = [decode.one(Path(files[number]).read_bytes(), work) for number in numbers]
        return decode.finish(images, work), torch.tensor(numbers)

    return graph(work, make, shuffle=work.family == "train")


loads("validation", "simplejpeg and OpenCV, threads")(train)


@loads("rows", "a gather per batch, threads")
def rows(work: Work) -> Any:
    values = torch.from_numpy(np.load(work.folder / "rows.npy"))
    return graph(work, lambda numbers: values[numbers])


@loads("files", "threads")
def files(work: Work) -> Any:
    paths = work.files

    def make(numbers: list[int]) -> Any:
        return torch.from_numpy(np.stack([np.fromfile(paths[number], np.uint8) for number in numbers]))

    return graph(work, make)


def _resume(work: Work) -> Any:
    return files(work)


loads("resume", "Loader.state_dict")(_resume)


@loads("cifar", "threads")
def cifar(work: Work) -> Any:
    dataset = Cifar(work)
    return graph(work, lambda numbers: default_collate([dataset[number] for number in numbers]))


@loads("python", "threads, as many as cores")
def python(work: Work) -> Any:
    dataset = DATASETS[work.options["dataset"]](work.count)
    return graph(work, lambda numbers: default_collate([dataset[number] for number in numbers]))
