"""Loaders in ``torch.distributed.checkpoint``, which loads only the keys that a new loader's state has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import WeightedRandomSampler

import foreload as fl
from tests.epochs.stateful import SIZE, Counting, Numbers, OfReaders, Passes, Places
from tests.epochs.test_state_before_first_batch import Always, CountsLast

LOADERS: dict[str, Callable[[], Any]] = {
    "seeded": lambda: fl.DataLoader(Numbers(), 4, shuffle=True, seed=2),
    "shuffled": lambda: fl.DataLoader(Numbers(), 4, shuffle=True, generator=torch.Generator().manual_seed(1)),
    "drawn": lambda: fl.DataLoader(
        Numbers(),
        4,
        sampler=WeightedRandomSampler([1.0] * SIZE, SIZE, generator=torch.Generator().manual_seed(1)),
        num_workers=0,
    ),
    "of the sampler": lambda: fl.DataLoader(Numbers(), 4, sampler=CountsLast(), num_workers=0),
    "of an eager sampler": lambda: fl.DataLoader(Numbers(), None, sampler=Always(), num_workers=2),
    "of its iterator": lambda: fl.DataLoader(Numbers(), 4, sampler=Places(), num_workers=0),
    "of the dataset": lambda: fl.DataLoader(Counting(), 4, num_workers=2),
    "of a stream": lambda: fl.DataLoader(Passes(), 4, num_workers=2),
    "of the stream's iterator": lambda: fl.DataLoader(OfReaders(), 4, num_workers=0),
    "mixed": lambda: fl.DataLoader(fl.Mixture([range(9), range(20, 40)], [1, 1]), 4, shuffle=True, seed=1),
}


# (The oldest torch sees by itself that there are no ranks.)
ALONE: Any = {"no_dist": True} if "no_dist" in inspect.signature(dcp.save).parameters else {}


@pytest.mark.filterwarnings("ignore:.*torch.distributed is")
@pytest.mark.filterwarnings("ignore:.*has no state_dict")
@pytest.mark.parametrize("stop", [0, 1, 3, "end"])
@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("name", LOADERS)
def test_a_new_loader_goes_on_from_a_checkpoint(name: str, epochs: int, stop: int | str, tmp_path: Path) -> None:
    loader = LOADERS[name]()
    for _ in range(epochs):
        list(loader)
    batches = iter(loader)
    for _ in range(99 if stop == "end" else int(stop)):
        next(batches, None)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path, **ALONE)
    expected = str(list(loader if stop == "end" else batches))
    again = LOADERS[name]()
    dcp.load({"loader": again}, checkpoint_id=tmp_path, **ALONE)
    assert str(list(again)) == expected
    for each in (loader, again):
        each.close()
