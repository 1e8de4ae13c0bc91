"""Any dataset with any order, cache, workers and transform gives the batches of its samples, in torch's order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler, Subset, WeightedRandomSampler

import foreload as fl
from tests.datasets.compared import same
from tests.datasets.every_dataset import COUNT, DATASETS, batches_of, write

pytestmark = pytest.mark.filterwarnings(
    "ignore:the cache keeps samples as", "ignore:sample .* is loaded each time"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write(folder)
    return folder


def doubled(sample: Any) -> Any:
    if isinstance(sample, (torch.Tensor, int, float)):
        return sample * 2
    if isinstance(sample, dict):
        return {name: doubled(part) for name, part in sample.items()}
    return type(sample)(map(doubled, sample)) if isinstance(sample, (tuple, list)) else sample


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


ORDERS: dict[str, Any] = {
    "sequential": lambda data: {},
    "shuffled": lambda data: {"shuffle": True, "generator": generator()},
    "replacement": lambda data: {"sampler": RandomSampler(data, True, 30, generator())},
    "weighted": lambda data: {
        "sampler": WeightedRandomSampler(range(1, len(data) + 1), 25, generator=generator())  # type: ignore[arg-type]
    },
    "again and again": lambda data: {"sampler": [0, 3, 3, 1, 0, 4, 1, 0, 3, 3]},
}
BUDGETS = st.sampled_from([200, 1000, 5000, 30_000, 1 << 20])  # for a sample or two, or all
CACHES: dict[str, st.SearchStrategy[Any]] = {
    "none": st.none(),
    "budget": BUDGETS,
    "policy": st.builds(fl.Cache, BUDGETS, policy=st.sampled_from(["opt", "lru", "fixed", "fifo", "lfu"])),
    "keep": st.builds(fl.Cache, BUDGETS, keep=st.sampled_from(["encoded", "decoded"])),
    "spill": BUDGETS,
}
WORKERS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
    "auto": {"num_workers": "auto"},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", DATASETS)
@settings(max_examples=8)  # of each of 75 cases
@given(st.data())
def test_batches_are_of_the_samples(folder: Path, name: str, cache: str, data: st.DataObject) -> None:
    kind, make = DATASETS[name]
    dataset = make(kind, folder)
    places = data.draw(st.none() | st.lists(st.integers(0, COUNT - 1), min_size=5, max_size=20), "subset")
    if places is not None:
        dataset = Subset(dataset, places)
    transform = data.draw(st.sampled_from([None, doubled]), "transform")
    order = ORDERS[data.draw(st.sampled_from(list(ORDERS)), "order")]
    size = data.draw(st.integers(1, 7), "batch size")
    # Processes take a thousand times as long to start.
    own = {**WORKERS[data.draw(st.sampled_from(["none", "none", "threads"]), "workers")], "batch_size": size}
    options = data.draw(CACHES[cache], "cache")
    if cache == "spill":
        options = fl.Cache(options, spill=tempfile.mkdtemp(dir=folder))
    loader = fl.DataLoader(dataset, transform=transform, cache=options, **own, **order(dataset))
    compare(loader, dataset, transform, order, size)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["processes", "auto"])
@pytest.mark.parametrize("name", DATASETS)
def test_processes_give_them_too(folder: Path, name: str, workers: str) -> None:
    kind, make = DATASETS[name]
    dataset = make(kind, folder)
    loader = fl.DataLoader(
        dataset, 4, transform=doubled, cache=1000, **WORKERS[workers], **ORDERS["replacement"](dataset)
    )
    compare(loader, dataset, doubled, ORDERS["replacement"], 4)


def compare(loader: Any, dataset: Any, transform: Any, order: Any, size: int) -> None:
    """Compare two epochs with those that torch's loader draws, made of single samples."""
    samples = [dataset[index] for index in range(len(dataset))]
    if transform is not None:
        samples = list(map(transform, samples))
    stock: Any = DataLoader(range(len(samples)), size, **order(range(len(samples))))  # type: ignore[arg-type]
    for _ in range(2):
        expected = batches_of(samples, [int(index) for batch in stock for index in batch], size)
        assert same(list(loader), expected)
    loader.close()


@pytest.mark.parametrize("kind", DATASETS)
def test_a_batch_without_samples_is_the_collate_functions_business_in_torchs_loader(
    folder: Path, kind: str
) -> None:
    made, make = DATASETS[kind]
    dataset = make(made, folder)
    batches = list(DataLoader(dataset, batch_sampler=[[0, 1], [], [2]], collate_fn=len))
    assert batches == [2, 0, 1]
