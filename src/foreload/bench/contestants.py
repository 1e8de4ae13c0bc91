"""The loaders that are compared, each under a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset

import foreload as fl

__all__ = ["IMAGE_CONTESTANTS", "TENSOR_CONTESTANTS", "Contestant", "Work"]


class Work(NamedTuple):
    """The data and the settings that all contestants share."""

    folder: str = ""
    batch_size: int = 64
    workers: int = 2
    rows: int = 0
    columns: int = 0


class Contestant(NamedTuple):
    """A loader in a comparison."""

    name: str
    stock: bool
    make: Callable[[Work], Any]  # called once per process; returns a function from seed to an iterable of batches


Epochs = Callable[[int], Iterable[Any]]


def _stock_images(workers: Callable[[Work], int]) -> Callable[[Work], Epochs]:
    def make(work: Work) -> Epochs:
        from foreload.bench.stock import StockImages

        dataset = StockImages(work.folder)

        def epoch(seed: int) -> Iterable[Any]:
            torch.manual_seed(seed)
            return TorchDataLoader(dataset, work.batch_size, shuffle=True, num_workers=workers(work))

        return epoch

    return make


def _images(mode: fl.LoadingMode, workers: Callable[[Work], Any]) -> Callable[[Work], Epochs]:
    def make(work: Work) -> Epochs:
        transform = fl.transforms.train(224)
        dataset = fl.ImageDataset(work.folder, transform=transform, loading_mode=mode)
        loader = fl.DataLoader(dataset, work.batch_size, shuffle=True, seed=0, num_workers=workers(work))

        def epoch(seed: int) -> Iterable[Any]:
            loader.set_epoch(seed)
            return loader

        return epoch

    return make


IMAGE_CONTESTANTS = [
    Contestant("stock, in the loop", True, _stock_images(lambda work: 0)),
    Contestant("stock, workers", True, _stock_images(lambda work: work.workers)),
    Contestant("foreload, baseline", False, _images(fl.LoadingMode.LAZY, lambda work: 0)),
    Contestant("foreload, workers", False, _images(fl.LoadingMode.LAZY, lambda work: work.workers)),
    Contestant("foreload, preloaded", False, _images(fl.LoadingMode.EAGER, lambda work: 0)),
    Contestant("foreload, full", False, _images(fl.LoadingMode.EAGER, lambda work: work.workers)),
]


def _data(work: Work) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(work.rows, work.columns)).astype(np.float32))
    return x, torch.from_numpy(rng.integers(0, 10, work.rows))


def _tensors(cls: Any, dataset: Callable[..., Any], **arguments: Any) -> Callable[[Work], Epochs]:
    def make(work: Work) -> Epochs:
        rows = dataset(_data(work))

        def epoch(seed: int) -> Iterable[Any]:
            torch.manual_seed(seed)
            return cls(rows, work.batch_size, shuffle=True, **arguments)  # type: ignore[no-any-return]

        return epoch

    return make


def _bare(work: Work) -> Epochs:
    """Copy rows in the order of a permutation to one buffer, and do nothing else."""
    x, y = _data(work)

    def epoch(seed: int) -> Iterable[Any]:
        order = torch.randperm(work.rows, generator=torch.Generator().manual_seed(seed))
        out_x, out_y = torch.empty(work.batch_size, work.columns), torch.empty(work.batch_size, dtype=torch.int64)
        for start in range(0, work.rows - work.batch_size + 1, work.batch_size):
            where = order[start : start + work.batch_size]
            torch.index_select(x, 0, where, out=out_x)
            torch.index_select(y, 0, where, out=out_y)
            yield out_x, out_y

    return epoch


TENSOR_CONTESTANTS = [
    Contestant("stock", True, _tensors(TorchDataLoader, lambda data: TensorDataset(*data), num_workers=0)),
    Contestant("stock, CachedDataset", False, _tensors(TorchDataLoader, fl.CachedDataset, num_workers=0)),
    Contestant("foreload", False, _tensors(fl.DataLoader, fl.CachedDataset)),
    Contestant("bare index_select", False, _bare),
]
