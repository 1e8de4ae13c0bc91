"""Datasets and samplers that change between the epochs of a loader with a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, RandomSampler, WeightedRandomSampler

import foreload as fl
from tests.cache.varied import SIZE, Skipping, Varied, block, listed, plain, sample_of


@pytest.mark.sampled(1)
@pytest.mark.parametrize("budget", [30_000, 80_000, 150_000])
def test_predictions_hold_where_sizes_differ_once_they_are_known(budget: int) -> None:
    dataset = Varied()
    generator = torch.Generator().manual_seed(0)
    sampler = RandomSampler(dataset, replacement=True, generator=generator)
    loader = fl.DataLoader(dataset, batch_size=None, num_workers=0, sampler=sampler, cache=budget)
    sizes = [block(sample_of(index)) for index in range(SIZE)]
    before = {"hits": 0, "refused": 0}
    for _ in range(12):
        known = loader.sample_cache is not None and loader.sample_cache.store.sizes().tolist() == sizes
        list(loader)
        assert loader.sample_cache is not None
        assert loader.sample_cache.plan is not None
        counts = loader.stats()["cache"]
        hits, refused = counts["hits"] - before["hits"], counts["refused"] - before["refused"]
        before = counts
        if known:  # then nothing goes wrong but that memory is in pieces
            planned = loader.sample_cache.plan.hits.sum()
            assert planned - refused <= hits <= planned
    assert known


# What may change, fail, or be left.


@pytest.mark.parametrize("workers", [0, 2])
def test_sizes_may_change_between_epochs(workers: int) -> None:
    dataset = Varied()
    loader = fl.DataLoader(
        dataset,
        batch_size=5,
        collate_fn=listed,
        num_workers=workers,
        workers="threads",
        cache=60_000,
        shuffle=True,
        seed=1,
    )
    for generation in range(6):
        dataset.generation = generation
        for batch in loader:
            for sample in batch:
                index = int(sample["name"].split()[1])
                # What is cached may be of any time before, but is whole.
                assert any(plain(sample) == plain(sample_of(index, past)) for past in range(generation + 1))
        counts = loader.stats()["cache"]
        assert counts["used"] <= counts["peak"] <= counts["room"]


def test_a_dataset_may_grow_and_shrink() -> None:
    class Growing(Dataset[int]):
        size = 20

        def __len__(self) -> int:
            return self.size

        def __getitem__(self, index: int) -> int:
            return index

    for make in (lambda d: None, lambda d: RandomSampler(d, replacement=True)):
        dataset = Growing()
        loader = fl.DataLoader(
            dataset, batch_size=4, num_workers=2, workers="threads", cache="1MiB", sampler=make(dataset)
        )
        for size in (20, 50, 10, 0 if loader.sampler is None else 30):
            dataset.size = size
            got = torch.cat(list(loader)).tolist()
            assert len(got) == size
            assert all(0 <= index < size for index in got)


def test_a_sampler_may_change_its_length() -> None:
    dataset = Varied()
    sampler = WeightedRandomSampler([1.0] * SIZE, 20)
    loader = fl.DataLoader(dataset, batch_size=None, num_workers=0, cache="1MiB", sampler=sampler)
    for number in (20, 500, 3):
        sampler.num_samples = number
        for _ in range(2):
            assert sum(1 for _ in loader) == number


def test_a_sampler_that_asks_for_too_much_fails_as_without_a_cache() -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(10))

    class Listed(Dataset[Any]):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            return list(range(10))[index]

    for kind in (dataset, Listed()):
        for sampler in (WeightedRandomSampler([1.0] * 100, 50), [3, 20], [-1, -20]):
            failures = []
            for cache in (None, "1MiB"):
                torch.manual_seed(0)
                try:
                    list(fl.DataLoader(kind, num_workers=0, sampler=sampler, cache=cache))
                except IndexError as error:
                    failures.append(str(error))
            assert len(failures) == 2
            assert failures[0] == failures[1]


def test_a_dataset_that_draws_from_the_global_generator_leaves_the_order_torchs() -> None:
    class Cropped(Dataset[int]):
        def __len__(self) -> int:
            return SIZE

        def __getitem__(self, index: int) -> int:
            torch.rand(3)
            return index

    orders = []
    for make, arguments in ((TorchDataLoader, {}), (fl.DataLoader, {"cache": "1MiB"})):
        torch.manual_seed(0)
        dataset = Cropped()
        loader = make(
            dataset, batch_size=8, num_workers=0, sampler=RandomSampler(dataset, replacement=True), **arguments
        )
        orders.append(torch.cat(list(loader)).tolist())
    assert orders[0] == orders[1]


@pytest.mark.parametrize("count", [0, 2])
def test_an_own_sampler_is_asked_as_often_as_by_torch(count: int) -> None:
    samplers = Skipping(), Skipping()
    stock = TorchDataLoader(Varied(), batch_size=None, sampler=samplers[0], num_workers=count)
    loader = fl.DataLoader(
        Varied(), batch_size=None, sampler=samplers[1], num_workers=count, workers="threads", cache="1MiB"
    )
    for _ in range(3):
        for batches in (stock, loader):
            for _ in batches:
                pass
        assert samplers[0].asked == samplers[1].asked


@pytest.mark.parametrize(
    "indices",
    [
        [np.array([1, 2]), np.array([3])],
        [torch.tensor([1, 2])],
        list(torch.arange(10).split(3)),
        [3, torch.tensor([3]), 3],
    ],
    ids=["arrays", "tensors", "split", "one"],
)
def test_indices_that_are_arrays_are_the_datasets_affair(indices: Any) -> None:
    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: Any) -> torch.Tensor:
            return torch.arange(20).view(10, 2)[index]

    loader = fl.DataLoader(Rows(), batch_size=None, sampler=indices, num_workers=0, cache="1MiB")
    for _ in range(2):
        assert [plain(rows) for rows in loader] == [plain(Rows()[index]) for index in indices]
