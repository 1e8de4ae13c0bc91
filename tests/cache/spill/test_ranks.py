"""Spill folders of several ranks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import foreload as fl
from foreload.order.samplers import KeyedSampler
from tests.ranks import run_ranks

N = 60


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((50,), index), index


def load(rank: int, world: int, folder: str) -> Any:
    """Load four epochs with a folder of this rank's own, twice, and return what was said."""
    epochs: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            cache = fl.Cache("10KiB", spill=f"{folder}/{rank}")
            with fl.DataLoader(Rows(), 4, shuffle=True, seed=1, num_workers=0, cache=cache) as loader:
                for _ in range(4):
                    epochs.append([])
                    for x, y in loader:
                        assert torch.equal(x, y[:, None].expand(-1, 50))
                        epochs[-1] += y.tolist()
            del loader
    return epochs, [str(warning.message) for warning in caught]


@pytest.mark.slow
def test_ranks_with_folders_of_their_own_do_not_mix_them(tmp_path: Path) -> None:
    got = run_ranks(load, 2, tmp_path / "ranks", str(tmp_path / "spill"))
    orders = [list(KeyedSampler(range(N), 1, epoch)) for epoch in range(4)]
    for epoch in range(8):
        assert [epochs[epoch] for epochs, _ in got] == [orders[epoch % 4][rank::2] for rank in range(2)]
    for _, messages in got:
        assert not any("damaged" in message for message in messages), messages
        assert any("spill folders" in message for message in messages)
