"""Derived classes and scripts that make torch's own iterators over a foreload loader."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as WithProcesses
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter as Alone

import foreload


class _Squares(Dataset[int]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index * index


class _Own:
    """Chooses among torch's iterators as torch does, and as classes that change one of them do."""

    num_workers: int

    def _get_iterator(self) -> Any:
        return Alone(self) if self.num_workers == 0 else WithProcesses(self)  # type: ignore[arg-type]


class _OwnOfTorchs(_Own, TorchDataLoader[int]): ...


class _OwnOfOurs(_Own, foreload.DataLoader[int]): ...


def _batches(iterator: Any) -> list[list[int]]:
    return [batch.tolist() for batch in iterator]


@pytest.mark.parametrize(
    "more", [{}, {"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "prefetch_factor": 3}]
)
def test_a_derived_class_may_make_torchs_iterators(more: dict[str, int]) -> None:
    kinds: list[Any] = [_OwnOfTorchs, _OwnOfOurs]
    made = []
    for kind in kinds:
        torch.manual_seed(0)
        loader = kind(_Squares(), batch_size=4, shuffle=True, **more)
        made.append([_batches(loader._get_iterator()) for _ in range(2)])
    assert made[0] == made[1]


def test_torchs_iterator_without_workers_takes_a_loader_with_defaults() -> None:
    loader = foreload.DataLoader(_Squares(), batch_size=4)
    assert _batches(Alone(loader)) == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]


def test_torchs_iterator_with_processes_is_given_what_the_loader_was() -> None:
    loader = foreload.DataLoader(_Squares(), batch_size=4, prefetch_factor=3)
    if loader.num_workers:
        assert WithProcesses(loader)._prefetch_factor == 3
    assert foreload.DataLoader(_Squares()).prefetch_factor is None
