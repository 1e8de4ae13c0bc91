"""What was chosen is remembered by identity, whatever the user's classes make of ``==`` and ``hash()``."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import foreload as fl
from foreload.workers import selection


class Numbers:
    """A dataset of an ordinary class."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return index

    def collate(self, samples: list[int]) -> torch.Tensor:
        """Collate, as a method of the dataset."""
        return torch.tensor(samples)


class EqualByValue(Numbers):
    """A dataset that compares as arrays do."""

    def __eq__(self, other: object) -> Any:
        return np.arange(64) == np.arange(64)

    def __hash__(self) -> int:
        return 1


class Unhashable(Numbers):
    """A dataset that refuses to be hashed."""

    def __hash__(self) -> int:
        raise ValueError("not this one")


@dataclass
class Collator:
    """A dataclass, and so not hashable, as those of Transformers are."""

    added: int = 0

    def __call__(self, samples: list[int]) -> torch.Tensor:
        return torch.tensor(samples) + self.added


@pytest.mark.parametrize("kind", [EqualByValue, Unhashable])
def test_datasets_are_told_apart_by_identity(kind: Any) -> None:
    for _ in range(2):  # a second one, while the first one is there
        dataset = kind()
        for _ in range(2):
            assert torch.cat(list(fl.DataLoader(dataset, batch_size=8))).tolist() == list(range(64))


def test_a_collate_function_need_not_be_hashable() -> None:
    loader = fl.DataLoader(Numbers(), batch_size=8, collate_fn=Collator(1))
    assert torch.cat(list(loader)).tolist() == list(range(1, 65))
    assert next(iter(fl.DataLoader(Numbers(), batch_size=2, transform=Collator(1)))).tolist() == [1, 2]


def test_what_was_chosen_is_known_and_holds_no_dataset() -> None:
    dataset = Numbers()
    loader = fl.DataLoader(dataset, batch_size=8, collate_fn=dataset.collate)
    before = len(selection._chosen)
    list(loader)
    list(fl.DataLoader(dataset, batch_size=8, collate_fn=dataset.collate))
    assert len(selection._chosen) == before + 1
    fl.DataLoader(
        dataset, batch_size=8, collate_fn=dataset.collate, multiprocessing_context="spawn"
    ).choose_workers()
    assert len(selection._chosen) == before + 2  # what is fastest depends on how processes start
    gone = weakref.ref(dataset)
    del dataset, loader
    gc.collect()
    assert gone() is None
    assert len(selection._chosen) == before


def test_a_worker_init_fn_that_nobody_calls_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "why_not_started", lambda *_: "this is a daemonic process")
    loader = fl.DataLoader(Numbers(), batch_size=8, worker_init_fn=print)
    with pytest.warns(
        UserWarning, match="without worker_init_fn, because this is a daemonic process; num_workers=0"
    ):
        assert torch.cat(list(loader)).tolist() == list(range(64))
    assert loader.stats()["workers"]["count"] == 0
