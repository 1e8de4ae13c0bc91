"""State in places where it is easily overlooked: closures, partial functions, deques and buffers."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from foreload.tune.dataset_state import StateWatch


class Calls:
    """A dataset whose samples are what a function returns."""

    def __init__(self, count: Any) -> None:
        self.count = count

    def __getitem__(self, index: int) -> int:
        number: int = self.count()
        return number


def closure() -> Callable[[], int]:
    """Count in a variable of a function around."""
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    return count


def attribute() -> int:
    """Count in an attribute of the function."""
    attribute.calls = getattr(attribute, "calls", 0) + 1  # type: ignore[attr-defined]
    return int(attribute.calls)  # type: ignore[attr-defined]


def count_in(place: Any) -> int:
    """Count in the last item of a sequence."""
    place[-1] += 1
    return int(place[-1])


@pytest.mark.parametrize(
    "count",
    [
        closure(),
        attribute,
        *(partial(count_in, place) for place in ([0], deque([0]), bytearray(1), array("i", [0]))),
    ],
)
def test_state_is_found_where_it_is_easily_overlooked(count: Any) -> None:
    dataset = Calls(count)
    watch = StateWatch(dataset)
    for index in range(2):
        assert dataset[index] > 0
        watch.look()
    assert watch.change is not None


@pytest.mark.parametrize("empty", [bytearray(), array("i"), deque()])
def test_what_is_empty_does_not_change(empty: Any) -> None:
    watch = StateWatch(Calls(partial(len, empty)))
    watch.look()
    assert watch.change is None
