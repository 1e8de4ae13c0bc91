"""Objects of the user's classes in batches: what the loop does to them is seen where it is seen in stock torch."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import pathlib
import threading
import time
from collections import UserDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload.tune import choose as tune_choose
from foreload.tune.choice import Choice
from foreload.workers import selection

# Instead of a measurement: the calling thread, or processes.
COUNTS = [0, 2]


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def chosen(count: int) -> None:
        choice = Choice("processes" if count else "threads", count, "as the test says")
        monkeypatch.setattr(selection, "_chosen", {})
        monkeypatch.setattr(tune_choose, "choose_workers", lambda work: choice)

    return chosen


class Box:
    """Counts how often the loop had it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.visits: list[int] = []
        self.image = torch.zeros(3)


class Slotted:
    __slots__ = ("visits",)

    def __init__(self) -> None:
        self.visits: list[int] = []


class Leaves(Box):
    """Leaves its cache behind when it is sent."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "visits": []}


class Tagged(dict[str, Any]):
    def __init__(self) -> None:
        super().__init__(x=1)
        self.visits: list[int] = []


class Wrapped(UserDict[str, Any]):
    def __init__(self) -> None:
        super().__init__(x=1)
        self.visits: list[int] = []


class Row(list[int]):
    def __init__(self) -> None:
        super().__init__([1])
        self.visits: list[int] = []


@dataclasses.dataclass
class Target:
    number: int

    def __post_init__(self) -> None:
        self.visits: list[int] = []


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Box

    @property
    def visits(self) -> list[int]:
        return self.inner.visits


class Pair(tuple[Any, ...]):
    visits: list[int]

    def __new__(cls, items: Any = (1, 2)) -> Pair:
        made = super().__new__(cls, items)
        made.visits = []
        return made


def tensor() -> Any:
    made: Any = torch.zeros(2)
    made.visits = []
    return made


MADE: dict[str, Callable[[], Any]] = {
    "object": lambda: Box(1),
    "slots": Slotted,
    "left behind": lambda: Leaves(1),
    "mapping": Tagged,
    "user mapping": Wrapped,
    "list": Row,
    "dataclass": lambda: Target(1),
    "within a dataclass": lambda: Outer(Box(1)),
    "tuple": Pair,
    "tensor": tensor,
}


class Holds(Dataset[Any]):
    """Gives what it holds."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.rows = [make() for _ in range(12)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class Makes(Holds):
    """Makes each sample anew."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(make)
        self.make = make

    def __getitem__(self, index: int) -> Any:
        return self.make()


@pytest.mark.sampled(10)
@pytest.mark.parametrize("options", [{"batch_size": None}, {"batch_size": 3, "collate_fn": list}], ids=str)
@pytest.mark.parametrize("kind", [Holds, Makes])
@pytest.mark.parametrize("name", MADE)
def test_what_the_loop_does_to_objects_shows_in_the_next_epoch_as_in_stock(
    name: str, kind: type[Holds], options: dict[str, Any], choose: Callable[[int], None]
) -> None:
    """Those that the dataset goes on to hold are loaded by the calling thread, whatever was chosen."""
    choose(2)
    found = []
    for make in (fl.DataLoader, TorchDataLoader):
        dataset, seen = kind(MADE[name]), []
        loader: Any = make(dataset, **options)
        for epoch in range(2):
            for batch in loader:
                for sample in batch if "collate_fn" in options else [batch]:
                    seen.append(list(getattr(sample, "visits", ())))
                    if hasattr(sample, "visits"):  # torch makes a list of a tuple
                        sample.visits.append(epoch)
        found.append((seen, [list(row.visits) for row in dataset.rows]))
    assert found[0] == found[1]


class Holders(Dataset[Any]):
    """Gives the same values in every form in which they may be shared."""

    def __init__(self) -> None:
        self.box = Box(0)
        self.array = np.array([self.box, None], object)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        forms = [
            self.array,
            deque([self.box]),
            {"in": (self.box,)},
            {self.box: 1},
            {self.box},
            frozenset([self.box]),
            defaultdict(list, a=[self.box]),
        ]
        return forms[index % len(forms)]


def find(value: Any) -> Box:
    while not isinstance(value, Box):
        value = value["in"] if isinstance(value, dict) and "in" in value else value
        value = value["a"] if isinstance(value, dict) and "a" in value else value
        value = next(iter(value))
    return value


def test_an_object_is_found_in_any_container(choose: Callable[[int], None]) -> None:
    choose(2)
    dataset = Holders()
    for sample in fl.DataLoader(dataset, batch_size=None):
        find(sample).visits.append(1)
    assert dataset.box.visits == [1] * len(dataset)


@pytest.mark.parametrize("count", COUNTS)
def test_what_belongs_together_stays_together(count: int, choose: Callable[[int], None]) -> None:
    choose(count)

    for first, second, image in fl.DataLoader(Holds(lambda: Box(5)), batch_size=2, collate_fn=_thrice):
        assert first is second
        assert image is first.image
        image += 1
        assert first.image.tolist() == [1, 1, 1]


def _thrice(samples: list[Box]) -> Any:
    return samples[0], samples[0], samples[0].image


class Color(enum.Enum):
    RED = 1


CONSTANTS = [
    Color.RED,
    ...,
    len,
    Box,
    range(3),
    slice(1),
    torch.float16,
    torch.device("cpu"),
    np.dtype(np.int8),
    datetime.date(2020, 1, 2),
    pathlib.Path("a"),
    frozenset("ab"),
]


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda constant: type(constant).__name__)
def test_constants_are_as_in_stock(constant: Any, choose: Callable[[int], None]) -> None:
    choose(0)
    (batch,) = fl.DataLoader(Holds(lambda: constant), batch_size=12, collate_fn=list)
    assert batch == next(iter(TorchDataLoader(Holds(lambda: constant), batch_size=12, collate_fn=list)))
    assert all(value is constant for value in batch)


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 0, "seed": 1}], ids=str)
def test_the_calling_thread_gives_the_objects_themselves_if_asked_for(options: dict[str, Any]) -> None:
    dataset = Holds(lambda: Box(1))
    for batch in fl.DataLoader(dataset, batch_size=3, collate_fn=list, **options):
        for box in batch:
            box.visits.append(1)
    assert [box.visits for box in dataset.rows] == [[1]] * 12


class Locked(Box):
    """Cannot be pickled."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.lock = threading.Lock()


class Demanding(Box):
    """Cannot be made again of its pickle."""

    def __reduce__(self) -> Any:
        return Demanding, ()


class Slow(Dataset[Any]):
    """Takes so long that processes would pay, in an epoch that is too short to try them."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> int:
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            pass
        return index


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [Locked, Demanding])
@pytest.mark.parametrize("options", [{"batch_size": 40}, {"batch_size": None}], ids=str)
def test_batches_that_processes_cannot_send_are_made_by_the_calling_thread(
    options: dict[str, Any], kind: type[Box]
) -> None:
    loader = fl.DataLoader(Slow(), collate_fn=lambda samples: kind(np.size(samples)), **options)
    assert [made.number for made in loader] == ([40] * 5 if options["batch_size"] else [1] * 200)
    assert loader.stats()["workers"]["count"] == 0
    assert "a process could not send batches as they are" in loader.stats()["workers"]["why"]


class Counts:
    """A collate function with a state."""

    calls = 0

    def __call__(self, sample: Any) -> Any:
        self.calls += 1
        return sample, self.calls


def test_a_function_with_a_state_for_single_samples_is_called_by_the_calling_thread() -> None:
    loader = fl.DataLoader(Slow(), batch_size=None, collate_fn=Counts())
    assert [*loader] == [(index, index + 1) for index in range(200)]
    assert "calls" in loader.stats()["workers"]["why"]


def test_gradients_lead_back_through_what_is_beside_an_object(choose: Callable[[int], None]) -> None:
    choose(0)
    weight = torch.ones(2, requires_grad=True)
    (batch,) = fl.DataLoader(Holds(lambda: Box(1)), batch_size=12, collate_fn=lambda boxes: (boxes[0], weight * 3))
    batch[1].sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [3, 3]


def test_the_choice_of_the_tests_is_that_of_the_loader(choose: Callable[[int], None]) -> None:
    choose(2)
    loader = fl.DataLoader(Makes(lambda: Box(1)), batch_size=3, collate_fn=list)
    list(loader)
    assert loader.stats()["workers"]["kind"] == "processes"
