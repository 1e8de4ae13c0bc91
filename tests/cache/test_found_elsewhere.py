"""The cache goes on over what loading itself does with objects outside of the dataset, and misses nothing."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import foreload as fl
from tests.cache.test_replaced_methods import Held


class Parent:
    """Its children are more objects than are looked at."""

    def __init__(self, value: int) -> None:
        self.kids = [Parent(0) for _ in range(70 * value)]

    def val(self) -> int:
        return len(self.kids) // 70


class Entry:
    def get(self) -> int:
        return PARENT.val()


PARENT = Parent(1)
REGISTRY = {"x": Entry()}


class Record:
    def __init__(self) -> None:
        self.a = self.b = self.c = self.d = self.e = 0


RECORDS = [Record() for _ in range(100)]
SCALE = 1


def summed(record: Record) -> int:
    return record.a + record.b + record.c + record.d + record.e


class Counter:
    calls = 0

    def get(self) -> int:
        STATE.calls = STATE.calls + 1
        return 1


class Single:
    made: Single | None = None
    gain = 1

    @classmethod
    def get(cls) -> Single:
        if cls.made is None:
            cls.made = Single()
        return cls.made


COUNTER, STATE = Counter(), Counter()
ARGS = argparse.Namespace(size=1, epoch=0)


def of_args(args: argparse.Namespace) -> int:
    return int(args.size)


SCALES: dict[str, Callable[[int], int]] = {
    "in a registry": lambda value: value * REGISTRY["x"].get(),
    "many records": lambda value: value * SCALE + sum(map(summed, RECORDS)),
    "counted elsewhere": lambda value: value * COUNTER.get(),
    "made when first needed": lambda value: value * Single.get().gain,
    "one attribute of many": lambda value: value * ARGS.size,
    "handed on": lambda value: value * of_args(ARGS),
}


class Epochs(Held):
    """Reads an attribute of a name that the loop sets elsewhere."""

    epoch = 0

    def __getitem__(self, index: int) -> int:
        return super().__getitem__(index) + self.epoch


@pytest.mark.parametrize("name", SCALES)
def test_what_loading_sets_and_what_it_does_not_read_is_no_change(name: str) -> None:
    made = Held if name == "handed on" else Epochs
    loader = fl.DataLoader(made(SCALES[name]), batch_size=4, cache="1MiB", num_workers=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(4):
            ARGS.epoch = epoch
            assert torch.cat(list(loader)).tolist() == list(range(12))
    assert loader.stats()["cache"]["hits"] == 36
    loader.close()


CHANGES: dict[str, tuple[str, str, Any]] = {
    "in a registry": ("PARENT", "kids", []),
    "many records": ("", "SCALE", 0),
    "made when first needed": ("Single", "gain", 0),
    "one attribute of many": ("ARGS", "size", 0),
    "handed on": ("ARGS", "size", 0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_read_elsewhere_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, after = CHANGES[name]
    loader: fl.DataLoader[Any] = fl.DataLoader(Held(SCALES[name]), batch_size=4, cache="1MiB", num_workers=0)
    assert torch.cat(list(loader)).tolist() == list(range(12))
    assert torch.cat(list(loader)).tolist() == list(range(12))
    if owner:
        monkeypatch.setattr(globals()[owner], attribute, after)
    else:
        monkeypatch.setitem(globals(), attribute, after)
    with pytest.warns(UserWarning, match=f"'{attribute}', which the dataset reads, was set"):
        assert torch.cat(list(loader)).tolist() == [0] * 12
    loader.close()


def test_a_dataset_may_hold_a_class() -> None:
    class Made(Dataset[Any]):
        kind = Single

        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> int:
            return index * self.kind.gain

    loader: fl.DataLoader[Any] = fl.DataLoader(Made(), batch_size=4, cache="1MiB", num_workers=0)
    assert torch.cat(list(loader)).tolist() == list(range(12))
    assert torch.cat(list(loader)).tolist() == list(range(12))
    Single.gain = 0
    try:
        with pytest.warns(UserWarning, match="'gain'"):
            assert torch.cat(list(loader)).tolist() == [0] * 12
    finally:
        Single.gain = 1
        loader.close()
