"""Methods that a subclass replaces are used in every way of loading, with a cache and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

import foreload as fl
from foreload.dali.samples import EncodedSamples
from foreload.datasets.tensors import tensor_assembly
from foreload.options import Keep
from foreload.protocol import NativeBatches, TwoStage
from tests.datasets.compared import same
from tests.datasets.every_dataset import COUNT, DATASETS, batches_of, image_bytes, write

BATCH = 4


pytestmark = pytest.mark.filterwarnings("ignore:the cache keeps samples as")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write(folder)
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


def other_target(prepared: Any) -> Any:
    """Of images, whose pixels may be there in several forms, another target; of others, something else."""
    return (
        (prepared[0], other(prepared[1]))
        if isinstance(prepared, tuple) and len(prepared) == 2
        else other(prepared)
    )


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


@pytest.mark.sampled(15)
@pytest.mark.parametrize(("name", "method"), CASES)
def test_batches_are_of_the_samples_of_the_subclass(folder: Path, name: str, method: str) -> None:
    kind, make = DATASETS[name]
    dataset = make(replaced(kind, method), folder)
    samples = [dataset[index] for index in range(COUNT)]
    assert not same(samples, [make(kind, folder)[index] for index in range(COUNT)])
    for way, order, loader in ways(dataset):
        assert same(list(loader), batches_of(samples, order, BATCH)), way


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", DATASETS)
def test_batches_of_a_subclass_that_loads_whole_batches_are_its_own(folder: Path, name: str) -> None:
    kind, make = DATASETS[name]

    def load(self: Any, indices: Any) -> Any:
        return [other(self[index]) for index in indices]

    dataset = make(type("Whole", (kind,), {"__getitems__": load}), folder)
    samples = [other(dataset[index]) for index in range(COUNT)]
    for way, order, loader in ways(dataset):
        if way != "stream":  # which loads samples in the order of storage
            assert same(list(loader), batches_of(samples, order, BATCH)), way


@pytest.mark.parametrize("name", DATASETS)
def test_a_method_replaced_on_the_object_shows_as_well(folder: Path, name: str) -> None:
    kind, make = DATASETS[name]
    dataset = make(kind, folder)
    own = dataset.finish_sample
    dataset.finish_sample = lambda index, prepared: other(own(index, prepared))
    samples = [dataset[index] for index in range(COUNT)]
    for way, order, loader in ways(dataset):
        assert same(list(loader), batches_of(samples, order, BATCH)), way


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
        assert same(list(loader), batches_of(samples, order, BATCH)), way


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
        assert same(list(loader), batches_of(samples, order, BATCH)), way


def test_dali_gets_what_a_subclass_makes_itself(folder: Path) -> None:
    dataset = fl.ImageDataset(folder / "images", transform=fl.transforms.val(32))
    (file, target) = EncodedSamples(dataset)[3].fields
    assert (file.tobytes(), int(target)) == (image_bytes(3), 0)
    own = replaced(fl.ImageDataset, "__getitem__")(folder / "images", transform=fl.transforms.val(32))
    (image, target) = EncodedSamples(own)[3].fields
    assert (image == dataset[3][0].numpy() + 1).all()
    assert int(target) == 1
