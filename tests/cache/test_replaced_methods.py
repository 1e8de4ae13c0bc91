"""Caches of datasets whose class gets other methods or attributes between epochs, as notebooks reload them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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
        with pytest.warns(UserWarning, match="'added' of the dataset was set"):
            assert torch.cat(list(loader)).tolist() == [index + 6 for index in range(12)]


def test_what_is_not_read_and_what_loading_counts_is_no_change() -> None:
    kind = make()
    loader = fl.DataLoader(kind(), batch_size=4, cache="1MiB", num_workers=0)
    for number in range(3):
        assert torch.cat(list(loader)).tolist() == list(range(12))
        kind.unread = number
        kind.untouched = lambda self: None
    assert kind.loads == 12
