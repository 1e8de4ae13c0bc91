"""Datasets that loading changes, each in another way."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

SIZE = 97
TALLY = [0]
CALLS = 0


class Rows(Dataset[Any]):
    """Numbers, with whatever attributes a test wants."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return index


class Counts(Rows):
    """Counts its samples."""

    calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return self.calls


class CountsLazily(Rows):
    """Counts its samples, from the first on."""

    def __getitem__(self, index: int) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return self.calls


class CountsForAll(Rows):
    """Counts in an attribute of the class."""

    total = 0

    def __getitem__(self, index: int) -> Any:
        type(self).total += 1
        return self.total


class CountsGlobally(Rows):
    """Counts in a global variable."""

    def __getitem__(self, index: int) -> Any:
        global CALLS
        CALLS += 1
        return CALLS


class Tallies(Rows):
    """Counts in a global list."""

    def __getitem__(self, index: int) -> Any:
        TALLY[0] += 1
        return TALLY[0]


class Remembers(Rows):
    """Keeps its samples."""

    def __getitem__(self, index: int) -> Any:
        return self.known.setdefault(index, index)


class RemembersLazily(Rows):
    """Keeps its samples, from the first on."""

    known: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.known is None:
            self.known = {}
        return self.known.setdefault(index, index)


class Fills(Rows):
    """Uses a buffer again."""

    def __getitem__(self, index: int) -> Any:
        self.buffer[:] = index
        return self.buffer + 1


class FillsOnePlace(Rows):
    """Changes one value of a large array."""

    def __getitem__(self, index: int) -> Any:
        self.buffer[index] += 1
        return self.buffer[index]


class Draws(Rows):
    """Draws from its own generator."""

    def __getitem__(self, index: int) -> Any:
        return self.draw(self.rng)


class DrawsLazily(Rows):
    """Makes a generator when it is first needed."""

    rng: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.rng is None:
            self.rng = self.make()
        return index


class Slots:
    """A dataset with slots only."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        self.calls += 1
        return self.calls


def made() -> Any:
    return random.Random(1)


CHANGES: dict[str, tuple[Callable[[], Any], str]] = {
    "counter": (Counts, "calls"),
    "lazy counter": (CountsLazily, "calls"),
    "class counter": (CountsForAll, "total"),
    "global counter": (CountsGlobally, f"{__name__}.CALLS"),
    "global list": (Tallies, f"{__name__}.TALLY[0]"),
    "slots": (Slots, "calls"),
    "dict": (lambda: Remembers(known={}), "known"),
    "lazy dict": (RemembersLazily, "known"),
    "nested": (lambda: Subset(Counts(), range(SIZE)), "dataset.calls"),
    "within": (lambda: ConcatDataset([Counts(), Counts()]), "datasets[0].calls"),
    "array": (lambda: Fills(buffer=np.zeros(4)), "buffer"),
    "tensor": (lambda: Fills(buffer=torch.zeros(4)), "buffer"),
    "list of arrays": (lambda: Subset(Fills(buffer=torch.zeros(4)), range(SIZE)), "dataset.buffer"),
    "place in an array": (lambda: FillsOnePlace(buffer=np.zeros(100_000, np.uint8)), "buffer"),
    "place in a tensor": (lambda: FillsOnePlace(buffer=torch.zeros(10_000_000)), "buffer"),
    "python": (lambda: Draws(rng=random.Random(1), draw=lambda rng: rng.random()), "rng"),
    "numpy": (lambda: Draws(rng=np.random.default_rng(1), draw=lambda rng: rng.random()), "rng"),
    "numpy's old": (lambda: Draws(rng=np.random.RandomState(1), draw=lambda rng: rng.rand()), "rng"),
    "second of two": (lambda: Draws(rng=random.Random(1), draw=lambda rng: rng.gauss(0, 1)), "rng"),
    "torch": (
        lambda: Draws(rng=torch.Generator(), draw=lambda rng: torch.rand((), generator=rng).item()),
        "rng",
    ),
    "generators": (lambda: Draws(rng=[random.Random(1)], draw=lambda rng: rng[0].random()), "rng[0]"),
    "lazy iterator": (lambda: DrawsLazily(make=itertools.count), "rng"),
    "lazy generator": (lambda: DrawsLazily(make=made), "rng"),
    "lazy numpy": (lambda: DrawsLazily(make=np.random.default_rng), "rng"),
    "lazy torch": (lambda: DrawsLazily(make=torch.Generator), "rng"),
}
