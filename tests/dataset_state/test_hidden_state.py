"""State in places where it is easily overlooked: closures, partial functions, deques and buffers."""

from __future__ import annotations

import fnmatch
import json
import logging
from array import array
from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from foreload.dataset_state.digest import StateWatch, digests_of
from foreload.dataset_state.walk import find_open_file


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


calls = 0


def global_variable() -> int:
    """Count in a variable of the module."""
    global calls
    calls += 1
    return calls


class Shared:
    """Holds a count for all."""

    calls = 0


def class_attribute() -> int:
    """Count in a class that the function names."""
    Shared.calls += 1
    return Shared.calls


def default_value(place: list[int] = [0]) -> int:
    """Count in the default value of an argument."""
    place[0] += 1
    return place[0]


def only_keyword(*, place: list[int] = [0]) -> int:
    """The same of a keyword argument."""
    place[0] += 1
    return place[0]


def through_another() -> int:
    """Count in a function that this one calls."""
    return global_variable()


def in_a_comprehension() -> int:
    """Count in a function inside."""
    return next(global_variable() for _ in range(2))


numbers = np.random.default_rng(0)


@lru_cache(1)
def cached(index: int) -> int:
    """Draw from a generator of the module, and keep it for a while."""
    return int(numbers.integers(9))


def draws() -> int:
    """Draw now and then."""
    cached.cache_clear()
    return 1 + cached(3)


class Call:
    """A callable object whose class uses global variables."""

    def __call__(self) -> int:
        return self.next

    @property
    def next(self) -> int:
        """The next number."""
        return global_variable()


def count_in(place: Any) -> int:
    """Count in the last item of a sequence."""
    place[-1] += 1
    return int(place[-1])


@pytest.mark.parametrize(
    "count",
    [
        closure(),
        attribute,
        global_variable,
        class_attribute,
        default_value,
        only_keyword,
        through_another,
        in_a_comprehension,
        draws,
        Call(),
        lambda: global_variable(),
        *(partial(count_in, place) for place in ([0], deque([0]), bytearray(1), array("i", [0]))),
    ],
)
def test_state_is_found_where_it_is_easily_overlooked(count: Any) -> None:
    dataset = Calls(count)
    watch = StateWatch(dataset)
    for index in range(2):
        assert dataset[index] > 0
        watch.compare()
    assert watch.change is not None


@pytest.mark.parametrize("empty", [bytearray(), array("i"), deque()])
def test_what_is_empty_does_not_change(empty: Any) -> None:
    watch = StateWatch(Calls(partial(len, empty)))
    watch.compare()
    assert watch.change is None


@pytest.mark.parametrize("count", [global_variable, class_attribute, default_value, draws, Call()])
def test_state_of_a_transform_is_found(count: Any) -> None:
    """Transforms of samples are looked through like the dataset, a plain function too."""
    watch = StateWatch([1, 2], count)
    for _ in range(2):
        assert count() > 0
        watch.compare()
    assert watch.change is not None


def test_a_long_list_hides_nothing() -> None:
    class Counts:
        def __init__(self) -> None:
            self.calls = 0
            self.paths = [f"{number}.png" for number in range(50_000)]

        def __getitem__(self, index: int) -> int:
            self.calls += 1
            return self.calls

    dataset = Counts()
    watch = StateWatch(dataset)
    for index in range(2):
        assert dataset[index] > 0
        watch.compare()
    assert watch.change == "calls"


log = logging.getLogger("hidden")


def logs() -> int:
    """Change only what is no part of a sample: a logger, and state of installed packages."""
    log.debug("one more")
    return len(json.dumps({"path": fnmatch.translate("*.png")})) + torch.ones(1).int().item()


def test_state_of_loggers_and_installed_packages_does_not_count() -> None:
    handler = logging.StreamHandler()
    log.addHandler(handler)
    try:
        dataset = Calls(logs)
        watch = StateWatch(dataset)
        for index in range(2):
            assert dataset[index] > 0
            watch.compare()
        assert watch.change is None
        assert find_open_file(dataset) is None
    finally:
        log.removeHandler(handler)
    assert not any(name.startswith(("json", "torch")) for name in digests_of(dataset))
