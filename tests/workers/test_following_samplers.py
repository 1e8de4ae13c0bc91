"""Samplers that follow the loop yield what they yield in torch without workers, whoever loads."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Sampler

import foreload as fl
from tests.workers.followed import COUNTS, SIZE, Squares, plain, stock


def torch_draw() -> int:
    return int(torch.randint(SIZE, ()))


def numpy_draw() -> int:
    return int(np.random.randint(SIZE))


def python_draw() -> int:
    return random.randrange(SIZE)


class DrawsEachOf(Sampler[int]):
    """Draws anew after so many indices."""

    def __init__(self, draw: Callable[[], int], every: int) -> None:
        self.draw, self.every = draw, every

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        first = self.draw()
        for number in range(SIZE):
            if number % self.every == self.every - 1:
                first = self.draw()
            yield (first + number) % SIZE


class Follows(Sampler[int]):
    """Yields what the loop's state says at that moment."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(step=0, loss=0.0)
        self.level = 1
        self.seen: list[int] = []

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        for number in range(SIZE):
            index = (number * self.level + int(self.state.loss * 10) + len(self.seen)) % SIZE
            self.seen.append(index)  # seen by the loop, which clears it
            yield index


class OfBatches(Sampler[list[int]]):
    """Makes batches of the size that the loop wants."""

    def __init__(self) -> None:
        self.level = 2

    def __iter__(self) -> Iterator[list[int]]:
        place = 0
        while place < SIZE:
            yield list(range(place, min(SIZE, place + self.level)))
            place += self.level


class Stateful(Follows):
    """Has a state that a loader saves."""

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.level = state["level"]


class Reused(Sampler[list[int]]):
    """Fills one list again and again, and the loop looks at it."""

    def __init__(self) -> None:
        self.batch: list[int] = []

    def __iter__(self) -> Iterator[list[int]]:
        for place in range(0, SIZE, 4):
            self.batch[:] = range(place, place + 4)
            yield self.batch


def generated() -> Iterator[int]:
    for number in range(SIZE):
        yield (number + torch_draw() if number % 16 == 15 else number) % SIZE


GLOBAL = SimpleNamespace(offset=0)


class ReadsGlobal(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        for number in range(SIZE):
            yield (number + GLOBAL.offset) % SIZE


Act = Callable[[Any, int], None]


def follow(loader: Any, step: int) -> None:
    sampler = loader.sampler
    sampler.state.loss = step / 4
    if step == 5:
        sampler.seen.clear()


def raise_level(loader: Any, step: int) -> None:
    if step % 3 == 2:
        (loader.batch_sampler if isinstance(loader.batch_sampler, OfBatches) else loader.sampler).level += 1


def move_global(loader: Any, step: int) -> None:
    GLOBAL.offset = step // 5


def nothing(loader: Any, step: int) -> None:
    """Change nothing."""


ORDERS: dict[str, tuple[Callable[[], dict[str, Any]], Act]] = {
    **{
        f"{draw.__name__} {every}": (
            partial(lambda d, e: {"sampler": DrawsEachOf(d, e), "batch_size": 4}, draw, every),
            nothing,
        )
        for draw in (torch_draw, numpy_draw, python_draw)
        for every in (2, 7, 16, 40)
    },
    "loss": (lambda: {"sampler": Follows(), "batch_size": 4}, follow),
    "level": (lambda: {"sampler": Follows(), "batch_size": 4}, raise_level),
    "level without batches": (lambda: {"sampler": Follows(), "batch_size": None}, raise_level),
    "drop_last": (lambda: {"sampler": DrawsEachOf(torch_draw, 6), "batch_size": 5, "drop_last": True}, nothing),
    "any order": (lambda: {"sampler": DrawsEachOf(torch_draw, 6), "batch_size": 4, "in_order": False}, nothing),
    "persistent": (
        lambda: {"sampler": Follows(), "batch_size": 4, "persistent_workers": True},
        raise_level,
    ),
    "batches": (lambda: {"batch_sampler": OfBatches()}, raise_level),
    "stateful": (lambda: {"sampler": Stateful(), "batch_size": 4}, raise_level),
    "reused": (lambda: {"batch_sampler": Reused()}, nothing),
    "generator": (lambda: {"sampler": generated(), "batch_size": 4}, nothing),
    "global": (lambda: {"sampler": ReadsGlobal(), "batch_size": 4}, move_global),
    "list": (
        lambda: {"sampler": list(range(SIZE)), "batch_size": 4},
        lambda loader, step: loader.sampler.reverse(),
    ),
    "list of batches": (
        lambda: {"batch_sampler": [[number, number + 1] for number in range(20)]},
        lambda loader, step: loader.batch_sampler[-1].append(step),
    ),
}


def seen(loader: Any, act: Act, *, draws: bool = True) -> list[Any]:
    """Return the batches of some epochs, and the loop's random numbers between them if it ``draws``."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    GLOBAL.offset = 0
    found: list[Any] = []
    for _ in range(3):
        for step, batch in enumerate(loader):
            found.append(plain(batch))
            found += [random.random(), float(np.random.rand()), torch.rand(1).item()] if draws else []
            found.append(len(getattr(loader.sampler, "seen", ())))
            found.append(list(getattr(loader.batch_sampler, "batch", ())))
            act(loader, step)
        found.append("end")
    return found


@pytest.mark.sampled(7)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", COUNTS)
def test_samplers_follow_the_loop(order: str, count: int, choose: Callable[[int], None]) -> None:
    choose(count)
    make, act = ORDERS[order]
    draws = order != "persistent"  # persistent workers keep their base seed, which torch draws once
    expected = seen(stock(Squares(), make()), act, draws=draws)
    assert seen(fl.DataLoader(Squares(), **make()), act, draws=draws) == expected


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("order", ["torch_draw 7", "level", "batches", "stateful"])
@pytest.mark.parametrize("count", COUNTS)
def test_loops_that_end_early_go_on_with_the_samplers_own_state(
    order: str, count: int, choose: Callable[[int], None]
) -> None:
    choose(count)
    make, act = ORDERS[order]

    def found(loader: Any) -> list[Any]:
        torch.manual_seed(1)
        batches = []
        for epoch in range(4):
            for step, batch in enumerate(loader):
                batches.append([plain(batch), torch.rand(1).item()])
                act(loader, step)
                if step == epoch:
                    break
        return batches

    assert found(fl.DataLoader(Squares(), **make())) == found(stock(Squares(), make()))


class Waits(Squares):
    """Loads its first sample only when a later one is being loaded."""

    def __init__(self) -> None:
        self.begun = multiprocessing.get_context("fork").Event()

    def __getitem__(self, index: int) -> Any:
        if index == 4:
            self.begun.set()
        return index, os.getpid(), index > 0 or self.begun.wait(60)


@pytest.mark.parametrize("sampler", [DrawsEachOf(lambda: 0, 100), Follows(), list(range(SIZE))])
def test_samplers_that_do_not_follow_the_loop_are_loaded_for_ahead(
    sampler: Any, choose: Callable[[int], None]
) -> None:
    choose(2)
    if isinstance(sampler, Follows):
        sampler.__class__ = ReadsGlobal
        GLOBAL.offset = 0
    loader = fl.DataLoader(Waits(), batch_size=4, sampler=sampler)
    batches = list(loader)
    assert torch.cat([batch[0] for batch in batches]).tolist() == list(range(SIZE))
    assert all(batch[2].all() for batch in batches)
    assert os.getpid() not in torch.cat([batch[1] for batch in batches]).tolist()
    assert loader.stats()["workers"]["count"] == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("order", ["torch_draw 7", "level", "shuffle"])
def test_states_are_the_same_whoever_loads(order: str, count: int, choose: Callable[[int], None]) -> None:
    make = ORDERS[order][0] if order in ORDERS else lambda: {"shuffle": True, "batch_size": 4}
    whole = []
    choose(count)
    torch.manual_seed(5)
    loader = fl.DataLoader(Squares(), **make())
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()
    whole = [plain(batch) for batch in batches]
    choose(2 - count)
    torch.set_rng_state(generators[0])
    random.setstate(generators[1])
    np.random.set_state(generators[2])
    other = fl.DataLoader(Squares(), **make())
    other.load_state_dict(state)
    assert [plain(batch) for batch in other] == whole
