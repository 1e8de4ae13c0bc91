"""Shuffled orders come block by block, and are torch's bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import RandomSampler

import foreload as fl
from foreload.order.randomized.permutations import permutations
from foreload.order.samplers import FIRST_BLOCK


def by_torch(size: int, wanted: int, seed: int) -> list[int]:
    """The same by torch's sampler."""
    sampler = RandomSampler(range(size), num_samples=wanted, generator=torch.Generator().manual_seed(seed))
    return list(sampler)


@given(st.integers(1, 5000), st.floats(0, 3), st.integers(0, (1 << 63) - 1))
def test_permutations_are_those_of_torch(size: int, times: float, seed: int) -> None:
    wanted = max(1, int(times * size))
    assert np.concatenate(list(permutations(size, wanted, seed))).tolist() == by_torch(size, wanted, seed)


def test_a_long_permutation_is_torchs_and_comes_in_blocks() -> None:
    size = 3_000_001
    expected = torch.randperm(size, generator=torch.Generator().manual_seed(1 << 40)).numpy()
    blocks = permutations(size, size, 1 << 40)
    first = next(blocks)
    assert len(first) == FIRST_BLOCK
    assert np.array_equal(np.concatenate([first, *blocks]), expected)


@pytest.mark.slow
@pytest.mark.timeout(900)  # of half a minute's work, on a machine with much else to do
def test_the_longest_permutation_is_torchs() -> None:
    size = (1 << 32) // 20 - 1  # torch shuffles more numbers in another way
    expected = torch.randperm(size, generator=torch.Generator().manual_seed(size)).numpy()
    at = 0
    for block in permutations(size, size, size):
        assert np.array_equal(block, expected[at : at + len(block)])
        at += len(block)
    assert at == size


@pytest.mark.sampled(1)
@pytest.mark.parametrize("begin", [{}, {"batch_size": 7}, {"batch_size": 1000, "drop_last": True}])
def test_shuffled_loaders_give_torchs_batches_and_leave_its_generator_alike(begin: dict[str, Any]) -> None:
    found = []
    for kind in (TorchDataLoader, fl.DataLoader):
        torch.manual_seed(5)
        loader: Any = kind(range(70_000) if begin else range(900), shuffle=True, **begin)
        found.append(([batch.tolist() for _ in range(2) for batch in loader], torch.rand(3).tolist()))
    assert found[0] == found[1]


def test_what_stands_in_place_of_randperm_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(size: int, *, generator: torch.Generator) -> torch.Tensor:
        return torch.arange(size - 1, -1, -1)

    monkeypatch.setattr(torch, "randperm", backwards)
    assert [batch.tolist() for batch in fl.DataLoader(range(5), batch_size=2, shuffle=True)] == [
        [4, 3],
        [2, 1],
        [0],
    ]
