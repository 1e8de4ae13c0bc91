"""The number of an epoch: what may be given, and that it stays the caller's."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import foreload as fl

NUMBERS = torch.utils.data.TensorDataset(torch.arange(10))


@pytest.mark.parametrize("number", [2, np.int64(2), torch.tensor(2)])
@pytest.mark.parametrize("seed", [0, None])
def test_an_epoch_may_be_any_kind_of_integer_and_stays_the_callers(number: Any, seed: int | None) -> None:
    loader: Any = fl.DataLoader(NUMBERS, batch_size=5, shuffle=seed is not None, seed=seed)
    loader.set_epoch(number)
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 2
    for _ in range(2):
        list(loader)
    assert int(number) == 2


@pytest.mark.parametrize("wrong", ["1", 1.0, None, torch.tensor([1, 2]), -1])
@pytest.mark.parametrize("seed", [0, None])
def test_an_epoch_that_is_none_is_named_at_once(wrong: Any, seed: int | None) -> None:
    mixed = fl.Mixture([range(4), range(4)], [1, 1])
    loader: Any = fl.DataLoader(NUMBERS, shuffle=seed is not None, seed=seed)
    stream = fl.Stream(range(4))
    sampler: Any = fl.DataLoader(mixed, batch_size=None, shuffle=True, seed=0).sampler
    for it in (loader, sampler, stream):
        with pytest.raises((TypeError, ValueError), match=r"epoch must be (an int|0 or more), got"):
            it.set_epoch(wrong)
