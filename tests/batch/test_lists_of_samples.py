"""Code of a user's collates batches that were assembled as a whole as it would the same samples in a list."""

from __future__ import annotations

import copy
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Subset, default_collate
from torch.utils.data._utils import collate as torch_collate

import foreload as fl
from foreload.batch.collated import Collated

Pair = namedtuple("Pair", ["x", "y"])
ROWS = torch.arange(40.0).reshape(10, 4)

CONTAINERS: dict[str, Callable[[int], Any]] = {
    "tensor": lambda i: ROWS[i],
    "tuple": lambda i: (ROWS[i], i),
    "list": lambda i: [ROWS[i], torch.tensor(i)],
    "dict": lambda i: {"x": ROWS[i], "y": torch.tensor(i)},
    "namedtuple": lambda i: Pair(ROWS[i], torch.tensor(i)),
}


class Samples(Dataset[Any]):
    """Ordinary samples, made anew each time."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def fields(sample: Any) -> list[Any]:
    return (
        [sample]
        if isinstance(sample, torch.Tensor)
        else list(sample.values() if isinstance(sample, dict) else sample)
    )


def sort(batch: Any) -> Any:
    batch.sort(key=lambda sample: -float(fields(sample)[0][0]))
    return default_collate(batch)


def leave_out(batch: Any) -> Any:
    del batch[1]
    batch.append(batch[0])
    batch.pop(0)
    batch.reverse()
    return default_collate(batch), len(batch)


def replace(batch: Any) -> Any:
    batch[0] = batch[2]
    return default_collate(batch)


def change(batch: Any) -> Any:
    for sample in batch:
        if isinstance(sample, dict):
            sample["y"] = sample["y"] + 1000
            sample["z"] = sample.pop("x")
        elif isinstance(sample, list):
            sample[1] = sample[1] + 1000
            sample.append(sample[0])
    return [fields(sample) for sample in batch], default_collate(batch)


def change_one(batch: Any) -> Any:
    if isinstance(batch[2], (dict, list)):
        batch[2]["y" if isinstance(batch[2], dict) else 1] = torch.tensor(-1)
    return default_collate(batch)


def in_place(batch: Any) -> Any:
    for sample in batch:
        fields(sample)[0].mul_(2)
    return default_collate(batch)


def stack(batch: Any) -> Any:
    return torch.stack(batch if isinstance(batch[0], torch.Tensor) else [fields(sample)[0] for sample in batch])


def twice(batch: Any) -> Any:
    return default_collate(batch[:2]), default_collate(batch), [*batch]


COLLATE = [sort, leave_out, replace, change, change_one, in_place, stack, twice]


def plain(value: Any) -> Any:
    """Values to compare, with the kinds of their containers."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        kind = "pair" if hasattr(value, "_fields") else "tuple" if isinstance(value, tuple) else "list"
        return kind, [plain(part) for part in value]
    return value


def batches(loader: Any) -> list[Any]:
    return [plain(batch) for batch in loader]


@pytest.mark.parametrize("collate", COLLATE, ids=lambda function: function.__name__)
@pytest.mark.parametrize("kind", CONTAINERS)
def test_collate_functions_see_what_they_see_in_torch(kind: str, collate: Any) -> None:
    samples = Samples(CONTAINERS[kind])
    options: Any = {"batch_size": 5, "collate_fn": collate, "num_workers": 0}
    expected = batches(TorchDataLoader(Samples(lambda i: _cloned(samples[i])), **options))
    cached = fl.CachedDataset(samples)
    assert type(cached.__getitems__([0, 1])) is list
    for make in (fl.DataLoader, TorchDataLoader):
        for _ in range(2):  # nothing that was changed is kept
            assert batches(make(cached, **options)) == expected


def _cloned(sample: Any) -> Any:
    if isinstance(sample, torch.Tensor):
        return sample.clone()
    if isinstance(sample, dict):
        return {name: _cloned(part) for name, part in sample.items()}
    if isinstance(sample, (list, tuple)):
        parts = [_cloned(part) for part in sample]
        return type(sample)(*parts) if hasattr(sample, "_fields") else type(sample)(parts)
    return sample


class Changed(Dataset[Any]):
    """Changes the samples of another dataset, a list of them at a time."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> Any:
        samples = self.dataset.__getitems__(indices)
        for sample in samples:
            sample["y"] = sample["y"] + 1000
        return samples


@pytest.mark.parametrize("collate", [None, list])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_mixtures_of_such_batches_have_the_same_samples(kind: str, collate: Any) -> None:
    samples = Samples(CONTAINERS[kind])
    options: Any = {"batch_size": 5, "collate_fn": collate, "num_workers": 0, "shuffle": True, "seed": 1}
    expected = batches(fl.DataLoader(fl.Mixture([samples, samples]), **options))
    cached = [fl.CachedDataset(samples), fl.CachedDataset(samples)]
    assert batches(fl.DataLoader(fl.Mixture(cached), **options)) == expected


def test_wrappers_may_change_the_samples_of_such_batches() -> None:
    cached = fl.CachedDataset(Samples(CONTAINERS["dict"]))
    options: Any = {"batch_size": 4, "num_workers": 0}
    for make in (fl.DataLoader, TorchDataLoader):
        for dataset in (Changed(cached), fl.Mixture([Changed(cached), Changed(cached)])):
            seen = torch.cat([batch["y"] for batch in make(dataset, **options)])
            assert seen.tolist() == [1000 + index for index in range(10)] * (len(dataset) // 10)


def ask_kind(batch: Any) -> Any:
    return isinstance(batch, list), len(batch), default_collate(batch)


@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2, "workers": "threads"}], ids=str)
@pytest.mark.parametrize("kind", ["cached", "array", "images", "text", "hdf5"])
def test_collate_functions_get_a_list(kind: str, workers: Any, tmp_path: Path) -> None:
    dataset = _dataset(kind, tmp_path)
    expected = batches(TorchDataLoader(dataset, batch_size=2))
    stock = {"num_workers": workers["num_workers"]}
    for part in (dataset, Subset(dataset, range(4)), Subset(Subset(dataset, range(4)), range(4))):
        for loader in (
            fl.DataLoader(part, batch_size=2, collate_fn=ask_kind, **workers),
            TorchDataLoader(part, batch_size=2, collate_fn=ask_kind, **stock),
        ):
            given: Any = list(loader)
            assert [(is_list, count) for is_list, count, _ in given] == [(True, 2)] * 2
            assert [plain(batch) for *_, batch in given] == expected


def _dataset(kind: str, folder: Path) -> Any:
    rows = np.arange(4 * 8 * 8 * 3, dtype=np.uint8).reshape(4, 8, 8, 3)
    if kind == "cached":
        return fl.CachedDataset(torch.utils.data.Subset(Samples(CONTAINERS["dict"]), range(4)))
    if kind == "array":
        return fl.ImageArrayDataset(rows, np.arange(4), fl.transforms.val_small(8))
    if kind == "images":
        (folder / "a").mkdir(exist_ok=True)
        for number, row in enumerate(rows):
            Image.fromarray(row).save(folder / f"a/{number}.png")
        return fl.ImageDataset(folder, transform=fl.transforms.val(8))
    if kind == "text":
        (folder / "lines.txt").write_text("a b c\nd\ne f\ng\n")
        return fl.TextDataset(folder / "lines.txt", padding=True)
    with h5py.File(folder / "rows.h5", "w") as file:
        file["data"] = rows
    return fl.HDF5Dataset(folder / "rows.h5")


def test_default_collate_returns_the_batch_that_was_assembled() -> None:
    batch = torch.zeros(3, 2)
    assert default_collate(Collated(batch, 3)) is batch
    pairs = {"x": batch}
    assert default_collate(Collated(pairs, 3)) is pairs
    assert default_collate(Collated(pairs, 3).listed())["x"] is not batch
    assert [sample["x"].shape for sample in Collated(pairs, 3)] == [(2,)] * 3


def change_shape(batch: Any) -> Any:
    for sample in batch:
        fields(sample)[0].unsqueeze_(0)
    return default_collate(batch)


def collate_twice(batch: Any) -> Any:
    one, two = default_collate(batch), default_collate(batch)
    fields(one)[0].add_(5)
    return one, two


def add_noise(batch: Any) -> Any:
    one = default_collate(list(batch))
    fields(one)[0].mul_(0.5)
    return one, default_collate(batch)


def keep(batch: Any) -> Any:
    return batch


def add_clean(batch: Any) -> Any:
    noisy = default_collate(batch)
    fields(noisy)[0].mul_(0.5)
    return noisy, batch


def by_tree(batch: Any) -> Any:
    return default_collate(tree_map(lambda value: value * 2, batch))


def deep(batch: Any) -> Any:
    return copy.deepcopy(batch), copy.copy(batch), batch + batch


@pytest.mark.parametrize(
    "collate", [change_shape, collate_twice, add_noise, keep, deep, add_clean, by_tree], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("kind", CONTAINERS)
def test_what_collate_functions_do_later_does_not_show_elsewhere(kind: str, collate: Any) -> None:
    samples = Samples(CONTAINERS[kind])
    expected = batches(TorchDataLoader(Samples(lambda i: _cloned(samples[i])), batch_size=5, collate_fn=collate))
    cached = fl.CachedDataset(samples)
    for loader in (
        fl.DataLoader(cached, batch_size=5, collate_fn=collate, num_workers=0),
        fl.DataLoader(cached, batch_size=5, collate_fn=collate, num_workers=1),
        TorchDataLoader(cached, batch_size=5, collate_fn=collate),
    ):
        assert batches(loader) == expected


def test_functions_for_types_of_the_users_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def total(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return sum(tensor.sum().item() for tensor in batch)

    def collate(batch: Any) -> Any:
        return torch_collate.collate(batch, collate_fn_map={torch.Tensor: total})

    samples = Samples(CONTAINERS["dict"])
    options: Any = {"batch_size": 5, "num_workers": 0}
    expected = batches(TorchDataLoader(samples, collate_fn=collate, **options))
    cached = fl.CachedDataset(samples)
    for make in (fl.DataLoader, TorchDataLoader):
        assert batches(make(cached, collate_fn=collate, **options)) == expected
    monkeypatch.setitem(torch_collate.default_collate_fn_map, torch.Tensor, total)
    for function in (None, default_collate, lambda batch: default_collate(batch)):
        for make in (fl.DataLoader, TorchDataLoader):
            assert batches(make(cached, collate_fn=function, **options)) == expected


@pytest.mark.parametrize("cache", [None, "1MiB"])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_transforms_get_ordinary_samples(kind: str, cache: Any) -> None:
    samples = Samples(CONTAINERS[kind])

    def double(sample: Any) -> Any:
        assert type(sample) is type(samples[0])
        return tree_map(lambda value: value * 2, sample)

    options: Any = {"batch_size": 5, "num_workers": 0, "transform": double, "cache": cache}
    expected = batches(fl.DataLoader(samples, **options))
    cached = fl.CachedDataset(samples)
    for dataset in (cached, Subset(cached, range(10)), fl.Mixture([cached]), fl.AsyncPrefetchDataset(cached)):
        for _ in range(2):
            assert batches(fl.DataLoader(dataset, **options)) == expected
