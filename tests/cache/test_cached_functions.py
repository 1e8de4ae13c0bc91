"""Cached functions and methods are called as rarely as cachetools calls them."""

from __future__ import annotations

import dataclasses
import enum
import gc
import pickle
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import cachetools
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import foreload as fl

BY_HAND: dict[str, Callable[[int], Any]] = {
    "lru": cachetools.LRUCache,
    "lfu": cachetools.LFUCache,
    "fifo": cachetools.FIFOCache,
    "random": cachetools.RRCache,
}


@pytest.mark.parametrize("policy", BY_HAND)
@given(st.lists(st.integers(0, 9), max_size=60), st.integers(0, 6), st.integers(0, 9))
def test_methods_are_called_as_rarely_as_cachetools_calls_them(
    policy: Any, keys: list[int], maxsize: int, seed: int
) -> None:
    class Squares:
        def __init__(self) -> None:
            self.calls: list[int] = []

        @fl.cached(maxsize, policy)
        def __getitem__(self, key: int) -> int:
            self.calls.append(key)
            return key * key

    squares = Squares()
    random.seed(seed)
    assert [squares[key] for key in keys] == [key * key for key in keys]
    random.seed(seed)
    cache = BY_HAND[policy](maxsize)
    loads = []
    for key in keys:
        if key in cache:
            cache[key]
        else:
            loads.append(key)
            if maxsize:
                cache[key] = True
    assert squares.calls == loads


def test_arguments_of_all_kinds() -> None:
    calls = []

    @fl.cached(maxsize=None)
    def add(a: Any, b: Any = 0, *, c: int = 0) -> Any:
        calls.append((a, b, c))
        return a

    for _ in range(2):
        for arguments, named in (
            ((1,), {}),
            ((1, 2), {}),
            ((1,), {"b": 2}),
            ((1,), {"c": 2}),
            (("1",), {}),
            ((None,), {}),
        ):
            assert add(*arguments, **named) == arguments[0]
    assert len(calls) == 6
    assert add([1]) == add([1]) == [1]
    assert len(calls) == 8
    with pytest.raises(TypeError):
        add()


def test_what_raises_is_not_kept() -> None:
    calls = []

    @fl.cached(maxsize=4)
    def half(x: int) -> int:
        calls.append(x)
        if len(calls) < 3:
            raise ZeroDivisionError
        return x // 2

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            half(4)
    assert half(4) == half(4) == 2
    assert len(calls) == 3


@pytest.mark.parametrize("policy", BY_HAND)
def test_cached_functions_serve_threads(policy: Any) -> None:
    square = fl.cached(maxsize=20, policy=policy)(lambda x: x * x)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for key in np.random.default_rng(seed).integers(0, 60, 4000).tolist():
                assert square(key) == key * key
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_cache_goes_with_its_instance() -> None:
    class Big:
        @fl.cached(maxsize=None)
        def load(self, index: int) -> Any:
            return results.setdefault(index, Result())

    class Result:
        pass

    import weakref

    results: dict[int, Any] = {}
    big = Big()
    alive = weakref.ref(big.load(1))
    assert big.load(1) is alive()
    results.clear()
    gc.collect()
    assert alive() is not None
    del big
    gc.collect()
    assert alive() is None


@dataclasses.dataclass(frozen=True)
class Named:
    """Two of one name are equal, whatever else is in them."""

    name: str
    shift: int = dataclasses.field(default=0, compare=False)

    @fl.cached(maxsize=8)
    def load(self, index: int) -> int:
        return index + self.shift


def test_instances_that_are_equal_are_two_all_the_same() -> None:
    one, other = Named("train"), Named("train", 1000)
    assert (one.load(1), other.load(1)) == (1, 1001)


@dataclasses.dataclass
class Record:
    """A dataclass has no hash unless it is asked for one."""

    calls: list[int]

    @fl.cached(maxsize=8)
    def load(self, index: int) -> int:
        self.calls.append(index)
        return index


def test_instances_without_a_hash_have_a_cache_too() -> None:
    record = Record([])
    assert record.load(1) == record.load(1) == 1
    assert record.calls == [1]


@fl.cached(maxsize=4)
def tripled(x: int) -> int:
    """Three times as much."""
    return 3 * x


def test_a_cached_function_can_be_pickled_as_others_can() -> None:
    assert pickle.loads(pickle.dumps(tripled))(2) == 6


def test_a_cached_function_looks_like_the_function() -> None:
    assert (tripled.__name__, tripled.__doc__) == ("tripled", "Three times as much.")
    assert (tripled.__qualname__, tripled.__module__) == ("tripled", __name__)


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo"])
@given(st.lists(st.integers(0, 6)), st.integers(0, 5))
def test_cached_functions_are_called_as_rarely_as_cachetools_calls_them(
    policy: Any, keys: list[int], maxsize: int
) -> None:
    kinds: Any = {"lru": cachetools.LRUCache, "lfu": cachetools.LFUCache, "fifo": cachetools.FIFOCache}
    ours: list[int] = []
    theirs: list[int] = []
    mine = fl.cached(maxsize, policy)(lambda key: ours.append(key) or key)
    other = cachetools.cached(kinds[policy](maxsize))(lambda key: theirs.append(key) or key)
    for key in keys:
        assert mine(key) == other(key) == key
    assert ours == theirs


def test_what_has_no_hash_is_not_cached() -> None:
    assert fl.cached(4)(sum)([1, 2]) == 3
    with pytest.raises(ValueError, match="policy must be one of"):
        fl.cached(4, "mru")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="maxsize must be"):
        fl.cached(-4)


def test_equal_arguments_of_different_types_are_different() -> None:
    kind = fl.cached()(lambda argument: type(argument))
    for argument in (1, 1.0, True, np.float32(1), 1 + 0j, Level.LOW):
        assert kind(argument) is type(argument)
        assert kind(argument=argument) is type(argument)
    kinds = fl.cached()(lambda arguments: [type(argument) for argument in arguments])
    for argument in (1, 1.0, True, (1,), (1.0,)):
        assert kinds((argument,)) == kinds(frozenset([argument])) == [type(argument)]
    deep = fl.cached()(lambda arguments: type(arguments[0][0]))
    assert [deep(((1,),)), deep(((1.0,),))] == [int, float]


@pytest.mark.parametrize("name", [np.int64, np.array, torch.tensor])
def test_a_number_is_one_argument_however_it_is_given(name: Any) -> None:
    calls: list[Any] = []
    note = fl.cached()(lambda x: calls.append(x))
    for number in (3, name(3)):
        note(number)
        note(x=number)
        note((number,))
    assert calls == [3, 3, (3,)]


def test_a_tensor_that_changes_is_another_argument() -> None:
    tensor = torch.arange(3.0)
    total = fl.cached()(lambda tensor: float(tensor.sum()))
    first = fl.cached()(lambda tensors: total(*tensors))
    nested = fl.cached()(lambda tensors: first(*tensors))
    calls: list[Callable[[], float]] = [
        lambda: total(tensor),
        lambda: total(tensor=tensor),
        lambda: first((tensor,)),
        lambda: first(tensors=(tensor,)),
        lambda: first(frozenset([tensor])),
        lambda: nested(((tensor,),)),
    ]
    assert [call() for call in calls] == [3] * len(calls)
    tensor += 1
    assert [call() for call in calls] == [6] * len(calls)


class Level(enum.IntEnum):
    """Numbers of a type of their own."""

    LOW = 1


def test_a_function_stays_one_when_it_is_a_method_too() -> None:
    calls: list[Any] = []

    @fl.cached()
    def note(first: Any, second: Any = None) -> tuple[Any, ...]:
        calls.append(first)
        return first, second

    @dataclasses.dataclass(frozen=True)
    class Shifted:
        shift: int = dataclasses.field(compare=False)

        own = note

    Shifted.later = note  # type: ignore[attr-defined]
    one, other = Shifted(1), Shifted(2)
    for _ in range(2):
        assert note("a") == note(first="a") == ("a", None)
        for each in (one, other):
            for method in (each.own, each.later, partial(Shifted.own, each)):  # type: ignore[attr-defined]
                assert method(3)[0] is each
    assert calls == ["a", "a", one, other]
    with pytest.raises(TypeError):
        Shifted.own()  # type: ignore[call-arg]


def test_methods_can_be_pickled() -> None:
    named = Named("train", 5)
    assert pickle.loads(pickle.dumps(named.load))(1) == pickle.loads(pickle.dumps(Named.load))(named, 1) == 6


def test_a_method_that_is_taken_out_of_its_class_tells_instances_apart() -> None:
    load = vars(Named)["load"]
    assert [load(each, 1) for each in (Named("train"), Named("train", 5))] == [1, 6]


def test_a_method_may_be_put_into_a_class_that_exists() -> None:
    @dataclasses.dataclass(frozen=True)
    class Shifted:
        shift: int = dataclasses.field(compare=False)

    Shifted.get = fl.cached()(lambda self, index: index + self.shift)  # type: ignore[attr-defined]
    one, other = Shifted(1), Shifted(2)
    assert one == other
    assert [each.get(5) for each in (one, other, one)] == [6, 7, 6]  # type: ignore[attr-defined]
