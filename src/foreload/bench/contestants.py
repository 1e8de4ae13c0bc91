"""The loaders that are compared, each under a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import TensorDataset

import foreload as fl
from foreload._torch import TorchDataLoader

__all__ = ["IMAGE_CONTESTANTS", "TENSOR_CONTESTANTS", "Contestant", "Work", "check_images", "present"]


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
    about: str
    needs_device: bool = False


Epochs = Callable[[int], Iterable[Any]]


def present(contestants: Sequence[Contestant]) -> list[Contestant]:
    """Leave out those that need a GPU, if there is none."""
    return [contestant for contestant in contestants if _device() or not contestant.needs_device]


def check_images(folder: Path) -> None:
    """Check that the contestants have images to compare.

    Raises:
        FileNotFoundError: there are no class folders, or no JPEGs in them.
    """
    from foreload.datasets.folders import IMAGES, list_files

    listing = list_files(folder, None, IMAGES)
    if not listing.classes:
        raise FileNotFoundError(f"{str(folder)!r} has no class folders; put the images into one folder per class")
    if not any(path.lower().endswith((".jpg", ".jpeg")) for path in listing.paths):
        raise FileNotFoundError(
            f"no .jpg or .jpeg in the class folders of {str(folder)!r}; give class folders of JPEGs"
        )


def _device() -> torch.device | None:
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def _to_device() -> dict[str, Any]:
    device = _device()
    return {"pin_memory": True, "device": device} if device else {}


def _stock_images(*, workers: bool) -> Callable[[Work], Epochs]:
    def make(work: Work) -> Epochs:
        from foreload.bench.stock import StockImages

        dataset = StockImages(work.folder)

        def epoch(seed: int) -> Iterable[Any]:
            torch.manual_seed(seed)
            return TorchDataLoader(
                dataset, work.batch_size, shuffle=True, num_workers=work.workers if workers else 0
            )

        return epoch

    return make


def _images(
    dataset: Callable[[Work], Any], *, workers: bool = False, on_device: bool = False
) -> Callable[[Work], Epochs]:
    def make(work: Work) -> Epochs:
        samples = dataset(work)
        loader = fl.DataLoader(
            samples,
            work.batch_size,
            shuffle=None if isinstance(samples, fl.Stream) else True,
            seed=0,
            num_workers=work.workers if workers else 0,
            **_to_device() if on_device else {},
        )

        def epoch(seed: int) -> Iterable[Any]:
            loader.set_epoch(seed)
            return loader

        return epoch

    return make


def _in_mode(mode: fl.LoadingMode, **options: Any) -> Callable[[Work], fl.ImageDataset]:
    return lambda work: fl.ImageDataset(
        work.folder, transform=fl.transforms.train(224), loading_mode=mode, **options
    )


def _recently_used(work: Work) -> fl.HighPerformanceDataset:
    half = len(fl.ImageDataset(work.folder)) // 2
    return fl.HighPerformanceDataset(work.folder, transform=fl.transforms.train(224), cache_size=half)


def _streamed(work: Work) -> fl.Stream:
    return _in_mode(fl.LoadingMode.STREAMING)(work).stream(seed=0)


def _ahead(work: Work) -> fl.AsyncPrefetchDataset:
    images = _lazy(work)
    return fl.AsyncPrefetchDataset(images, queue_size=2 * work.batch_size, num_workers=work.workers)


_lazy = _in_mode(fl.LoadingMode.LAZY, cache_size=0)
_cached, _eager = map(_in_mode, (fl.LoadingMode.CACHED, fl.LoadingMode.EAGER))

IMAGE_CONTESTANTS = [
    Contestant(
        "stock, in the loop",
        True,
        _stock_images(workers=False),
        "torch's DataLoader, Pillow, torchvision's transforms; num_workers=0",
    ),
    Contestant(
        "stock, workers",
        True,
        _stock_images(workers=True),
        "the same with worker processes (--num-workers of them)",
    ),
    Contestant(
        "foreload, baseline",
        False,
        _images(_lazy),
        "ImageDataset: LoadingMode.LAZY, num_workers=0; decoded when a batch is asked for",
    ),
    Contestant(
        "foreload, workers", False, _images(_lazy, workers=True), "the same with worker threads, batches ahead"
    ),
    Contestant(
        "foreload, LRU",
        False,
        _images(_recently_used),
        "HighPerformanceDataset: the most recently used half is kept, decoded; num_workers=0",
    ),
    Contestant(
        "foreload, cached",
        False,
        _images(_cached),
        "LoadingMode.CACHED: up to 1,000 images are kept, decoded; num_workers=0",
    ),
    Contestant(
        "foreload, preloaded",
        False,
        _images(_eager),
        "LoadingMode.EAGER: all images are decoded before the first epoch; num_workers=0",
    ),
    Contestant(
        "foreload, streaming",
        False,
        _images(_streamed),
        "LoadingMode.STREAMING: in the order of storage, through a shuffle buffer",
    ),
    Contestant(
        "foreload, async prefetch",
        False,
        _images(_ahead),
        "AsyncPrefetchDataset: its threads load samples ahead, one by one; num_workers=0",
    ),
    Contestant(
        "foreload, pinned + device",
        False,
        _images(_lazy, workers=True, on_device=True),
        "workers, page-locked batches, copied to the GPU ahead of the loop",
        needs_device=True,
    ),
    Contestant(
        "foreload, full",
        False,
        _images(_eager, workers=True, on_device=True),
        "all of it: preloaded, workers, and pinned + device if there is a GPU",
    ),
]


def _data(work: Work) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(work.rows, work.columns)).astype(np.float32))
    return x, torch.from_numpy(rng.integers(0, 10, work.rows))


def _tensors(
    cls: Any, dataset: Callable[..., Any], *, workers: bool | None = None, on_device: bool = False
) -> Callable[[Work], Epochs]:
    def make(work: Work) -> Epochs:
        rows = dataset(_data(work))
        options: dict[str, Any] = _to_device() if on_device else {}
        if workers is not None:
            options["num_workers"] = work.workers if workers else 0

        def epoch(seed: int) -> Iterable[Any]:
            torch.manual_seed(seed)
            return cls(rows, work.batch_size, shuffle=True, **options)  # type: ignore[no-any-return]

        return epoch

    return make


def _plain(data: tuple[torch.Tensor, torch.Tensor]) -> Any:
    return TensorDataset(*data)


def _prefetched(data: tuple[torch.Tensor, torch.Tensor]) -> Any:
    return fl.AsyncPrefetchDataset(TensorDataset(*data))


def _bare(work: Work) -> Epochs:
    """Copy rows in the order of a permutation to one buffer, and do nothing else."""
    x, y = _data(work)

    def epoch(seed: int) -> Iterable[Any]:
        order = torch.randperm(work.rows, generator=torch.Generator().manual_seed(seed))
        out_x, out_y = torch.empty(work.batch_size, work.columns), torch.empty(work.batch_size, dtype=torch.int64)
        for where in torch.split(order, work.batch_size):  # (the last one may be smaller, as the loaders' is)
            rows_x, rows_y = out_x[: len(where)], out_y[: len(where)]
            torch.index_select(x, 0, where, out=rows_x)
            torch.index_select(y, 0, where, out=rows_y)
            yield rows_x, rows_y

    return epoch


TENSOR_CONTESTANTS = [
    Contestant(
        "stock, in the loop",
        True,
        _tensors(TorchDataLoader, _plain, workers=False),
        "torch's DataLoader and TensorDataset, num_workers=0",
    ),
    Contestant(
        "stock, workers",
        True,
        _tensors(TorchDataLoader, _plain, workers=True),
        "the same with worker processes (--num-workers of them)",
    ),
    Contestant(
        "stock, CachedDataset",
        False,
        _tensors(TorchDataLoader, fl.CachedDataset, workers=False),
        "torch's DataLoader, but rows gathered natively, a batch at a time",
    ),
    Contestant(
        "stock, AsyncPrefetchDataset",
        False,
        _tensors(TorchDataLoader, _prefetched, workers=False),
        "torch's DataLoader and TensorDataset, with threads that load rows ahead",
    ),
    Contestant(
        "foreload, baseline",
        False,
        _tensors(fl.DataLoader, _plain, workers=False),
        "foreload's DataLoader and TensorDataset, num_workers=0",
    ),
    Contestant(
        "foreload, workers",
        False,
        _tensors(fl.DataLoader, _plain, workers=True),
        "the same with workers (--num-workers of them)",
    ),
    Contestant(
        "foreload, CachedDataset",
        False,
        _tensors(fl.DataLoader, fl.CachedDataset),
        "rows in shared memory, gathered natively; nothing but defaults",
    ),
    Contestant(
        "foreload, AsyncPrefetchDataset",
        False,
        _tensors(fl.DataLoader, _prefetched, workers=False),
        "TensorDataset, with threads that load rows ahead",
    ),
    Contestant(
        "foreload, pinned + device",
        False,
        _tensors(fl.DataLoader, fl.CachedDataset, on_device=True),
        "CachedDataset, page-locked batches, copied to the GPU ahead of the loop",
        needs_device=True,
    ),
    Contestant(
        "bare index_select", False, _bare, "rows copied to one buffer, and nothing else: a limit, not a loader"
    ),
]
