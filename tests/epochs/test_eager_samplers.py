"""Samplers that draw when they are asked for an iterator, which torch does twice when it starts workers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl


class Numbers:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index


class Drawn:
    """Batches drawn from torch's global generator."""

    def __iter__(self) -> Iterator[Any]:
        return iter([batch.tolist() for batch in torch.randperm(10).split(3)])

    def __len__(self) -> int:
        return 4


class Shuffled(Drawn):
    """Batches that are shuffled in place."""

    def __init__(self) -> None:
        self.batches = [[0, 1], [2, 3, 4], [5], [6, 7, 8, 9]]

    def __iter__(self) -> Iterator[Any]:
        random.shuffle(self.batches)
        return iter(self.batches)


class Counting(Drawn):
    """Batches that are drawn from a count of epochs."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        return iter(np.random.default_rng(self.epoch).permutation(10).reshape(5, 2).tolist())


class Stateful(Counting):
    """Counts an epoch unless it has been set to a state."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0
        self.is_set = False

    def __iter__(self) -> Iterator[Any]:
        if not self.is_set:
            self.epoch, self.at = self.epoch + 1, 0
        self.is_set = False
        return self._rest(np.random.default_rng(self.epoch).permutation(10).reshape(5, 2).tolist())

    def _rest(self, batches: list[Any]) -> Iterator[Any]:
        for batch in batches[self.at :]:
            self.at += 1
            yield batch

    def state_dict(self) -> Any:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.epoch, self.at = state["epoch"], state["at"]
        self.is_set = True


class Counted(Stateful):
    """Always counts an epoch; its state is of between epochs."""

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        return iter(np.random.default_rng(self.epoch).permutation(10).reshape(5, 2).tolist())


class Single(Drawn):
    """Samples, not batches."""

    def __iter__(self) -> Iterator[Any]:
        return iter(torch.randperm(10).tolist())


def made(kind: type[Any], loader: Any = fl.DataLoader, **options: Any) -> Any:
    if kind is Single:
        return loader(Numbers(), sampler=Single(), batch_size=None, **options)
    return loader(Numbers(), batch_sampler=kind(), **options)


def loaded(batches: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def seeded() -> None:
    torch.manual_seed(3)
    random.seed(3)


KINDS = pytest.mark.parametrize("kind", [Drawn, Shuffled, Counting, Stateful, Counted, Single])
WORKERS = pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 2, "workers": "processes"},
        {"num_workers": 2, "workers": "processes", "persistent_workers": True},
        {"num_workers": 2, "workers": "threads"},
    ],
    ids=["none", "processes", "persistent", "threads"],
)


@pytest.mark.sampled(4)
@KINDS
@WORKERS
def test_they_draw_what_they_draw_under_torch(kind: type[Any], options: dict[str, Any]) -> None:
    seen = []
    for loader in (TorchDataLoader, fl.DataLoader):
        chosen = {name: value for name, value in options.items() if loader is fl.DataLoader or name != "workers"}
        seeded()
        ours = made(kind, loader, **chosen)
        seen.append([(loaded(ours), float(torch.rand(())), random.random()) for _ in range(3)])
    assert seen[0] == seen[1]


@pytest.mark.sampled(6)
@WORKERS
@pytest.mark.parametrize("kind", [Drawn, Stateful, Single])
@pytest.mark.parametrize("step", [None, 0, 1, 3, 99])
def test_states_go_on_with_what_would_have_come(
    kind: type[Any], options: dict[str, Any], step: int | None
) -> None:
    seeded()
    loader = made(kind, **options)
    loaded(loader)
    if step is None:  # before the epoch begins
        state = loader.state_dict()
        expected = loaded(loader)
    else:
        running = iter(loader)
        begun = loaded(itertools.islice(running, step))
        state = loader.state_dict()
        expected = loaded(running) or loaded(loader)
        assert begun or step == 0
    other = made(kind, **options)
    other.load_state_dict(state)
    assert loaded(other) == expected


@WORKERS
def test_states_between_epochs_go_on_with_the_next_one(options: dict[str, Any]) -> None:
    loader = made(Counted, **options)
    loaded(loader)
    other = made(Counted, **options)
    other.load_state_dict(loader.state_dict())
    assert loaded(other) == loaded(loader)
