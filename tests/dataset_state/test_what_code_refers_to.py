"""Everything that samples can be made from is observed, in any way that the dataset's code refers to it."""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import random
import subprocess
import sys
import threading
import types
import zipfile
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.digest import StateWatch, made_of
from foreload.dataset_state.sealed import find_sealed
from foreload.dataset_state.walk import find_open_file

SCALE = [1]
file: Any = None
loader: Any = None


class Reads:
    """A dataset with whatever attributes a test wants."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Decorated(Reads):
    @torch.no_grad()
    def __getitem__(self, index: int) -> int:
        return index * SCALE[0]


class Dispatched(Reads):
    @functools.singledispatchmethod
    def scaled(self, index: int) -> int:
        return index * SCALE[0]

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        yield SCALE[0]


class Config(dict[str, Any]):
    """Iterates in its own way, and reads files for its values."""

    def __iter__(self) -> Any:
        return iter(sorted(self.keys()))

    def values(self) -> Any:
        raise OSError("a file is missing")


class Rows(list[Any]):
    def __iter__(self) -> Any:
        raise OSError("a file is missing")


class Private:
    __slots__ = ("__dunder__", "__own")

    def __init__(self) -> None:
        self.__dunder__, self.__own = {"a": 1}, [1]

    def touch(self) -> None:
        self.__own.append(2)


class Bytes(bytearray):
    scale = 1


class Scaled(TorchDataLoader[int]):
    scale = 1


def scaled(index: int, by: list[int] = [1]) -> int:
    return index * by[0]


def other(index: int, by: list[int] = [1]) -> int:
    return -index * by[0]


def tagged(value: Any) -> Any:
    value.scale = 1
    return value


def _module(**values: Any) -> types.ModuleType:
    module = types.ModuleType("settings_of_a_test")
    vars(module).update(values)
    return module


def set_scale(holder: Any) -> None:
    SCALE.append(SCALE.pop() + 1)


def _relabel(holder: Any) -> None:
    holder.get.__self__[0] = 7


def _move(holder: Any) -> None:
    holder.get.__self__.move_to_end(0)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "a decorated method's variable": (Decorated, set_scale),
    "variables of a method that is dispatched": (Dispatched, set_scale),
    "a mapping that iterates in its own way": (
        lambda: Reads(config=Config(a=1)),
        lambda holder: holder.config.update(a=2),
    ),
    "a list that cannot be iterated over": (
        lambda: Reads(rows=Rows([1, 2])),
        lambda holder: holder.rows.__setitem__(0, 3),
    ),
    "a bound method of an array": (lambda: Reads(get=np.zeros(4).__getitem__), _relabel),
    "a bound method of a tensor": (lambda: Reads(get=torch.zeros(4).__getitem__), _relabel),
    "a bound method of an ordered dict": (lambda: Reads(get=OrderedDict({0: 1, 1: 2}).__getitem__), _relabel),
    "the order of an ordered dict": (lambda: Reads(get=OrderedDict({0: 1, 1: 2}).__getitem__), _move),
    "a bound method of a deque": (lambda: Reads(get=deque([1, 2]).__getitem__), _relabel),
    "a generator of torch": (
        lambda: Reads(generator=torch.Generator()),
        lambda holder: holder.generator.manual_seed(5),
    ),
    "a generator of NumPy": (
        lambda: Reads(generator=np.random.default_rng(0)),
        lambda holder: holder.generator.random(),
    ),
    "a module that it holds": (
        lambda: Reads(settings=_module(scale=1)),
        lambda holder: setattr(holder.settings, "scale", 2),
    ),
    "a slot between double underscores": (
        lambda: Reads(private=Private()),
        lambda holder: holder.private.__dunder__.update(a=2),
    ),
    "a private slot": (lambda: Reads(private=Private()), lambda holder: holder.private.touch()),
    "the code of a function": (
        lambda: Reads(function=types.FunctionType(scaled.__code__, globals(), "scaled", ([1],))),
        lambda holder: setattr(holder.function, "__code__", other.__code__),
    ),
    "the defaults of a function": (
        lambda: Reads(function=types.FunctionType(scaled.__code__, globals(), "scaled", ([1],))),
        lambda holder: setattr(holder.function, "__defaults__", ([2],)),
    ),
    "an attribute of a function": (
        lambda: Reads(function=types.FunctionType(scaled.__code__, globals(), "scaled", ([1],))),
        lambda holder: setattr(holder.function, "scale", 2),
    ),
    "the class of an object": (
        lambda: Reads(part=Reads(a=1)),
        lambda holder: setattr(holder.part, "__class__", Decorated),
    ),
    "an attribute of a partial": (
        lambda: Reads(part=functools.partial(scaled, 1)),
        lambda holder: setattr(holder.part, "scale", 2),
    ),
    "what a partial calls": (
        lambda: Reads(part=functools.partial(scaled, 1)),
        lambda holder: holder.part.__setstate__((other, (1,), {}, None)),
    ),
    "an attribute of bytes": (lambda: Reads(part=Bytes()), lambda holder: setattr(holder.part, "scale", 2)),
    "an attribute of a tensor": (
        lambda: Reads(part=tagged(torch.zeros(2))),
        lambda holder: setattr(holder.part, "scale", 2),
    ),
    "an attribute of a tensor that had none": (
        lambda: Reads(part=torch.zeros(2)),
        lambda holder: setattr(holder.part, "scale", 2),
    ),
    "how a loader within it collates": (
        lambda: Reads(loader=TorchDataLoader([1, 2], collate_fn=sum)),
        lambda holder: setattr(holder.loader, "collate_fn", min),
    ),
    "an attribute of a loader of one's own class": (
        lambda: Reads(loader=Scaled([1, 2])),
        lambda holder: setattr(holder.loader, "scale", 2),
    ),
    "what a dict makes by default": (
        lambda: Reads(part=defaultdict(int)),
        lambda holder: setattr(holder.part, "default_factory", list),
    ),
    "the sign of zero": (lambda: Reads(part=0.0), lambda holder: setattr(holder, "part", -0.0)),
    "an object in a structured array": (
        lambda: Reads(part=np.array([(1, "a")], dtype=[("n", int), ("s", object)])),
        lambda holder: holder.part["s"].__setitem__(0, "b"),
    ),
    "permuted axes": (
        lambda: Reads(part=np.zeros((4, 5, 6, 7), np.uint8).transpose(0, 2, 3, 1)),
        lambda holder: holder.part.__setitem__((1, 2, 3, 4), 1),
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_by_the_loop_is_seen(what: str) -> None:
    make, change = CHANGES[what]
    holder = make()
    state = CopiedState(holder)
    assert state.changed() is None
    change(holder)
    assert state.changed() is not None


def test_the_loops_own_draws_are_no_change() -> None:
    holder = Reads(python=random.random, numpy=np.random.random, torch=torch.default_generator)
    state = CopiedState(holder)
    random.random(), np.random.random(), torch.rand(1)
    assert state.changed() is None


def test_what_a_bound_method_belongs_to_is_looked_at(tmp_path: Path) -> None:
    mac = hmac.new(b"key", digestmod="sha256")
    assert find_sealed(Reads(update=mac.update)) is not None
    assert find_sealed(Reads(decode=json.JSONDecoder().decode)) is None  # which has no state
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        assert find_open_file(Reads(read=archive.read)) is not None


def test_hits_of_a_function_that_keeps_what_it_returns_are_no_change() -> None:
    @functools.lru_cache(maxsize=8)
    def table(name: str) -> list[str]:
        return [name]

    for name in "abc":
        table(name)
    state = CopiedState(Reads(table=table))
    table("a")
    assert state.changed() is None
    table("d")
    assert state.changed() is not None


class NamedAlike(Reads):
    """Its attributes have the names of variables that the script uses for other things."""

    def __getitem__(self, index: int) -> Any:
        return self.file, self.loader


def test_a_variable_that_only_has_the_name_of_an_attribute_is_not_the_datasets() -> None:
    global file, loader
    dataset = NamedAlike(file=None, loader=None)
    state, watch = CopiedState(dataset), StateWatch(dataset)
    with open(__file__) as file:
        loader = TorchDataLoader([1, 2])
        watch.compare()
        assert state.changed() is None
        assert watch.change is None
    file = loader = None


def test_a_long_list_hides_no_other_value() -> None:
    dataset = Reads(captions=None, mean=[0.1, 0.2], nested=[[1, [2]]])
    watch = StateWatch(dataset)
    dataset.captions = [f"caption {number}" for number in range(30_000)]
    watch.compare()
    assert watch.change is None


def test_many_records_are_too_many_to_look_at_each() -> None:
    records = [{"box": [number]} for number in range(120_000)]
    assert "more than 200,000 lists and dicts" in str(CopiedState(Reads(records=records)).untold)
    assert CopiedState(Reads(records=records[:50_000])).untold is None


def test_places_of_what_is_made_do_not_depend_on_the_order_of_names(tmp_path: Any) -> None:
    program = """
import types, sys
settings = types.ModuleType("settings"); sys.modules["settings"] = settings
vars(settings).update(TABLE=None, A=[1], B=[2], C=[3], D=[4])
class Reads:
    def __getitem__(self, index):
        if settings.TABLE is None: settings.TABLE = [1]
        return settings.TABLE, settings.A, settings.B, settings.C, settings.D
from foreload.dataset_state.copied import CopiedState
dataset = Reads(); state = CopiedState(dataset); dataset[0]; print(sorted(state.made()))
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for seed in "012"
    }
    assert len(found) == 1
    assert "TABLE" in found.pop()


def test_a_thread_of_the_datasets_may_change_what_is_looked_at() -> None:
    cache: dict[int, Any] = {}
    is_over = threading.Event()

    def fill() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            cache[number % 5000] = [number]
            cache.pop((number * 7) % 5000, None)

    thread = threading.Thread(target=fill)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            made_of(Reads(cache=cache, queue=deque([cache])))
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        thread.join()
