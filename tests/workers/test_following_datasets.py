"""Changes of the loop to a dataset are in the next batch, as in torch without workers, whoever loads."""

from __future__ import annotations

import contextvars
import ctypes
import decimal
import io
import itertools
import mmap
import multiprocessing
import os
from collections.abc import Callable, Iterator
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Sampler

import foreload as fl
from tests.pairwise import pairwise
from tests.workers.followed import COUNTS, SIZE, Squares, stock


class Holds(Squares):
    """Samples depend on what it holds."""

    shared = 1  # by all instances

    def __init__(self) -> None:
        self.scale = 1
        self.inner = SimpleNamespace(scale=1, further=SimpleNamespace(scale=1))
        self.items = [1, 2, 3]
        self.table = {"a": {"b": 1}}
        self.tensor = torch.ones(4)
        self.array = np.ones(4)
        self.large = np.ones((600, 600))
        self.objects = np.array([1, 2], object)
        self.names = {1}
        self.bytes = bytearray(b"abc")
        self.words = [str(number) for number in range(5000)]
        self.function = lambda x: x + 1
        self.number = multiprocessing.get_context("fork").Value(ctypes.c_int, 1)
        self.slotted = Slotted()
        self.buffer = io.BytesIO(b"abc")
        self.map = mmap.mmap(-1, 10)
        self.behind = {"a": 1}
        self.proxy = MappingProxyType(self.behind)
        self.view = memoryview(self.bytes)

    def __getitem__(self, index: int) -> Any:
        further = self.inner.further.scale
        held = self.scale, self.inner.scale, further, sum(self.items), self.table["a"]["b"], self.shared
        numbers = float(self.tensor.sum()), float(self.array.sum()), float(self.large[0, 0]), sum(self.objects)
        others = sum(self.names), self.bytes[0], self.function(index), self.number.value, self.slotted.value
        memory = self.buffer.getvalue()[1], self.map[1], self.proxy["a"]
        around = int(os.environ.get("SCALE", "0")), len(os.getcwd()), VARIABLE.get(), decimal.getcontext().prec
        around = (*around, torch.get_default_dtype().itemsize)
        words = hash(self.words[2500]) % 1000, FACTOR, Table.size
        return torch.tensor([float(each) for each in (index, *held, *numbers, *others, *words, *memory, *around)])

    def set_epoch(self, epoch: int) -> None:
        self.scale = epoch


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1


class Table:
    size = 1


FACTOR = 1

VARIABLE = contextvars.ContextVar("VARIABLE", default=1)


def set_factor(dataset: Holds, value: int) -> None:
    globals()["FACTOR"] = value


def set_function(dataset: Holds, value: int) -> None:
    dataset.function = lambda x: x + value


def set_value(dataset: Holds, value: int) -> None:
    dataset.number.value = value


CHANGES: dict[str, Callable[[Holds, int], Any]] = {
    "attribute": lambda dataset, value: setattr(dataset, "scale", value),
    "inner attribute": lambda dataset, value: setattr(dataset.inner, "scale", value),
    "further attribute": lambda dataset, value: setattr(dataset.inner.further, "scale", value),
    "set_epoch": lambda dataset, value: dataset.set_epoch(value),
    "list": lambda dataset, value: dataset.items.append(value),
    "item": lambda dataset, value: dataset.items.__setitem__(1, value),
    "dict": lambda dataset, value: dataset.table["a"].update(b=value),
    "tensor": lambda dataset, value: dataset.tensor.add_(value),
    "data": lambda dataset, value: dataset.tensor.data.add_(value),
    "array": lambda dataset, value: dataset.array.__setitem__(2, value),
    "large array": lambda dataset, value: dataset.large.__imul__(value),
    "objects": lambda dataset, value: dataset.objects.__setitem__(0, value),
    "set": lambda dataset, value: dataset.names.add(value),
    "bytes": lambda dataset, value: dataset.bytes.__setitem__(0, value),
    "long list": lambda dataset, value: dataset.words.__setitem__(2500, f"word {value}"),
    "slot": lambda dataset, value: setattr(dataset.slotted, "value", value),
    "class": lambda dataset, value: setattr(Holds, "shared", value),
    "another class": lambda dataset, value: setattr(Table, "size", value),
    "global": set_factor,
    "function": set_function,
    "shared memory": set_value,
    "code": lambda dataset, value: setattr(Holds, "__len__", lambda self: SIZE),
    "buffer": lambda dataset, value: dataset.buffer.getbuffer().__setitem__(1, value),
    "map": lambda dataset, value: dataset.map.__setitem__(1, value),
    "behind a proxy": lambda dataset, value: dataset.behind.update(a=value),
    "behind a view": lambda dataset, value: dataset.view.__setitem__(0, value),
    "environment": lambda dataset, value: os.environ.update(SCALE=str(value)),
    "directory": lambda dataset, value: os.chdir("/tmp" if value % 2 else "/"),
    "default dtype": lambda dataset, value: torch.set_default_dtype(torch.float64),
    "context variable": lambda dataset, value: VARIABLE.set(value),
    "decimals": lambda dataset, value: setattr(decimal.getcontext(), "prec", value + 10),
    "nothing": lambda dataset, value: None,
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    length, folder, precision = Holds.__len__, os.getcwd(), decimal.getcontext().prec
    yield
    os.environ.pop("SCALE", None)
    os.chdir(folder)
    torch.set_default_dtype(torch.float32)
    VARIABLE.set(1)
    decimal.getcontext().prec = precision
    Holds.shared = Table.size = globals()["FACTOR"] = 1
    Holds.__len__ = length  # type: ignore[method-assign]


def with_changes(loader: Any, change: str, moments: tuple[int, ...], epochs: int = 5) -> list[Any]:
    """Return the batches of epochs in which the dataset is changed at some steps, counted over all epochs."""
    Holds.shared = Table.size = globals()["FACTOR"] = 1
    os.environ.pop("SCALE", None)
    os.chdir("/")
    torch.set_default_dtype(torch.float32)
    VARIABLE.set(1)
    decimal.getcontext().prec = 28
    torch.manual_seed(3)
    found = []
    steps = itertools.count()
    for _ in range(epochs):
        batches = iter(loader)
        if 100 in moments:
            CHANGES[change](loader.dataset, 7)  # between iter() and the first batch
        for batch in batches:
            found += [batch.tolist(), torch.rand(1).item()]
            step = next(steps)
            if step in moments:
                CHANGES[change](loader.dataset, step + 2)
    return found


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("change", "count", "moments"), pairwise(CHANGES, COUNTS, [(1, 2), (4,)]))
def test_what_the_loop_changes_is_in_the_next_batch(
    change: str, count: int, moments: tuple[int, ...], choose: Callable[[int], None]
) -> None:
    choose(count)
    # All moments are in the first epoch; later ones are for the test below.
    loaders = [kind(Holds(), batch_size=8, shuffle=True) for kind in (fl.DataLoader, TorchDataLoader)]
    found, expected = (with_changes(loader, change, moments, epochs=3) for loader in loaders)
    assert found == expected


OPTIONS: dict[str, dict[str, Any]] = {
    "persistent": {"persistent_workers": True, "shuffle": False},
    "between": {"moments": (5, 11)},  # after the last batch of an epoch
    "persistent between": {"persistent_workers": True, "moments": (5, 11, 13), "shuffle": False},
    "before the first batch": {"moments": (100,)},
    "persistent before": {"persistent_workers": True, "moments": (100,), "shuffle": False},
    "sequential": {"shuffle": False},
    "deep": {"prefetch_factor": 8},
    "last": {"moments": (29,)},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("options", "change", "count"), pairwise(OPTIONS, ["attribute", "item", "tensor"], COUNTS)
)
def test_changes_are_seen_at_any_moment(
    options: str, change: str, count: int, choose: Callable[[int], None]
) -> None:
    choose(count)
    given = {"batch_size": 8, "shuffle": True, "moments": (2, 8, 20)} | OPTIONS[options]
    moments = given.pop("moments")
    with_workers = with_changes(fl.DataLoader(Holds(), **given), change, moments)
    expected = with_changes(stock(Holds(), given), change, moments)
    assert with_workers[::2] == expected[::2]
    if "persistent" not in options:  # these workers keep their base seed, which torch draws once
        assert with_workers[1::2] == expected[1::2]


@pytest.mark.parametrize("count", COUNTS)
def test_batches_in_any_order_have_what_the_loop_has_set(count: int, choose: Callable[[int], None]) -> None:
    choose(count)
    dataset = Holds()
    found = []
    for step, batch in enumerate(fl.DataLoader(dataset, batch_size=8, in_order=False)):
        assert batch[:, 1].tolist() == [step + 1] * 8
        found += batch[:, 0].tolist()
        dataset.scale += 1
    assert sorted(found) == list(range(SIZE))


class Curriculum(Sampler[int]):
    """Reads an attribute of the dataset that the loop sets, which samples show too."""

    def __init__(self, dataset: Holds) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[int]:
        for number in range(SIZE):
            yield (number * self.dataset.scale) % SIZE


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
def test_samplers_and_samples_may_follow_one_attribute(count: int, choose: Callable[[int], None]) -> None:
    choose(count)
    found = []
    for kind in (fl.DataLoader, TorchDataLoader):
        dataset = Holds()
        loader: Any = kind(dataset, batch_size=4, sampler=Curriculum(dataset))
        found.append(with_changes(loader, "attribute", (1, 2, 9, 17)))
    assert found[0] == found[1]


class SetsFromSampler(Sampler[int]):
    """Changes the dataset itself, right before it yields."""

    def __init__(self, dataset: Holds) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[int]:
        for number in range(SIZE):
            self.dataset.scale = number // 10
            yield number


@pytest.mark.parametrize("count", COUNTS)
def test_samplers_may_change_the_dataset(count: int, choose: Callable[[int], None]) -> None:
    choose(count)
    found = []
    for kind in (fl.DataLoader, TorchDataLoader):
        dataset = Holds()
        found.append([batch.tolist() for batch in kind(dataset, batch_size=4, sampler=SetsFromSampler(dataset))])
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["transform", "collate_fn"])
@pytest.mark.parametrize("count", COUNTS)
def test_what_is_applied_to_samples_may_be_changed(kind: str, count: int, choose: Callable[[int], None]) -> None:
    choose(count)
    scale = SimpleNamespace(factor=1)

    def scaled(sample: Any) -> Any:
        return [each * scale.factor for each in sample] if kind == "collate_fn" else sample * scale.factor

    loader = fl.DataLoader(Squares(), batch_size=4, **{kind: scaled})
    found = []
    for step, batch in enumerate(loader):
        found += list(map(int, batch))
        scale.factor = step + 2
    assert found == [index * index * (index // 4 + 1) for index in range(SIZE)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("moments", [(0,), (2, 3), (7,), (100,)])
@pytest.mark.filterwarnings("ignore:'scale', which the dataset reads, was set since its last epoch")
def test_the_cache_keeps_what_was_loaded_when_the_loop_requested_it(
    moments: tuple[int, ...], count: int, choose: Callable[[int], None]
) -> None:
    """Until the next epoch, when it drops the samples of a dataset in which the loop has set something."""
    choose(count)
    loader = fl.DataLoader(Holds(), batch_size=8, cache="64MiB")
    scale, steps, kept = 1, itertools.count(), dict[int, int]()
    began_with = scale
    for _ in range(3):
        if began_with != scale:
            kept, began_with = {}, scale
        for batch in loader:
            for index, found in batch[:, :2].tolist():
                assert found == kept.setdefault(index, scale)
            if (step := next(steps)) in moments:
                loader.dataset.scale = scale = step + 2
