"""Objects that loading makes are told apart by their place, and by what they hold open."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.probes.fills import contents_of, opens
from foreload.dataset_state.probes.path import ValuePath


class Opened:
    """Holds a file, beside a number that it is known by."""

    def __init__(self, number: int, file: Any) -> None:
        self.number, self.file = number, file


def test_what_holds_a_file_is_told_from_what_holds_none() -> None:
    place = ValuePath((("dataset", 0),), "Attributes", "reader", 0)
    with open(__file__) as file:
        for number in range(600):
            assert opens(contents_of([(place, Opened(number, file))]))
            assert not opens(contents_of([(place, Opened(number, None))]))


def test_what_is_lacking_is_told_by_its_place() -> None:
    dataset = SimpleNamespace()
    dataset.parts = [None, None, 3]
    state = CopiedState(dataset)
    dataset.parts[1] = 2
    fills = state.made()
    dataset.parts[1] = None
    state = CopiedState(dataset, fills=fills)
    assert state.lacks()
    dataset.parts[1] = 2
    assert not state.lacks()


def test_any_of_several_files_may_be_opened_if_one_was() -> None:
    def shards() -> SimpleNamespace:
        return SimpleNamespace(files=[None] * 4, other=None)

    with open(__file__) as file:
        dataset = shards()
        state = CopiedState(dataset)
        dataset.files[1] = file
        fills = state.made()
        for place, is_known in ((1, True), (3, True), (None, False)):
            dataset = shards()
            state = CopiedState(dataset, fills=fills)
            if place is None:
                dataset.other = file
            else:
                dataset.files[place] = file
            assert (state.changed_by_loading() is None) is is_known


class Indexed(dict[str, Any]):
    """A mapping with an attribute, and a slot beside others."""

    __slots__ = ("__dict__", "slot")

    index: Any = None


def _in_global(holder: Any) -> None:
    global made
    made = [1, 2]


def _reset(holder: Any) -> None:
    global made
    made = None
    holder.words.index = None
    if hasattr(holder.words, "slot"):
        del holder.words.slot


made: Any = None


class Words:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __getitem__(self, index: int) -> Any:
        return made


@pytest.mark.parametrize(
    "make",
    [
        _in_global,
        lambda holder: setattr(holder.words, "index", [1, 2]),
        lambda holder: setattr(holder.words, "slot", [1, 2]),
    ],
    ids=["global", "attribute", "slot"],
)
def test_what_lies_beside_is_not_lacking(make: Callable[[Any], None]) -> None:
    dataset = Words(words=Indexed(a=None))
    _reset(dataset)
    state = CopiedState(dataset)
    make(dataset)
    fills = state.made()
    _reset(dataset)
    state = CopiedState(dataset, fills=fills)
    assert state.lacks()
    make(dataset)
    assert not state.lacks()
    assert state.changed_by_loading() is None
    assert state.makes
    _reset(dataset)
