"""Indices of every kind, through subsets of every kind: what torch gives for them, or an error of its type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Subset, TensorDataset

import foreload as fl
from foreload.order.index import positions_of

ROWS = torch.arange(30.0).view(10, 3)


class Own(Dataset[Any]):
    """A dataset of the user's."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> Any:
        return ROWS[index]


DATASETS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: ROWS,
    "TensorDataset": lambda: TensorDataset(ROWS),
    "CachedDataset": lambda: fl.CachedDataset(ROWS),
    "list": lambda: list(ROWS),
    "array": lambda: ROWS.numpy(),
    "own": Own,
    "ahead": lambda: fl.AsyncPrefetchDataset(TensorDataset(ROWS)),
    "own ahead": lambda: fl.AsyncPrefetchDataset(Own()),
}
SUBSETS: dict[str, tuple[Any, ...]] = {
    "whole": (),
    "list": (list(range(8)),),
    "range": (range(8),),
    "array": (np.arange(8),),
    "tensor": (torch.arange(8),),
    "array of array": (np.arange(8), np.arange(6)),
    "array of list": (list(range(8)), np.arange(6)),
    "list of array": (np.arange(8), list(range(6))),
    "tensor of tensor": (torch.arange(8), torch.arange(6)),
}
INDICES: dict[str, list[Any]] = {
    "tensors": [torch.tensor(1), torch.tensor(2)],
    "tensors of one": [torch.tensor([1]), torch.tensor([2])],
    "arrays of one": [np.array([1]), np.array([2])],
    "NumPy ints": [np.int64(1), np.uint8(2)],
    "negative": [-1, 0],
    "too large": [100, 0],
    "bools": [True, False],
    "NumPy bools": [np.bool_(True), np.bool_(False)],
    "a bool among ints": [2, True],
    "floats": [1.0, 2.0],
    "slices": [slice(0, 2), slice(2, 4)],
    "None": [None, 1],
    "a string": ["a"],
}


def outcome(kind: Any, dataset: Any, **arguments: Any) -> Any:
    try:
        return [[part.tolist() for part in (batch if isinstance(batch, (list, tuple)) else [batch])]
                for batch in kind(dataset, **arguments)]  # fmt: skip
    except Exception as error:
        return type(error)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("subset", SUBSETS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_indices_mean_what_they_mean_in_torch(dataset: str, subset: str) -> None:
    of = DATASETS[dataset]()
    for part in SUBSETS[subset]:
        of = Subset(of, part)
    for name, sampler in INDICES.items():
        for batch_size in (2, None):
            arguments: dict[str, Any] = {"sampler": sampler, "batch_size": batch_size, "num_workers": 0}
            expected = outcome(TorchDataLoader, of, **arguments)
            assert outcome(fl.DataLoader, of, **arguments) == expected, (name, batch_size)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [torch.zeros(0, 3), TensorDataset(torch.zeros(0, 3)), torch.zeros(0)])
def test_no_row_is_there_in_an_empty_tensor(dataset: Any, workers: int) -> None:
    for sampler in ([0], [-1, 0]):
        with pytest.raises(IndexError):
            list(fl.DataLoader(dataset, 2, sampler=sampler, num_workers=workers))


@pytest.mark.parametrize(
    "indices",
    [np.array([2**64 - 1], np.uint64), torch.tensor([-1]).view(torch.uint64), [2**64 - 3], [2**63]],
    ids=["array", "tensor", "list", "least"],
)
def test_an_index_beyond_int64_is_no_row(indices: Any) -> None:
    with pytest.raises(IndexError, match="out of range"):
        fl.gather(torch.arange(3), indices)
    with pytest.raises(IndexError, match="out of range"):
        positions_of(indices, 3)
    with pytest.raises((IndexError, ValueError, OverflowError, RuntimeError)):
        list(fl.DataLoader(fl.CachedDataset(torch.arange(3)), batch_sampler=[indices], num_workers=0))


@pytest.mark.parametrize("kind", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_indices_are_rows(kind: torch.dtype) -> None:
    indices = torch.tensor([2, 0]).to(kind)
    assert fl.gather(torch.arange(5, 8), indices).tolist() == [7, 5]
    assert fl.gather(torch.arange(5, 8), indices.numpy()).tolist() == [7, 5]


@pytest.mark.parametrize("index", [1 << 63, 1 << 70, -(1 << 70)])
def test_an_index_beyond_int64_is_out_of_range(index: int, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\nb\n")
    for load in (
        lambda: fl.TextDataset(tmp_path / "lines.txt")[index],
        lambda: fl.gather(ROWS, [0, index]),
        lambda: positions_of([1, index], 10),
    ):
        with pytest.raises(IndexError, match=f"index {index} is out of range"):
            load()
