"""Pipelines that are limited by different things, each with two settings."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import foreload as fl

sys.path.append(str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "workers"))  # whose datasets.py is not the package

from common import RESULTS, ROOT, images, parser
from datasets import Numpy, Pillow, PurePython, Sized, Sleeping, Tiny
from files import BATCH, COUNT, SIZE, make_files

__all__ = ["RESULTS", "Pipeline", "on_cores", "parser", "pipelines"]

FILES = ROOT / "data" / "files8k"


class SleepAndWork(Sized):
    """Waits for 4 ms and then computes for about 1, without the lock."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.004)
        return int(np.sort(np.random.default_rng(index).random(12_000))[0] * 1000)


class Records(Sized):
    """Small dicts, which a collate function in Python puts together."""

    def __getitem__(self, index: int) -> Any:
        return {"id": index, "values": [index, index + 1, index + 2], "name": "record"}


def collate(samples: list[dict[str, Any]]) -> Any:
    """A collate function as people write it for records: per batch some objects, per sample some steps."""
    columns = {name: [sample[name] for sample in samples] for name in samples[0]}
    masks = torch.nn.functional.one_hot(torch.arange(64) % 8).float()
    lengths = torch.tensor([len(values) for values in columns["values"]])
    values = torch.nn.utils.rnn.pad_sequence([torch.tensor(values) for values in columns["values"]])
    return columns["id"], values, lengths, masks @ masks.T


def sleeping_loop(seconds: float) -> Callable[[Any], None]:
    return lambda batch: time.sleep(seconds)


def computing_loop(seconds: float) -> Callable[[Any], None]:
    """A training step on a core: matrix products in one thread, without the lock."""
    matrix = torch.rand(256, 256)
    torch.set_num_threads(1)

    def work(batch: Any) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            for _ in range(4):
                matrix @ matrix

    return work


def images_loader(packed: bool = False, **settings: Any) -> Any:
    source = ROOT / "data" / "bench2000-packed" if packed else images(2000)
    if packed and not source.exists():
        fl.pack(images(2000), source)
    train = fl.ImageDataset(source, transform=fl.transforms.train(224, normalize=False), cache_size=0)
    return fl.DataLoader(train, batch_size=64, shuffle=True, seed=0, **settings)


def files_loader(**settings: Any) -> Any:
    for path in make_files(FILES, COUNT, SIZE):
        Path(path).read_bytes()  # they are in memory from here on
    return fl.DataLoader(fl.FileDataset(FILES), batch_size=BATCH, shuffle=True, seed=0, **settings)


def of(kind: type[Sized], size: int, **fixed: Any) -> Callable[..., Any]:
    """A loader of a dataset, by settings."""

    def make(**settings: Any) -> Any:
        dataset = kind.__new__(kind)
        Sized.__init__(dataset, size) if kind.__init__ is Sized.__init__ else kind.__init__(dataset)  # type: ignore[call-arg]
        dataset.size = size
        return fl.DataLoader(dataset, **{"batch_size": 32, **fixed, **settings})

    return make


def threads(count: int, **more: Any) -> dict[str, Any]:
    return {"num_workers": count, "workers": "threads", **more}


def processes(count: int, **more: Any) -> dict[str, Any]:
    return {"num_workers": count, "workers": "processes", **more}


@dataclass
class Pipeline:
    """A pipeline that is measured ``before``, predicted with ``change``, and measured ``after``.

    Attributes:
        warm: epochs before those that count, of ``after``.
        cores: before and after.
    """

    make: Callable[..., Any]
    before: dict[str, Any]
    after: dict[str, Any]
    change: dict[str, Any]
    loop: Callable[[Any], None] = lambda batch: None
    epochs: int = 1
    warm: int = 0
    cores: tuple[int, int] = field(default_factory=lambda: (0, 0))


def pipelines() -> dict[str, Pipeline]:
    return {**_of_workers(), **_of_images(), **_of_batches_and_caches()}


def _of_workers() -> dict[str, Pipeline]:
    sleeping = of(Sleeping, 600)
    python, long_python = of(PurePython, 8_000), of(PurePython, 16_000)
    pillow, numpy = of(Pillow, 1000), of(Numpy, 8_000)
    return {
        "sleep, threads 2 -> 8": Pipeline(sleeping, threads(2), threads(8), {"workers": 8}),
        "sleep, threads 4 -> 1": Pipeline(sleeping, threads(4), threads(1), {"workers": 1}),
        "sleep, processes 1 -> 4": Pipeline(sleeping, processes(1), processes(4), {"workers": 4}),
        "sleep and work, threads 2 -> 8": Pipeline(of(SleepAndWork, 1000), threads(2), threads(8), {"workers": 8}),
        "Python, threads 1 -> 2": Pipeline(python, threads(1), threads(2), {"workers": 2}),
        "Python, threads 2 -> processes 2": Pipeline(
            long_python, threads(2), processes(2), {"kind": "processes", "workers": 2}
        ),
        "Python, processes 1 -> 2": Pipeline(long_python, processes(1), processes(2), {"workers": 2}),
        "Python, none -> processes 2": Pipeline(
            long_python, threads(0), processes(2), {"kind": "processes", "workers": 2}
        ),
        "Pillow, threads 1 -> 2": Pipeline(pillow, threads(1), threads(2), {"workers": 2}),
        "Pillow, threads 2 -> 4": Pipeline(pillow, threads(2), threads(4), {"workers": 4}),
        "Pillow, processes 2 -> 1": Pipeline(pillow, processes(2), processes(1), {"workers": 1}),
        "numpy, threads 1 -> 2": Pipeline(numpy, threads(1), threads(2), {"workers": 2}),
    }


def _of_images() -> dict[str, Pipeline]:
    return {
        "images, threads 1 -> 2": Pipeline(images_loader, threads(1), threads(2), {"workers": 2}),
        "images, cores 1 -> 2": Pipeline(images_loader, threads(2), threads(2), {"cores": 2}, cores=(1, 2)),
        "images, not cached -> all cached, decoded": Pipeline(
            images_loader,
            threads(2),
            threads(2, cache=fl.Cache("2GiB", keep="decoded")),
            {"cache": 1.0, "keep": "decoded"},
            warm=1,
            epochs=2,
        ),
        "files, threads 1 -> 2": Pipeline(files_loader, threads(1), threads(2), {"workers": 2}, epochs=20),
        "images, loose -> packed": Pipeline(
            images_loader, threads(2), threads(2, packed=True), {"source": "packed"}
        ),
    }


def _of_batches_and_caches() -> dict[str, Pipeline]:
    pillow = of(Pillow, 1000)
    small = of(Records, 60_000, collate_fn=collate)
    kept = {"cache": "1GiB", "seed": 0, "shuffle": True}
    return {
        "records, heavy collation, processes 1 -> 2": Pipeline(
            small, processes(1, batch_size=16), processes(2, batch_size=16), {"workers": 2}
        ),
        "tiny, processes, batch 16 -> 256": Pipeline(
            of(Tiny, 160_000),
            processes(2, batch_size=16),
            processes(2, batch_size=256),
            {"batch_size": 256},
            epochs=2,
        ),
        "slow loop that sleeps, threads 1 -> 4": Pipeline(
            pillow, threads(1), threads(4), {"workers": 4}, loop=sleeping_loop(0.025)
        ),
        "slow loop that computes, threads 1 -> 2": Pipeline(
            pillow, threads(1), threads(2), {"workers": 2}, loop=computing_loop(0.02)
        ),
        "cache, half -> all": Pipeline(
            pillow,
            threads(2, **{**kept, "cache": 1000 // 2 * (3 * 128 * 128 + 128)}),
            threads(2, **kept),
            {"cache": 1.0},
            epochs=2,
            warm=1,
        ),
    }


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Let this thread, and those that it starts, use so many cores; 0: all."""
    cores = os.sched_getaffinity(0)
    if count:
        os.sched_setaffinity(0, sorted(cores)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
