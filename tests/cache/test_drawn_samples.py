"""A cache keeps what a sample drew when it was first loaded, which a warning says."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import foreload as fl

DRAWS: dict[str, Callable[[], float]] = {
    "python": random.random,
    "numpy": lambda: float(np.random.rand()),
    "torch": lambda: float(torch.rand(())),
}


class Rows:
    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> float:
        return index + self.draw()


class TogetherRows(Rows):
    def __getitems__(self, indices: Any) -> list[float]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"num_workers": 1, "workers": "threads"}], ids=str)
@pytest.mark.parametrize("kind", [Rows, TogetherRows])
@pytest.mark.parametrize("library", DRAWS)
def test_a_sample_that_draws_is_warned_of_once(library: str, kind: Any, options: dict[str, Any]) -> None:
    if library == "python" and "workers" in options:
        pytest.skip("getstate() of Python's module is not about the generator of a worker thread")
    loader = fl.DataLoader(kind(DRAWS[library]), 4, cache="1MiB", **{"num_workers": 0, **options})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, second = torch.cat(list(loader)), torch.cat(list(loader))
    assert first.tolist() == second.tolist()
    assert sum("draws random numbers" in str(each.message) for each in caught) == 1


@pytest.mark.parametrize("options", [{}, {"seed": 1}], ids=str)
def test_what_draws_after_the_cache_is_not(options: dict[str, Any]) -> None:
    dataset: Any = Rows(lambda: 0.0)
    loader = fl.DataLoader(
        dataset, 4, cache="1MiB", num_workers=0, transform=lambda value: value + random.random(), **options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.cat(list(loader)).tolist() != torch.cat(list(loader)).tolist()
