"""Datasets that are loaded at once, whose samples must make one batch without loss."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl


def test_the_sample_that_cannot_be_preloaded_is_named() -> None:
    with pytest.raises(ValueError, match="no number") as caught:
        fl.CachedDataset(_Broken())
    assert caught.value.__notes__ == ["foreload: while loading sample 1 of data"]


def test_the_sample_that_does_not_fit_the_others_is_named() -> None:
    with pytest.raises(RuntimeError) as caught:
        fl.CachedDataset([(torch.ones(2),), (torch.ones(3),)])
    (note,) = caught.value.__notes__
    assert note.startswith("foreload: sample 1: [0] has the shape (3,), but the shape (2,) in the first sample")


@pytest.mark.parametrize(
    "samples",
    [
        [torch.full((5, 2), number) for number in range(4)],
        [np.full((2, 3), number) for number in range(4)],
        [torch.tensor(number) for number in range(4)],
        [[torch.ones(2), number] for number in range(4)],
        [0.5, 1.5, 2.5],
        [[1, 2], [3, 4], [5, 6]],
    ],
)
def test_a_list_is_a_dataset_as_it_is_to_a_loader(samples: list[Any]) -> None:
    dataset = fl.CachedDataset(samples)
    assert len(dataset) == len(samples)
    for found, wanted in zip(TorchDataLoader(dataset, 2), TorchDataLoader(samples, 2), strict=True):  # type: ignore[arg-type]
        assert repr(found) == repr(wanted)


def test_columns_in_a_list_are_refused_with_the_remedy() -> None:
    with pytest.raises(RuntimeError, match="equal size") as caught:
        fl.CachedDataset([torch.ones(4, 2), torch.ones(4)])
    assert "go in a tuple" in caught.value.__notes__[-1]


def test_samples_of_different_types_are_not_rounded() -> None:
    large = (1 << 24) + 1
    for samples in ([0.5, large], [torch.tensor(0.5), torch.tensor(large >> 1)], [True, 2], [float("nan"), 2]):
        assert fl.CachedDataset(_Samples(samples))[1] == samples[1]
    for wrong in ([large, 0.5], [{"x": [torch.tensor(0.5), 1]}, {"x": [torch.tensor(large), 1]}]):
        with pytest.raises(
            ValueError, match=r"data: sample [01] would be rounded to the type of all samples; give"
        ):
            fl.CachedDataset(_Samples(wrong))


class _Samples:
    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class _Broken:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        if index == 1:
            raise ValueError("no number")
        return index


class Point(NamedTuple):
    x: Any
    y: Any


@pytest.mark.parametrize("batch_size", [1, 2])
def test_named_tuples_stay_named(batch_size: int) -> None:
    points: Any = [Point(torch.ones(2) * i, i) for i in range(4)]
    expected = [(batch.x.tolist(), batch.y.tolist()) for batch in TorchDataLoader(points, batch_size=batch_size)]
    whole = fl.CachedDataset(Point(torch.stack([point.x for point in points]), torch.arange(4)))
    for data in (fl.CachedDataset(points), whole):
        for dataset in (data, pickle.loads(pickle.dumps(data)), copy.deepcopy(data)):
            assert type(dataset[3]) is Point
            assert dataset[3].y == 3
        for loader in (TorchDataLoader, fl.DataLoader):
            for workers in (0, 2):
                batches = list(loader(data, batch_size=batch_size, num_workers=workers))
                assert [(batch.x.tolist(), batch.y.tolist()) for batch in batches] == expected


class _Tagged(torch.Tensor):
    """A class of tensors."""


TAGGED, LEARNT = torch.ones(3, 2).as_subclass(_Tagged), torch.ones(3, 2, requires_grad=True)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (LEARNT, r"data requires a gradient, which is not kept; give data\.detach\(\)"),
        ((torch.ones(3), LEARNT * 2), r"data\[1\] requires a gradient"),
        ({"x": TAGGED}, r"data\['x'\] is a _Tagged, .*; give data\['x'\]\.as_subclass\(torch\.Tensor\)"),
        (list(LEARNT), r"data\[0\] requires a gradient"),
        ([(torch.ones(2), 0), (torch.ones(2, requires_grad=True), 1)], r"data\[1\]\[0\] requires a gradient"),
        ([{"x": torch.ones(2)}, {"x": TAGGED[0]}], r"data\[1\]\['x'\] is a _Tagged"),
        (list(torch.nn.Linear(2, 2).parameters())[:1], r"data\[0\] requires a gradient"),
    ],
    ids=["tensor", "field", "class", "samples", "of a sample", "class of a sample", "parameter"],
)
def test_what_memory_does_not_keep_of_a_tensor_is_an_error(data: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        fl.CachedDataset(data)


def test_parameters_without_a_gradient_are_ordinary_tensors() -> None:
    weights = torch.nn.Parameter(torch.ones(3, 2), requires_grad=False)
    for data in (weights, [weights, weights, weights]):
        expected = next(iter(TorchDataLoader(data, batch_size=3)))  # type: ignore[arg-type]
        (found,) = fl.DataLoader(fl.CachedDataset(data), batch_size=3)
        assert type(found) is type(expected)
        assert torch.equal(found, expected)
