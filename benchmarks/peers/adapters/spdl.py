"""SPDL: a pipeline of threads, a batch per task.

https://facebookresearch.github.io/spdl: PipelineBuilder with aggregate and pipe(concurrency=),
and a decoder of one's own, which was faster than its FFmpeg.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peers import decode
from benchmarks.peers.adapters import Epochs, loads
from benchmarks.peers.work import CORES, Work
from spdl.pipeline import PipelineBuilder


def pipeline(work: Work, make: Callable[[list[int]], Any], *, shuffle: bool = True) -> Epochs:
    """Epochs, each through a pipeline of its own."""

    def epoch(number: int) -> Iterator[Any]:
        order = list(range(work.count))
        if shuffle:
            random.Random(number).shuffle(order)
        builder = PipelineBuilder().add_source(order).aggregate(work.batch_size)
        built = builder.pipe(make, concurrency=CORES, output_order="input").add_sink(3).build(num_threads=CORES)
        with built.auto_stop():
            yield from built

    return Epochs(epoch)


@loads("train", "simplejpeg and OpenCV per batch")
def train(work: Work) -> Any:
    files = work.files

    def make(numbers: list[int]) -> Any:
        images = [decode.one(Path(files[number]).read_bytes(), work) for number in numbers]
        return decode.finish(images, work), torch.tensor(numbers)

    return pipeline(work, make, shuffle=work.family == "train")


loads("validation", "simplejpeg and OpenCV per batch")(train)


@loads("files", "threads")
def files(work: Work) -> Any:
    paths = work.files

    def make(numbers: list[int]) -> Any:
        return torch.from_numpy(np.stack([np.fromfile(paths[number], np.uint8) for number in numbers]))

    return pipeline(work, make)
