"""A batch of which no sample can be loaded: left out, unless other ranks would wait for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, DistributedSampler

import foreload as fl


class Bad(Dataset[int]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        if index in (4, 5, 6, 7):
            raise OSError("damaged")
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_alone_it_is_left_out(workers: int) -> None:
    loader = fl.DataLoader(Bad(), batch_size=4, num_workers=workers, on_error="skip")
    assert torch.cat(list(loader)).tolist() == [0, 1, 2, 3, *range(8, 16)]


@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("sharing", ["sampler", "group"])
@pytest.mark.parametrize("workers", [0, 2])
def test_among_ranks_it_is_an_error(workers: int, sharing: str, on_error: Any) -> None:
    if sharing == "sampler":
        how: Any = {"sampler": DistributedSampler(Bad(), num_replicas=2, rank=0, shuffle=False)}
    else:
        how = {"group": (0, 2), "seed": 0}
    loader = fl.DataLoader(Bad(), batch_size=1, num_workers=workers, on_error=on_error, **how)
    with pytest.raises(RuntimeError, match=r"no sample of batch .* this rank would have a batch less"):
        list(loader)
