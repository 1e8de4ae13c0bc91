"""Containers of the user's classes behave the same after a copy, and enums keep their members."""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import gc
import shelve
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foreload as fl
from foreload.cache.serialize import deserialize, flatten, restore, separate, serialize
from tests.batch.copying import LOADERS, first, moved


class Shade(list[int], enum.Enum):
    DARK = [0]  # noqa: RUF012
    LIGHT = [255]  # noqa: RUF012


class Place(tuple[int, int], enum.Enum):
    CORNER = (0, 0)


def test_members_of_an_enum_stay_the_same() -> None:
    value = [Shade.DARK, {"place": Place.CORNER}]
    for copied in (separate, moved):
        other = copied(value)
        assert other[0] is Shade.DARK
        assert other[1]["place"] is Place.CORNER
    arrived = deserialize(np.concatenate(serialize(value)))
    assert arrived[0] is Shade.DARK
    assert arrived[1]["place"] is Place.CORNER


@dataclasses.dataclass
class Info:
    path: str


class Split(Info, enum.Enum):
    TRAIN = "train"


class Token(dict[str, Any]):
    """There is one of each name."""

    def __reduce__(self) -> Any:
        return token, (self["name"],)


class Registry(dict[str, Any]):
    def __copy__(self) -> Any:
        return self


TOKENS = {name: Token(name=name) for name in "ab"}
REGISTRY = Registry(x=[1])


def token(name: str) -> Token:
    return TOKENS[name]


@dataclasses.dataclass(eq=False)
class Key:
    name: str


KEY = Key("k")


class Marked(dict[str, Any]):
    def __init__(self) -> None:
        super().__init__()
        self.order: list[int] = []
        self.mark = self.order.append


class AttributesMade(dict[str, Any]):
    def __new__(cls) -> Any:
        made = super().__new__(cls)
        made.__dict__ = made
        return made


class AttributesSet(dict[str, Any]):
    def __init__(self) -> None:
        super().__init__()
        self.__dict__ = self


class Registered(dict[str, Any]):
    """A dict whose pickling is registered with copyreg."""

    lock: Any = None


def registered(items: Any) -> Registered:
    return Registered(items)


copyreg.pickle(Registered, lambda value: (registered, (dict(value),)))


class DefaultWithLock(defaultdict[str, Any]):
    lock: Any = None


def locked(kind: Any, *arguments: Any) -> Any:
    value = kind(*arguments)
    value["x"] = 1
    value.lock = threading.Lock()
    return value


def marked() -> Any:
    value = Marked()
    value.mark(1)
    return value


def written(kind: Any) -> Any:
    value = kind()
    value["x"] = 1
    return value


# What is made anew for each sample, and whether it is what it was after it has been copied, cached or sent.
KEEPS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a member of an enum": (lambda: Split.TRAIN, lambda value: value is Split.TRAIN),
    "one of each name": (lambda: TOKENS["a"], lambda value: value is TOKENS["a"]),
    "a key known by its identity": (lambda: {KEY: 1}, lambda value: value[KEY] == 1),
    "a member known by its identity": (lambda: {KEY}, lambda value: KEY in value),
    "a method of a list": (marked, lambda value: (value.mark(2), len(value.order))[1] == 2),
    "attributes that are its items": (
        lambda: written(AttributesMade),
        lambda value: (setattr(value, "x", 7), value["x"])[1] == 7,
    ),
    "items that are its attributes": (
        lambda: written(AttributesSet),
        lambda value: (setattr(value, "x", 7), value["x"])[1] == 7,
    ),
    "pickled as is said elsewhere": (lambda: locked(Registered), lambda value: value == {"x": 1}),
    "a default and a lock": (
        lambda: locked(DefaultWithLock, int),
        lambda value: value == {"x": 1} and value["y"] == 0,
    ),
}
# Whatever a process is sent is another object there.
SENT = [kind for kind in KEEPS if "known by its identity" not in kind]


class Made:
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return KEEPS[self.kind][0]()


@pytest.mark.parametrize("options", [*LOADERS.values(), {"num_workers": 1}], ids=str)
@pytest.mark.parametrize("kind", KEEPS)
def test_what_it_can_do_it_can_still_do(kind: str, options: dict[str, Any]) -> None:
    if kind not in SENT and ("cache" in options or options.get("num_workers") == 1):
        return
    dataset: Any = Made(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the lock cannot be cached
        with fl.DataLoader(dataset, 1, collate_fn=first, **options) as loader:
            for _ in range(2):
                assert all(KEEPS[kind][1](value) for value in loader)


@pytest.mark.parametrize("copied", [separate, moved])
@pytest.mark.parametrize("kind", KEEPS)
def test_a_copy_can_still_do_it_and_leaves_the_original(kind: str, copied: Callable[[Any], Any]) -> None:
    if (kind == "a method of a list" and copied is moved) or (kind not in SENT and copied is separate):
        return  # what only pickling binds anew, and what it makes another object
    value = KEEPS[kind][0]()
    assert KEEPS[kind][1](copied(value))
    assert KEEPS[kind][1](value)


def test_what_copies_as_itself_is_not_written_to() -> None:
    held = REGISTRY["x"]
    assert moved([REGISTRY])[0] is REGISTRY
    assert REGISTRY["x"] is held


class Behind(MutableMapping[str, Any]):
    """Keeps its items in a dict, which a shallow copy of it shares."""

    def __init__(self, scale: float = 1) -> None:
        self.scale, self.kept = scale, dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        return self.kept[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.kept[name] = value

    def __delitem__(self, name: str) -> None:
        del self.kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)


class Blob(bytearray):
    pass


class Tags(set[str]):
    def __init__(self, vocabulary: str, *names: str) -> None:
        super().__init__(names)
        self.vocabulary = vocabulary


@dataclasses.dataclass
class Backed:
    """A field that is kept under another name, and one whose default cannot be hashed."""

    x: Any
    sizes: tuple[list[int], ...] = ([1], [2])

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, {"x": "_x"}.get(name, name), value)

    def __getattr__(self, name: str) -> Any:
        return vars(self)["_x"] if name == "x" else object.__getattribute__(self, name)


@pytest.mark.parametrize("copied", [separate, moved])
def test_the_original_keeps_its_items(copied: Callable[[Any], Any]) -> None:
    value = Behind(2.0)
    value["x"] = tensor = torch.zeros(1)
    other = copied([value])[0]
    assert value["x"] is tensor
    assert other["x"] is not tensor
    assert (type(other), other.scale, other["x"].item()) == (Behind, 2.0, 0)
    missing = Behind()
    missing["x"] = torch.full((1,), float("nan"))
    assert copied([missing])[0]["x"].isnan().all()
    tags = copied([Tags("colours", "red")])[0]
    assert (tags, tags.vocabulary) == ({"red"}, "colours")
    backed = Backed(torch.zeros(1))
    assert copied(backed).x is not backed.x
    assert copied(backed).sizes == ([1], [2])


def test_bytes_of_a_class_of_its_own_are_sent() -> None:
    (blob,) = restore([bytearray(part) for part in flatten([Blob(b"abc")])])
    assert (type(blob), blob) == (Blob, Blob(b"abc"))
    assert type(separate([Blob(b"abc")])[0]) is Blob


def test_the_end_of_a_copy_closes_nothing(tmp_path: Path) -> None:
    with shelve.open(str(tmp_path / "shelf")) as shelf:
        shelf["x"] = 1
        for copied in (separate, moved):
            assert copied([shelf])[0]["x"] == 1
            gc.collect()
            assert shelf["x"] == 1
