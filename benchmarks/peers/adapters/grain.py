"""Grain: MapDataset with its threads.

https://google-grain.readthedocs.io: source, shuffle, to_iter_dataset with ReadOptions, batch;
as many threads as cores.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import grain
import numpy as np
import torch
from benchmarks.peers import decode
from benchmarks.peers.adapters import Epochs, loads
from benchmarks.peers.datasets import Cifar, Numbers
from benchmarks.peers.work import CORES, Work
from benchmarks.peers.workloads.python import DATASETS


class Source:
    """Numbers of samples, or what a function makes of them."""

    def __init__(self, count: int, read: Any = int) -> None:
        self.count, self.read = count, read

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> Any:
        return self.read(int(index))


def _stack(samples: Any) -> Any:
    first = samples[0]
    if isinstance(first, tuple):
        return tuple(_stack([one[part] for one in samples]) for part in range(len(first)))
    return torch.stack(list(samples)) if isinstance(first, torch.Tensor) else torch.from_numpy(np.stack(samples))


def epochs(work: Work, read: Any, *, shuffle: bool = True, batch: Any = _stack, ahead: int = 64) -> Epochs:
    """Epochs of batches read by threads."""

    def epoch(number: int) -> Any:
        dataset = grain.MapDataset.source(Source(work.count, read))
        dataset = dataset.shuffle(seed=number) if shuffle else dataset
        options = grain.ReadOptions(num_threads=CORES, prefetch_buffer_size=ahead)
        return iter(dataset.to_iter_dataset(options).batch(work.batch_size, drop_remainder=False, batch_fn=batch))

    return Epochs(epoch)


def _image(number: int, work: Work, files: list[str]) -> Any:
    return decode.one(Path(files[number]).read_bytes(), work), number


@loads("train", "simplejpeg and OpenCV, threads")
def train(work: Work) -> Any:
    batch = partial(decode.collate, work=work)
    return epochs(work, partial(_image, work=work, files=work.files), batch=batch, shuffle=work.family == "train")


loads("validation", "simplejpeg and OpenCV, threads")(train)


@loads("rows", "MapDataset")
def rows(work: Work) -> Any:
    values = np.load(work.folder / "rows.npy")
    return epochs(work, values.__getitem__)


@loads("files", "threads")
def files(work: Work) -> Any:
    paths = work.files
    return epochs(work, lambda number: np.frombuffer(Path(paths[number]).read_bytes(), np.uint8))


@loads("cifar", "threads")
def cifar(work: Work) -> Any:
    return epochs(work, Cifar(work).__getitem__)


@loads("tokens", "a memory map, threads")
def tokens(work: Work) -> Any:
    mapped = np.memmap(work.folder / "tokens.bin", np.int32, "r").reshape(work.count, -1)
    return epochs(work, lambda number: np.array(mapped[number]))


@loads("python", "to_iter_dataset, defaults")
def python(work: Work) -> Any:
    dataset = DATASETS[work.options["dataset"]](work.count)

    def epoch(number: int) -> Any:
        source = grain.MapDataset.source(Source(work.count, dataset.__getitem__)).shuffle(seed=number)
        return iter(source.to_iter_dataset().batch(work.batch_size, batch_fn=_stack))

    return Epochs(epoch)


@loads("many", "shuffle(seed=0)")
def many(work: Work) -> Any:
    source = Numbers(work.count)
    dataset = grain.MapDataset.source(source).shuffle(seed=0).batch(work.batch_size)  # type: ignore[arg-type]
    return Epochs(lambda number: iter(dataset.to_iter_dataset()))


class Resumable:
    """An iterator with ``get_state``, under the names that the runner asks for."""

    def __init__(self, work: Work) -> None:
        self._loader = iter(files(work))

    def __iter__(self) -> Any:
        return self._loader

    def state_dict(self) -> Any:
        return self._loader.get_state()

    def load_state_dict(self, state: Any) -> None:
        self._loader.set_state(state)


loads("resume", "get_state, set_state")(Resumable)
