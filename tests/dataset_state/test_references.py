"""All probes at once, by the references: what is told so is what each probe tells."""

import types
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreload import _native
from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.probes.containers import Contents, Records
from foreload.dataset_state.probes.probe import MISSING, Attributes, Value, is_same
from foreload.dataset_state.probes.references import References

VALUES = [0, 1, True, 0.0, -0.0, 1.0, float("nan"), 10**20, "a", "b" * 30, None, (1, 2), b"x"]
values = st.sampled_from(VALUES)


class Box:
    """Has attributes."""


class Slotted:
    """Has slots, of which one may be empty."""

    __slots__ = ("first", "second")


def parts_of(values: list[Any]) -> dict[str, Any]:
    """Return one of each kind of holder, with these values."""
    box, slotted = Box(), Slotted()
    vars(box).update({f"a{place}": value for place, value in enumerate(values)})
    slotted.first = values[0]
    return {
        "box": box,
        "slotted": slotted,
        "list": list(values),
        "dict": {f"k{place}": value for place, value in enumerate(values)},
        "records": [{"value": value, "many": [value]} for value in values],
        "variables": {"first": values[0], "last": values[-1]},
    }


def probes_at(parts: dict[str, Any]) -> list[Any]:
    names = parts["variables"]
    slots = [Value(slot, lambda slot=slot: getattr(parts["slotted"], slot, MISSING), (parts["slotted"], slot))
             for slot in Slotted.__slots__]  # fmt: skip
    return [
        Attributes("box", parts["box"], ().__contains__),
        Contents("list", parts["list"]),
        Contents("dict", parts["dict"]),
        Records("records", parts["records"]),
        *(Value(name, lambda name=name: names.get(name, MISSING), (names, name)) for name in ("first", "other")),
        *slots,
    ]


def set_attribute(parts: dict[str, Any], place: int, value: Any) -> None:
    setattr(parts["box"], f"a{place}", value)


def set_slot(parts: dict[str, Any], place: int, value: Any) -> None:
    setattr(parts["slotted"], Slotted.__slots__[place % 2], value)


def set_item(parts: dict[str, Any], place: int, value: Any) -> None:
    parts["list"][place % len(parts["list"])] = value


def set_key(parts: dict[str, Any], place: int, value: Any) -> None:
    parts["dict"][f"k{place}"] = value


def move_key(parts: dict[str, Any], place: int, value: Any) -> None:
    name = next(iter(parts["dict"]))
    parts["dict"][name] = parts["dict"].pop(name)


def rename_attribute(parts: dict[str, Any], place: int, value: Any) -> None:
    own = vars(parts["box"])
    own["b"] = own.popitem()[1]


def move_boundary(parts: dict[str, Any], place: int, value: Any) -> None:
    one, other, *_ = parts["records"] * 2
    if one is not other:
        other["many"].insert(0, one["many"].pop())


def set_variable(parts: dict[str, Any], place: int, value: Any) -> None:
    parts["variables"][["first", "other"][place % 2]] = value


def replace_attributes(parts: dict[str, Any], place: int, value: Any) -> None:
    parts["box"].__dict__ = dict(vars(parts["box"]))


def nothing(parts: dict[str, Any], place: int, value: Any) -> None: ...


CHANGES = [
    *(set_attribute, set_slot, set_item, set_key, move_key),
    *(rename_attribute, move_boundary, set_variable, replace_attributes, nothing),
]


@given(st.lists(values, min_size=1, max_size=5), st.sampled_from(CHANGES), st.integers(0, 6), values)
def test_where_references_hold_no_probe_tells_of_a_change(held: Any, change: Any, place: int, value: Any) -> None:
    parts = parts_of(held)
    probes = probes_at(parts)
    references = References(probes)
    assert references.hold()
    change(parts, place, value)
    told = [probe.name for probe in probes if probe.changed() is not None]
    if references.hold():
        assert told == []
    if change is nothing:
        assert references.hold()


@given(st.lists(values, max_size=8), st.lists(values, max_size=8), st.data())
def test_contents_are_compared_as_python_compares_them(one: Any, other: Any, data: Any) -> None:
    before = [one, dict(enumerate(other))]
    flat = [*one, *range(len(other)), *other]
    addresses = np.array([id(each) for each in flat], np.int64)
    sizes = np.array([len(one), len(other)])
    assert _native.are_contents(before, sizes, addresses)
    now = [data.draw(st.sampled_from([one, other, [*one, None]])), dict(enumerate(data.draw(st.just(other))))]
    expected = len(now[0]) == len(one) and all(a is b for a, b in zip(now[0], one, strict=True))
    assert _native.are_contents(now, sizes, addresses) == expected


def test_a_value_of_the_same_address_is_the_same_value() -> None:
    box = Box()
    box.big = 10**30  # type: ignore[attr-defined]
    references = References([Attributes("box", box, ().__contains__)])
    for _ in range(50):  # memory that is freed would soon be another number's
        box.big = 10**30 + 1  # type: ignore[attr-defined]
        assert not references.hold()


def test_what_is_made_anew_each_time_is_asked_as_before() -> None:
    class Lazy:
        @property
        def number(self) -> float:
            return float("1.5")

    lazy = Lazy()
    probe = Value("number", lambda: lazy.number, (lazy, "number"))
    assert References([probe]).hold()
    assert probe.changed() is None


def test_an_attribute_that_raises_is_left_to_its_probe() -> None:
    class Angry:
        raises = False

        def __getattribute__(self, name: str) -> Any:
            if name == "size" and Angry.raises:
                raise RuntimeError("not now")
            return object.__getattribute__(self, name)

    angry = Angry()
    angry.size = 3  # type: ignore[attr-defined]
    references = References([Value("size", lambda: 3, (angry, "size"))])
    assert references.hold()
    Angry.raises = True
    assert not references.hold()


def test_a_module_whose_variable_goes_is_seen() -> None:
    module = types.ModuleType("somewhere")
    module.scale = 2  # type: ignore[attr-defined]
    names = vars(module)
    references = References([Value("scale", lambda: names.get("scale", MISSING), (names, "scale"))])
    assert references.hold()
    del module.scale  # type: ignore[attr-defined]
    assert not references.hold()


@pytest.mark.parametrize("lengths", [(1, 2), (2, 1)])
def test_columns_of_other_lengths_are_refused(lengths: tuple[int, int]) -> None:
    names, addresses = ["a"] * lengths[0], np.zeros(lengths[1], np.int64)
    with pytest.raises(ValueError, match=r"names|addresses"):
        _native.are_variables([{}] * lengths[1], names, addresses)


@given(st.lists(values, min_size=1, max_size=4), values, st.integers(0, 3))
def test_a_dataset_tells_of_the_changes_that_its_probes_tell_of(held: Any, value: Any, place: int) -> None:
    dataset = Box()
    dataset.values, dataset.boxes = list(held), [Box() for _ in held]  # type: ignore[attr-defined]
    for box, each in zip(dataset.boxes, held, strict=True):  # type: ignore[attr-defined]
        box.value = each
    state = CopiedState(dataset)
    assert state.changed() is None
    box = dataset.boxes[place % len(held)]  # type: ignore[attr-defined]
    before, box.value = box.value, value
    assert (state.changed() is None) == is_same(value, before)
    box.value = before
    assert state.changed() is None


def test_what_another_thread_changes_while_references_are_made_is_seen() -> None:
    class Late(Records):
        """Changes a record once it has been compared."""

        def add_to(self, references: References) -> bool:
            told = super().add_to(references)
            records[0]["value"] = "other"
            return told

    class Early(Records):
        """Changes a record right before it is told."""

        def add_to(self, references: References) -> bool:
            records[0]["value"] = "other"
            return super().add_to(references)

    for kind in (Late, Early):
        records = [{"value": "one"}, {"value": "two"}]
        assert not References([kind("records", records)]).hold()
    names = {"scale": 2}
    references = References([probe := Value("scale", lambda: names.get("scale", MISSING), (names, "scale"))])
    assert references.hold()

    class Going(dict):  # type: ignore[type-arg]
        """The variable goes once it has been asked for."""

    going: dict[str, int] = {"scale": 2}
    probe = Value("scale", lambda: going.get("scale", MISSING) if going else probe.before, (going, "scale"))
    value = probe.before
    going.clear()
    probe.before = value
    assert not References([probe]).hold()
    assert References([Value("scale", lambda: 1, (Going(scale=2), "scale"))]).hold()


def test_an_empty_cell_is_left_to_its_probe_and_an_interrupt_is_none_of_a_probes() -> None:
    def outer() -> Any:
        def inner() -> Any:
            return later

        if inner is None:
            later = 1
        return inner

    function = outer()
    cell = function.__closure__[0]
    probe = Value("later", lambda: None, (cell, "cell_contents"))
    assert References([probe]).hold()

    class Interrupting:
        is_due = False

        @property
        def size(self) -> int:
            if Interrupting.is_due:
                raise KeyboardInterrupt
            return 3

    holder = Interrupting()
    references = References([Value("size", lambda: 3, (holder, "size"))])
    assert references.hold()
    Interrupting.is_due = True
    with pytest.raises(KeyboardInterrupt):
        references.hold()


def test_variables_in_a_dict_of_another_class_are_those_of_the_dict() -> None:
    class Names(dict):  # type: ignore[type-arg]
        """Has an attribute of a variable's name."""

    names = Names(scale=2)
    names.scale = names["scale"]
    exec("def get(): return scale", names)
    state = CopiedState(names["get"])
    assert state.changed() is None
    names["scale"] = 5
    assert state.changed() == "scale"
