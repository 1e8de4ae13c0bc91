"""What a subclass replaces shows in every way of loading, with a cache and without."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset, default_collate

import foreload as fl
from foreload.datasets.tensors import tensor_assembly
from foreload.options import Keep
from foreload.protocol import NativeBatches, TwoStage

COUNT, BATCH = 12, 4


def image_bytes(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "images" / "cat").mkdir(parents=True)
    (folder / "files" / "cat").mkdir(parents=True)
    with tarfile.open(folder / "data.tar", "w") as shard:
        for number in range(COUNT):
            (folder / "images" / "cat" / f"{number:02}.jpg").write_bytes(image_bytes(number))
            (folder / "files" / "cat" / f"{number:02}.bin").write_bytes(bytes([number] * 8))
            for name, content in ((f"{number:02}.jpg", image_bytes(number)), (f"{number:02}.cls", b"%d" % number)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
    pq.write_table(pa.table({"a": np.arange(COUNT), "b": np.arange(COUNT) / 2}), folder / "data.parquet")
    with h5py.File(folder / "data.h5", "w") as file:
        file["data"], file["target"] = np.arange(2 * COUNT).reshape(COUNT, 2) / 2, np.arange(COUNT)
    (folder / "data.txt").write_text("".join(f"word {number} and more\n" for number in range(COUNT)))
    return folder


def other(value: Any) -> Any:
    """Something else of the same kind."""
    if isinstance(value, (torch.Tensor, np.ndarray, int, float)):
        return value + 1
    if isinstance(value, (str, bytes)):
        return value[::-1]
    if isinstance(value, dict):
        return {key: other(part) for key, part in value.items()}
    return type(value)(map(other, value)) if isinstance(value, (tuple, list)) else value


def next_image(_: bytes) -> bytes:
    return image_bytes(100)


def tensor_of(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((8, 8))))


def number_of(sample: dict[str, Any]) -> int:
    return int(sample["cls"])


def other_target(prepared: Any) -> Any:
    """Of images, whose pixels may be there in several forms, another target; of others, something else."""
    return (
        (prepared[0], other(prepared[1]))
        if isinstance(prepared, tuple) and len(prepared) == 2
        else other(prepared)
    )


Make = Callable[[type, Path], Any]
DATASETS: dict[str, tuple[type, Make]] = {
    "images": (fl.ImageDataset, lambda kind, folder: kind(folder / "images", transform=fl.transforms.val(32))),
    "images, one kept": (
        fl.ImageDataset,
        lambda kind, folder: kind(folder / "images", transform=fl.transforms.val(32), cache_size=0),
    ),
    "images, Python": (fl.ImageDataset, lambda kind, folder: kind(folder / "images", transform=tensor_of)),
    "images in shards": (
        fl.ImageDataset,
        lambda kind, folder: kind(folder / "data.tar", transform=fl.transforms.val(32)),
    ),
    "images, ready-made": (
        fl.HighPerformanceDataset,
        lambda kind, folder: kind(folder / "images", transform=fl.transforms.val(32)),
    ),
    "files": (fl.FileDataset, lambda kind, folder: kind(folder / "files")),
    "files, transformed": (
        fl.FileDataset,
        lambda kind, folder: kind(folder / "files", transform=torch.Tensor.float),
    ),
    "files, kept": (
        fl.FileDataset,
        lambda kind, folder: kind(folder / "files", loading_mode=fl.LoadingMode.EAGER),
    ),
    "tar": (fl.TarDataset, lambda kind, folder: kind(folder / "data.tar", number_of)),
    "parquet": (fl.ParquetDataset, lambda kind, folder: kind(folder / "data.parquet")),
    "hdf5": (fl.HDF5Dataset, lambda kind, folder: kind(folder / "data.h5", target_name="target")),
    "text": (fl.TextDataset, lambda kind, folder: kind(folder / "data.txt")),
    "text, kept": (
        fl.TextDataset,
        lambda kind, folder: kind(folder / "data.txt", loading_mode=fl.LoadingMode.CACHED),
    ),
    "any": (fl.MemoryEfficientDataset, lambda kind, folder: kind(folder / "files")),
    "any, images": (
        fl.MemoryEfficientDataset,
        lambda kind, folder: kind(folder / "images", transform=fl.transforms.val(32)),
    ),
}
METHODS = ("__getitem__", "read", "read_encoded", "prepare_sample", "finish_sample")
CASES = [
    (name, method)
    for name, (kind, _) in DATASETS.items()
    for method in METHODS
    if hasattr(kind, method) and not (name.startswith("any, images") and method in ("read", "prepare_sample"))
]


def replaced(kind: type, method: str) -> type:
    """A subclass with another result of a method."""
    own = getattr(kind, method)
    change = {"read_encoded": next_image, "prepare_sample": other_target}.get(method, other)

    def changed(self: Any, *arguments: Any, **options: Any) -> Any:
        return change(own(self, *arguments, **options))

    return type("Replaced", (kind,), {method: changed})


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


def batches_of(samples: list[Any], order: list[int]) -> list[Any]:
    parts = [order[begin : begin + BATCH] for begin in range(0, len(order), BATCH)]
    return [default_collate([samples[index] for index in part]) for part in parts]


def ways(dataset: Any) -> Iterator[tuple[str, list[int], Any]]:
    """Ways of loading a dataset: a name, the order of samples, and the batches."""
    order = list(range(COUNT))
    yield "stock", order, DataLoader(dataset, batch_size=BATCH)
    yield "here", order, fl.DataLoader(dataset, batch_size=BATCH)
    yield "threads", order, fl.DataLoader(dataset, batch_size=BATCH, num_workers=2, workers="threads")
    cached = fl.DataLoader(dataset, batch_size=BATCH, cache="1MiB")
    yield "cache", order, cached
    yield "cache, second epoch", order, cached
    sampler = RandomSampler(dataset, True, 40, torch.Generator().manual_seed(3))
    drawn = list(RandomSampler(dataset, True, 40, torch.Generator().manual_seed(3)))
    # Less than all of the samples need: the cache plans, for which it loads one to know its size.
    yield "planned cache", drawn, fl.DataLoader(dataset, batch_size=BATCH, sampler=sampler, cache="1KiB")
    yield "stream", order, fl.DataLoader(fl.Stream(dataset, shuffle=False), batch_size=BATCH)


@pytest.mark.parametrize(("name", "method"), CASES)
def test_batches_are_of_the_samples_of_the_subclass(folder: Path, name: str, method: str) -> None:
    kind, make = DATASETS[name]
    dataset = make(replaced(kind, method), folder)
    samples = [dataset[index] for index in range(COUNT)]
    assert not same(samples, [make(kind, folder)[index] for index in range(COUNT)])
    for way, order, loader in ways(dataset):
        assert same(list(loader), batches_of(samples, order)), way


@pytest.mark.parametrize("name", DATASETS)
def test_a_method_replaced_on_the_object_shows_as_well(folder: Path, name: str) -> None:
    kind, make = DATASETS[name]
    dataset = make(kind, folder)
    own = dataset.finish_sample
    dataset.finish_sample = lambda index, prepared: other(own(index, prepared))
    samples = [dataset[index] for index in range(COUNT)]
    for way, order, loader in ways(dataset):
        assert same(list(loader), batches_of(samples, order)), way


class Records(Dataset[Any], TwoStage, NativeBatches):
    """A user's own class with hooks."""

    def __init__(self) -> None:
        self.rows = TensorDataset(torch.arange(COUNT * 2.0).view(COUNT, 2))

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.finish_sample(index, self.prepare_sample(index))

    def prepare_sample(self, index: int, keep: Keep = "auto") -> Any:
        return self.rows[index]

    def finish_sample(self, index: int, prepared: Any) -> Any:
        return prepared

    def batch_assembly(self, spec: Any, key: Any, buffers: Any) -> Any:
        return None if spec.cache is not None else tensor_assembly(self.rows, spec, buffers)


@pytest.mark.parametrize("method", ["__getitem__", "prepare_sample", "finish_sample"])
def test_a_subclass_of_a_class_with_hooks(method: str) -> None:
    dataset = replaced(Records, method)()
    samples = [dataset[index] for index in range(COUNT)]
    for way, order, loader in ways(dataset):
        assert same(list(loader), batches_of(samples, order)), way


class Items(Dataset[int]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return 10 * index


WRAPPERS: dict[str, tuple[type, Callable[[type], Any]]] = {
    "rows": (fl.CachedDataset, lambda kind: kind(torch.arange(COUNT))),
    "prefetch": (fl.AsyncPrefetchDataset, lambda kind: kind(Items())),
    "prefetch of rows": (fl.AsyncPrefetchDataset, lambda kind: kind(fl.CachedDataset(torch.arange(COUNT)))),
    "mixture": (fl.Mixture, lambda kind: kind({"a": fl.CachedDataset(torch.arange(COUNT))})),
    "images in memory": (
        fl.ImageArrayDataset,
        lambda kind: kind(torch.arange(COUNT * 48, dtype=torch.uint8).view(COUNT, 3, 4, 4)),
    ),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_items_of_a_subclass_are_those_of_batches(name: str) -> None:
    kind, make = WRAPPERS[name]
    dataset = make(replaced(kind, "__getitem__"))
    samples = [dataset[index] for index in range(COUNT)]
    assert not same(samples, [make(kind)[index] for index in range(COUNT)])
    for way, order, loader in ways(dataset):
        assert same(list(loader), batches_of(samples, order)), way
