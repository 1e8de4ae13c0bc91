"""Caches of datasets whose code, or what that reads, is replaced between epochs, as in a notebook."""

from __future__ import annotations

import argparse
import functools
import math
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import foreload as fl


def make() -> Any:
    """Return a class that no other test has changed."""

    class Scale:
        factor = 1

        def __call__(self, value: int) -> int:
            return self.factor * value

    class Base(Dataset[Any]):
        loads = 0
        offset = 0

        @staticmethod
        def first(index: int) -> int:
            return index

        @property
        def shift(self) -> int:
            return 0

        def value(self, index: int) -> int:
            return self.first(index) + self.shift + self.offset

    class Numbers(Base):
        scale = Scale()
        unread = 0

        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Any:
            type(self).loads += 1
            return torch.tensor(int(self.scale(self.value(index))))

    return Numbers


def read_more(kind: Any) -> None:
    kind.value = lambda self, index: index + self.added
    kind.added = 5


CHANGES: dict[str, Callable[[Any], None]] = {
    "item": lambda kind: setattr(kind, "__getitem__", lambda self, index: torch.tensor(-index)),
    "method of the base": lambda kind: setattr(kind.__mro__[1], "value", lambda self, index: index + 7),
    "code": lambda kind: setattr(kind.__mro__[1].value, "__code__", (lambda self, index: index + 8).__code__),
    "static": lambda kind: setattr(kind, "first", staticmethod(lambda index: index + 9)),
    "property": lambda kind: setattr(kind, "shift", property(lambda self: 10)),
    "attribute": lambda kind: setattr(kind, "offset", 11),
    "attribute of a part": lambda kind: setattr(type(kind.scale), "factor", 3),
    "part": lambda kind: setattr(kind, "scale", math.sqrt),
    "other names": read_more,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_samples_are_what_the_class_gives_now(change: Callable[[Any], None]) -> None:
    kind = make()
    dataset = kind()
    loader = fl.DataLoader(dataset, batch_size=4, cache="1MiB", num_workers=0)
    for _ in range(2):
        assert torch.cat(list(loader)).tolist() == list(range(12))
    change(kind)
    expected = [int(dataset[index]) for index in range(12)]
    with pytest.warns(UserWarning, match="was set since its last epoch"):
        assert torch.cat(list(loader)).tolist() == expected
    if change is read_more:
        kind.added = 6
        with pytest.warns(UserWarning, match="'added', which the dataset reads, was set"):
            assert torch.cat(list(loader)).tolist() == [index + 6 for index in range(12)]


ADDED = 0
LOADS = 0
UNREAD = 0
SIZES = {"side": 1}
config: Any = ModuleType("config_of_a_script")
config.factor = 1


def helper(index: int) -> int:
    return index


class Global(Dataset[Any]):
    def __init__(self) -> None:
        self.transform = lambda index: index + ADDED

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        global LOADS
        LOADS += 1
        return torch.tensor(helper(self.transform(index)) * config.factor * SIZES["side"])


GLOBALS: dict[str, tuple[Any, str, Any]] = {
    "number in a function that is held": (sys.modules[__name__], "ADDED", 3),
    "function": (sys.modules[__name__], "helper", lambda index: index + 4),
    "dict": (sys.modules[__name__], "SIZES", {"side": 2}),
    "in another module": (config, "factor", 5),
}


@pytest.mark.parametrize("change", GLOBALS.values(), ids=GLOBALS)
def test_samples_are_what_global_variables_make_them_now(
    change: tuple[Any, str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Global()
    loader = fl.DataLoader(dataset, batch_size=4, cache="1MiB", num_workers=0)
    before = LOADS
    for number in range(3):
        monkeypatch.setattr(sys.modules[__name__], "UNREAD", number)
        assert torch.cat(list(loader)).tolist() == list(range(12))
    assert LOADS - before == 12
    monkeypatch.setattr(*change)
    expected = [int(dataset[index]) for index in range(12)]
    assert expected != list(range(12))
    with pytest.warns(UserWarning, match=f"'{change[1]}', which the dataset reads, was set"):
        assert torch.cat(list(loader)).tolist() == expected


def test_what_is_not_read_and_what_loading_counts_is_no_change() -> None:
    kind = make()
    loader = fl.DataLoader(kind(), batch_size=4, cache="1MiB", num_workers=0)
    for number in range(3):
        assert torch.cat(list(loader)).tolist() == list(range(12))
        kind.unread = number
        kind.untouched = lambda self: None
    assert kind.loads == 12


class Reader:
    """A reader that a dataset opens when it first needs it."""

    scale = 1

    def __init__(self) -> None:
        self.reads, self.gain = 0, 1

    def read(self, index: int) -> int:
        self.reads += 1
        return index * self.gain * self.scale


class Tally:
    """Has no code of its own."""

    def __init__(self) -> None:
        self.total = 0


class Counted(Dataset[Any]):
    def __init__(self) -> None:
        self.seen, self.counts = np.zeros(12, bool), torch.zeros(3, dtype=torch.int64)
        self.reader: Any = None
        self.tally = Tally()
        self.latest = self.number = self.shift = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if self.reader is None:
            self.reader = Reader()
        self.seen[index] = True
        self.counts[0] += 1
        object.__setattr__(self, "latest", index)
        self.__dict__["number"] = index
        self.tally.total += 1
        index += getattr(self, "shift", 0) + 0 * (self.latest + self.number)
        return torch.tensor(self.reader.read(index) + 0 * int(self.seen[0]) + 0 * int(self.counts[0]))


def test_counts_in_arrays_and_what_is_made_when_it_is_first_needed_are_no_change() -> None:
    dataset = Counted()
    loader = fl.DataLoader(dataset, batch_size=4, cache="1MiB", num_workers=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            assert torch.cat(list(loader)).tolist() == list(range(12))
    assert dataset.tally.total == 12
    dataset.reader.gain = 2
    with pytest.warns(UserWarning, match="'gain', which the dataset reads, was set"):
        assert torch.cat(list(loader)).tolist() == list(range(0, 24, 2))
    dataset.shift = 1
    with pytest.warns(UserWarning, match="'shift', which the dataset reads, was set"):
        assert torch.cat(list(loader)).tolist() == list(range(2, 26, 2))


class Gain:
    base = 1

    def __init__(self) -> None:
        self.gain = 1

    def apply(self, value: int) -> int:
        return value * self.gain * self.base


def scaled(value: int, by: Gain) -> int:
    return by.apply(value)


def within(by: Gain) -> Callable[[int], int]:
    return lambda value: by.apply(value)


class Settings:
    gain = 1


SETTINGS, GAIN = argparse.Namespace(gain=1), Gain()


class Held(Dataset[Any]):
    """Calls what it holds."""

    def __init__(self, scale: Callable[[int], int]) -> None:
        self.scale = scale

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return self.scale(index)


HELD: dict[str, Callable[[], tuple[Any, Callable[[int], int]]]] = {
    "a method": lambda: (gain := Gain(), gain.apply),
    "a partial method": lambda: (gain := Gain(), functools.partial(gain.apply)),
    "an argument of partial": lambda: (gain := Gain(), functools.partial(scaled, by=gain)),
    "a closure": lambda: (gain := Gain(), within(gain)),
    "a global object": lambda: (GAIN, lambda value: GAIN.apply(value)),
    "a global namespace": lambda: (SETTINGS, lambda value: value * SETTINGS.gain),
    "a global class": lambda: (Settings, lambda value: value * Settings.gain),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", HELD)
def test_attributes_are_seen_of_what_functions_find(name: str, workers: int) -> None:
    owner, scale = HELD[name]()
    loader = fl.DataLoader(Held(scale), batch_size=4, cache="1MiB", num_workers=workers)
    before = owner.gain
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(2):
                assert torch.cat(list(loader)).tolist() == list(range(12))
        owner.gain = 3
        with pytest.warns(UserWarning, match="'gain', which the dataset reads, was set"):
            assert torch.cat(list(loader)).tolist() == list(range(0, 36, 3))
    finally:
        owner.gain = before
        loader.close()
