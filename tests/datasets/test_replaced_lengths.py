"""Subclasses of another length: some of the samples, in an order of their own, or all of them twice."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import foreload as fl
from tests.datasets.compared import same
from tests.datasets.every_dataset import COUNT, DATASETS, batches_of, write

pytestmark = pytest.mark.filterwarnings("ignore:the cache keeps samples as")

BATCH = 4
CHOSEN = [9, 2, 11, 0, 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write(folder)
    return folder


Make = Callable[[type, Path], Any]
IN_MEMORY: dict[str, tuple[type, Make]] = {
    "tensors": (fl.CachedDataset, lambda kind, _: kind(torch.arange(COUNT * 2.0).view(COUNT, 2))),
    "image arrays": (
        fl.ImageArrayDataset,
        lambda kind, _: kind(np.arange(COUNT * 48, dtype=np.uint8).reshape(COUNT, 4, 4, 3)),
    ),
    "mixture": (fl.Mixture, lambda kind, _: kind([list(range(5)), list(range(5, COUNT))])),
    "mixture of tensors": (fl.Mixture, lambda kind, _: kind([fl.CachedDataset(torch.arange(COUNT))])),
    "ahead": (fl.AsyncPrefetchDataset, lambda kind, _: kind(list(range(COUNT)))),
}
EVERY = {**DATASETS, **IN_MEMORY}


def chosen(kind: Any) -> type:
    class Chosen(kind):  # type: ignore[misc]
        def __len__(self) -> int:
            return len(CHOSEN)

        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(CHOSEN[index])

    return Chosen


def first(kind: Any) -> type:
    class First(kind):  # type: ignore[misc]
        def __len__(self) -> int:
            return 5

    return First


def twice(kind: Any) -> type:
    class Twice(kind):  # type: ignore[misc]
        def __len__(self) -> int:
            return 2 * COUNT

        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index % COUNT)

    return Twice


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("change", "order"),
    [(chosen, CHOSEN), (first, [*range(5)]), (twice, [*range(COUNT), *range(COUNT)])],
    ids=["chosen", "first", "twice"],
)
@pytest.mark.parametrize("name", EVERY)
def test_a_subclass_may_have_another_length(
    name: str, change: Callable[[type], type], order: list[int], folder: Path
) -> None:
    kind, make = EVERY[name]
    whole, dataset = make(kind, folder), make(change(kind), folder)
    samples = [whole[index] for index in range(COUNT)]
    expected = batches_of(samples, order, BATCH)
    spill = fl.Cache("1KiB", spill=Path(tempfile.mkdtemp(dir=folder)) / "spilled")
    loaders: dict[str, Any] = {
        "stock": DataLoader(dataset, batch_size=BATCH),
        "here": fl.DataLoader(dataset, batch_size=BATCH, num_workers=0),
        "threads": fl.DataLoader(dataset, batch_size=BATCH, num_workers=2, workers="threads"),
        "cache": fl.DataLoader(dataset, batch_size=BATCH, num_workers=0, cache="1MiB"),
        "spill": fl.DataLoader(dataset, batch_size=BATCH, num_workers=0, cache=spill),
        "stream": fl.DataLoader(fl.Stream(dataset, shuffle=False), batch_size=BATCH, num_workers=0),
    }
    for way, loader in loaders.items():
        for _ in range(2):
            assert same(list(loader), expected), way
    # What a process is sent names all of the files, whatever the length.
    dataset.__getstate__()


@pytest.mark.parametrize("mode", list(fl.LoadingMode))
@pytest.mark.parametrize("change", [chosen, first, twice])
def test_images_are_kept_whatever_the_length(
    mode: fl.LoadingMode, change: Callable[[type], type], folder: Path
) -> None:
    options: Any = {"transform": fl.transforms.val(32), "loading_mode": mode}
    whole = fl.ImageDataset(folder / "images", **options)
    dataset: Any = change(fl.ImageDataset)(folder / "images", **options)
    order = {"chosen": CHOSEN, "first": [*range(5)], "twice": [*range(COUNT)] * 2}[change.__name__]
    for _ in range(2):
        assert all(torch.equal(dataset[place][0], whole[index][0]) for place, index in enumerate(order))


def test_packed_rows_may_be_chosen() -> None:
    packed = fl.packing.pack_sequences([[number] * 4 for number in range(COUNT)], 4)
    dataset = chosen(fl.packing.PackedDataset)(packed.input_ids, packed._pieces, packed.documents)
    assert len(dataset.document_ids) == COUNT
    for loader in (DataLoader, fl.DataLoader):
        (batch,) = loader(dataset, batch_size=len(CHOSEN))
        assert torch.equal(batch["input_ids"], packed.input_ids[CHOSEN])


class Counted(fl.FileDataset):
    def __getitems__(self, indices: Any) -> Any:
        return [(self[index], index) for index in indices]


def test_the_batches_of_a_subclass_are_asked_for(folder: Path) -> None:
    dataset = Counted(folder / "files")
    for loader in (DataLoader, fl.DataLoader):
        for number, (_, indices) in enumerate(loader(dataset, batch_size=BATCH)):
            assert indices.tolist() == [*range(number * BATCH, (number + 1) * BATCH)]
