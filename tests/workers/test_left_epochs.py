"""Persistent workers after an epoch that was left early, and loaders that their own workers refer to."""

from __future__ import annotations

import gc
import multiprocessing
import weakref
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import default_collate

import foreload as fl


class Drawing:
    """Samples that draw, and count how many their copy of the dataset has loaded."""

    def __init__(self) -> None:
        self.loaded = 0

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        self.loaded += 1
        return index, torch.rand(()), self.loaded


def loaded(batches: Any) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in batches]


@pytest.mark.parametrize("steps", [1, 3])
def test_the_next_epoch_is_torchs(steps: int) -> None:
    seen = []
    for loader in (TorchDataLoader, fl.DataLoader):
        torch.manual_seed(2)
        made: Any = loader(Drawing(), 2, shuffle=True, num_workers=2, persistent_workers=True)
        seen.append([loaded(islice(iter(made), steps)), loaded(made), loaded(made)])
        del made
    assert seen[0] == seen[1]


class OwnCollate(fl.DataLoader[Any]):
    """Refers to itself, as a subclass with a collate function of its own does."""

    def __init__(self, dataset: Any, **options: Any) -> None:
        super().__init__(dataset, collate_fn=self.put_together, **options)

    def put_together(self, samples: list[Any]) -> Any:
        return default_collate(samples)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_loader_that_its_workers_refer_to_ends_them(is_over: bool) -> None:
    before = set(multiprocessing.active_children())
    loader = OwnCollate(Drawing(), num_workers=2, persistent_workers=True, batch_size=2, workers="processes")
    batches = iter(loader)
    for _ in islice(batches, 100 if is_over else 1):
        pass
    assert set(multiprocessing.active_children()) > before
    there = weakref.ref(loader)
    del loader, batches
    gc.collect()
    assert there() is None
    assert set(multiprocessing.active_children()) <= before
