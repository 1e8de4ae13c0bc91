"""Torch's ``RandomSampler`` asks in the end once more how long its dataset is: one that has grown yields more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, RandomSampler

import foreload as fl


class Growing(Dataset[int]):
    def __init__(self, size: int) -> None:
        self.items = list(range(size))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> int:
        return self.items[index]


def _samplers(dataset: Growing) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(4)
    return {
        "shuffle": None,
        "a generator": RandomSampler(dataset, generator=generator),
        "replacement": RandomSampler(dataset, replacement=True),
        "replacement and a generator": RandomSampler(dataset, replacement=True, generator=generator),
        "a number": RandomSampler(dataset, num_samples=35),
    }


def _epochs(kind: Any, size: int, change: int, name: str, **options: Any) -> list[Any]:
    torch.manual_seed(3)
    dataset = Growing(size)
    order = _samplers(dataset)[name]
    loader = kind(dataset, batch_size=4, **({"shuffle": True} if order is None else {"sampler": order}), **options)
    found: list[Any] = []
    for _ in range(2):
        for number, batch in enumerate(loader):
            found.append(batch.tolist())
            if number == 1:
                dataset.items += range(100, 100 + change)
    return [*found, torch.rand(1).item()]


@pytest.mark.parametrize("change", [0, 1, 5, 30, 73])
@pytest.mark.parametrize("size", [10, 32, 33])
@pytest.mark.parametrize("name", _samplers(Growing(2)))
def test_what_has_been_added_counts_as_in_torch(name: str, size: int, change: int) -> None:
    assert _epochs(fl.DataLoader, size, change, name) == _epochs(TorchDataLoader, size, change, name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", _samplers(Growing(2)))
def test_so_it_is_with_worker_processes(name: str, workers: int, drop_last: bool) -> None:
    options = {"num_workers": workers, "drop_last": drop_last}
    stock = _epochs(TorchDataLoader, 60, 9, name, **options)
    assert _epochs(fl.DataLoader, 60, 9, name, **options) == stock
