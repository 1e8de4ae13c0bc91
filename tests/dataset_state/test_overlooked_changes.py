"""Changes of what a dataset holds in places that Python does not show: by loading, and by the loop."""

from __future__ import annotations

import contextvars
import os
import random
import sys
import typing
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.digest import StateWatch
from foreload.forks.descriptors import own_positions
from foreload.forks.fork import forked

VARIABLE = contextvars.ContextVar("VARIABLE", default=0)


class Tagged(torch.Tensor):
    """A tensor with attributes."""


class Key:
    """A key of a dict, with an attribute."""

    value = 0


@pytest.fixture
def settings() -> Iterator[ModuleType]:
    """A module of the user's, within a package of the user's."""
    package, module = ModuleType("overlooked"), ModuleType("overlooked.settings")
    vars(package)["settings"], vars(module)["SIZE"] = module, 1
    globals()["overlooked"] = sys.modules["overlooked"] = package
    yield module
    del sys.modules["overlooked"], globals()["overlooked"]


class Sized:
    """Names a setting of a module within a package."""

    def __getitem__(self, index: int) -> int:
        size: int = overlooked.settings.SIZE  # type: ignore[name-defined] # noqa: F821
        return index * size


LOADING: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "bit generator": (lambda: np.random.PCG64(1), lambda bits: bits.random_raw()),
    "seeds": (lambda: np.random.SeedSequence(1), lambda seeds: seeds.spawn(1)),
    "spawned generator": (lambda: np.random.default_rng(1), lambda rng: rng.spawn(1)),
    "method of a generator": (lambda: random.Random(1).random, lambda draw: draw()),
    "order of keys": (lambda: OrderedDict(a=1, b=2), lambda table: table.move_to_end("a")),
    "large array": (lambda: np.zeros(1 << 20), lambda array: array.__setitem__(77_777, 1 + array[77_777])),
    "context variable": (lambda: None, lambda _: VARIABLE.set(VARIABLE.get() + 1)),
    "environment": (lambda: None, lambda _: os.environ.update(OVERLOOKED=os.environ.get("OVERLOOKED", "") + "x")),
}


@pytest.mark.parametrize("what", LOADING)
def test_loading_changes_it(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLOOKED", "")
    make, load = LOADING[what]
    held = make()
    watch = StateWatch(SimpleNamespace(held=held))
    for _ in range(3):
        load(held)
        watch.compare()
    assert watch.change is not None


def replace_data(tensor: torch.Tensor) -> None:
    tensor.data = torch.ones(3)


def turn_gradients_off(_: Any) -> None:
    torch.set_grad_enabled(False)


def autocast(_: Any) -> None:
    torch.set_autocast_enabled("cpu", True)


LOOP: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "ordered dict": (lambda: OrderedDict(a=1), lambda table: table.update(a=2)),
    "order of keys": (lambda: OrderedDict(a=1, b=2), lambda table: table.move_to_end("a")),
    "object in an array": (lambda: np.array([{"a": 1}], object), lambda array: array[0].update(a=2)),
    "data of a tensor": (lambda: torch.zeros(3), replace_data),
    "attribute of a tensor": (
        lambda: torch.zeros(3).as_subclass(Tagged),
        lambda tensor: setattr(tensor, "tag", 1),
    ),
    "key": (lambda: {Key(): 1}, lambda table: setattr(next(iter(table)), "value", 1)),
    "gradients": (lambda: None, turn_gradients_off),
    "autocast": (lambda: None, autocast),
}


@pytest.mark.parametrize("what", LOOP)
def test_the_loop_changes_it(what: str) -> None:
    make, change = LOOP[what]
    held = CopiedState(dataset := SimpleNamespace(held=make()))
    assert held.changed() is None
    try:
        change(dataset.held)
        assert held.changed() is not None
    finally:
        torch.set_grad_enabled(True)
        torch.set_autocast_enabled("cpu", False)


def test_a_setting_of_a_module_is_seen(settings: ModuleType) -> None:
    for dataset in (Sized(), SimpleNamespace(settings=settings)):
        vars(settings)["SIZE"] = 1
        held, watch = CopiedState(dataset), StateWatch(dataset)
        vars(settings)["SIZE"] = 2
        watch.compare()
        assert (held.changed(), watch.change is None) == ("SIZE", False)


def test_columns_of_a_table_are_seen() -> None:
    pandas = pytest.importorskip("pandas")
    for change in (lambda table: table.__setitem__("a", [2]), lambda table: setattr(table, "index", [5])):
        table = pandas.DataFrame({"a": [1]})
        held = CopiedState(SimpleNamespace(table=table))
        assert held.changed() is None
        change(table)
        assert held.changed() is not None


def test_a_fork_reads_a_folder_from_a_position_of_its_own(tmp_path: Any) -> None:
    (tmp_path / "entry").touch()
    entries = os.scandir(tmp_path)

    def read(into: int) -> None:
        own_positions(with_output=True)
        os.write(into, str(len(list(entries))).encode())

    with forked(read) as fork:
        assert os.read(fork.pipe, 10) == b"1"
    assert len(list(entries)) == 1


class Generic(torch.utils.data.Dataset[Any]):
    """A dataset that imports more, as it were, with each sample: modules subscript generic classes."""

    def __getitem__(self, index: int) -> Any:
        return torch.utils.data.Dataset[type(f"Kind{index}", (), {})]  # type: ignore[misc]


def test_what_typing_remembers_is_no_state_of_a_dataset() -> None:
    for clear in typing._cleanups:  # type: ignore[attr-defined]
        clear()  # or a full cache would hide it
    dataset = Generic()
    watch = StateWatch(dataset)
    for index in range(3):
        dataset[index]
        watch.compare()
    assert watch.change is None
