"""The samples of any batch are known, before and while it is loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, TensorDataset

import foreload as fl
from tests.epochs.skipped import SAMPLES, SIZE, STEPS, make, plain


@pytest.mark.parametrize("skip", [None, fl.Skip(STEPS), fl.Skip(STEPS, SAMPLES), fl.Skip(STEPS, epoch=1)])
@pytest.mark.parametrize("order", ["sequential", "seed", "drop_last"])
def test_indices_are_those_of_the_batches(order: str, skip: Any) -> None:
    loader = make(order, skip=skip)
    before = torch.get_rng_state()
    foreseen = [[loader.indices(epoch, step) for step in range(7)] for epoch in range(3)]
    assert torch.equal(torch.get_rng_state(), before)
    epochs = [plain(loader) for _ in range(3)]
    assert foreseen == [epoch[:7] for epoch in epochs]
    for epoch, batches in enumerate(epochs):
        assert [loader.indices(epoch, step) for step in range(len(batches))] == batches
        with pytest.raises(IndexError, match=f"epoch {epoch} has no step {len(batches)}"):
            loader.indices(epoch, len(batches))


def test_indices_in_the_middle_of_an_epoch_change_nothing() -> None:
    loader = make("seed")
    expected = [plain(loader), plain(loader)]
    loader = make("seed")
    list(loader)
    iterator = iter(loader)
    seen = plain(next(iterator) for _ in range(3))
    state = loader.state_dict()
    assert loader.indices(0, 5) == expected[0][5]
    assert loader.indices(1, 1) == expected[1][1]
    assert loader.indices(7, 2) != loader.indices(8, 2)
    assert loader.state_dict() == state
    assert seen + plain(iterator) == expected[1]


@pytest.mark.parametrize("skip", [None, fl.Skip([1]), fl.Skip([1], [4, 5, 6])])
@pytest.mark.parametrize("route", [False, True])
def test_indices_of_a_rank(skip: Any, route: bool) -> None:
    if route and skip is not None and skip.samples:
        return
    data = TensorDataset(torch.arange(SIZE))
    for rank in range(3):
        sampler: Any = DistributedSampler(data, 3, rank, seed=2)
        cache = fl.Cache("1MiB", route=True, share=False) if route else None
        loader: Any = fl.DataLoader(data, 4, sampler=sampler, num_workers=0, skip=skip, cache=cache)
        for epoch in (0, 4):
            foreseen = loader.indices(epoch, 2)
            sampler.set_epoch(epoch)
            batches = [batch[0].tolist() for batch in loader]
            assert foreseen == batches[2]
            assert [loader.indices(epoch, step) for step in range(len(batches))] == batches


def test_indices_of_a_mixture_and_without_batches() -> None:
    mixture = fl.Mixture({"a": range(30), "b": range(100, 120)}, weights=[3, 1], num_samples=24)
    loader: Any = fl.DataLoader(mixture, 4, shuffle=True, seed=5, num_workers=0, skip=fl.Skip(steps=[1]))
    batches = plain(loader)
    assert [[mixture[index] for index in loader.indices(0, step)] for step in range(5)] == batches
    one_by_one: Any = fl.DataLoader(range(SIZE), None, shuffle=True, seed=5, num_workers=0)  # type: ignore[arg-type]
    assert list(one_by_one)[7] == loader_of_one(one_by_one, 7)


def loader_of_one(loader: Any, step: int) -> int:
    (index,) = loader.indices(0, step)
    return int(index)
