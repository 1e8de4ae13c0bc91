"""Containers of the user's classes arrive with what the dataset put in, whatever their methods do."""

from __future__ import annotations

import dataclasses
import pickle
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload.cache.serialize import separate
from foreload.nested import move, snapshot, tensors
from tests.batch.copying import LOADERS, first, moved


class Scaled(dict[str, Any]):
    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value / 4)


class Adding(OrderedDict[str, Any]):
    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value + self.get(name, 0))


class Locked(dict[str, Any]):
    is_locked = False

    def __setitem__(self, name: str, value: Any) -> None:
        if self.is_locked:
            raise TypeError("locked")
        super().__setitem__(name, value)


class Clipped(list[Any]):
    def __setitem__(self, at: Any, value: Any) -> None:
        super().__setitem__(at, value.clamp(max=3))

    def extend(self, values: Any) -> None:
        raise TypeError("append, please")


class Secret(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("not to be listed")


class Recent(deque[Any]):
    __slots__ = ("seen",)

    def append(self, value: Any) -> None:
        self.seen = getattr(self, "seen", 0) + 1
        super().append(value)


class Default(defaultdict[str, Any]):
    def __missing__(self, name: str) -> Any:
        return name


class Encoding(UserDict[str, Any]):
    """As that of transformers: what it is pickled with lacks an attribute."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.number = 2

    def __getstate__(self) -> Any:
        return {"data": self.data}


class Rows(UserList[Any]):
    def __setitem__(self, at: Any, value: Any) -> None:
        raise TypeError("rows stay")


class Headers(MutableMapping[str, Any]):
    """A name may occur more than once, but is set only once."""

    def __init__(self, pairs: Any = ()) -> None:
        self.pairs = list(pairs)

    def __getitem__(self, name: str) -> Any:
        return next(value for key, value in self.pairs if key == name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.pairs = [pair for pair in self.pairs if pair[0] != name] + [(name, value)]

    def __delitem__(self, name: str) -> None:
        raise TypeError("headers stay")

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def items(self) -> Any:
        return list(self.pairs)


@dataclasses.dataclass
class Counted:
    x: torch.Tensor
    number: int

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value + 1 if name == "number" and "number" in vars(self) else value)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: torch.Tensor
    names: list[str]


def filled(container: Any, **values: Any) -> Any:
    for name, value in values.items():
        container[name] = value
    container.is_locked = True
    return container


def secret(x: torch.Tensor) -> Secret:
    made = Secret(x=x)
    made.tag = [int(x[0])]  # type: ignore[attr-defined]
    return made


def recent(x: torch.Tensor) -> Recent:
    made = Recent(maxlen=3)
    for _ in range(5):
        made.append(x)
    return made


MAKE: dict[str, Callable[[torch.Tensor], Any]] = {
    "setting scales": lambda x: filled(Scaled(), x=x),
    "setting adds": lambda x: filled(Adding(), x=x),
    "setting is refused": lambda x: filled(Locked(), x=x),
    "setting clips": lambda x: Clipped([x, x + 1]),
    "listing is refused": secret,
    "a deque with slots": recent,
    "a dict with a default": lambda x: Default(int, x=x),
    "attributes that are not pickled": lambda x: Encoding({"x": x}),
    "a list with a list": lambda x: Rows([x]),
    "names that occur twice": lambda x: Headers([("x", x), ("x", x + 1), ("y", 1)]),
    "a dataclass that counts": lambda x: Counted(x, 7),
    "a frozen dataclass with slots": lambda x: Slotted(x, ["a"]),
    "a counter": lambda x: [Counter({"a": int(x[0])}), x],
}


class Samples:
    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return self.make(torch.full((2,), float(index)))


def told(value: Any) -> Any:
    """All that an object holds, in plain objects."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    own = {name: told(item) for name, item in vars(value).items()} if hasattr(value, "__dict__") else {}
    if isinstance(value, dict):
        return type(value), [(name, told(item)) for name, item in dict.items(value)], own
    if isinstance(value, (list, tuple, deque)):
        limit, seen = getattr(value, "maxlen", None), getattr(value, "seen", None)
        return type(value), list(map(told, value)), own, limit, seen
    if dataclasses.is_dataclass(value):
        return type(value), [told(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return (type(value), own) if own else value


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", MAKE)
def test_batches_hold_what_the_dataset_put_in(kind: str, loader: str) -> None:
    dataset: Any = Samples(MAKE[kind])
    expected = [told(batch) for batch in TorchDataLoader(dataset, 1, collate_fn=first)]
    with fl.DataLoader(dataset, 1, collate_fn=first, **LOADERS[loader]) as batches:
        for _ in range(2):
            assert [told(batch) for batch in batches] == expected


@pytest.mark.parametrize("kind", MAKE)
def test_processes_send_it_as_it_is(kind: str) -> None:
    dataset: Any = Samples(MAKE[kind])
    expected = [told(batch) for batch in TorchDataLoader(dataset, 1, collate_fn=first)]
    if kind == "attributes that are not pickled":
        expected = [told(pickle.loads(pickle.dumps(Encoding({"x": dataset[i]["x"]})))) for i in range(40)]
    loader = fl.DataLoader(dataset, 1, collate_fn=first, num_workers=1)
    assert [told(batch) for batch in loader] == expected


@pytest.mark.parametrize("copied", [separate, moved])
@pytest.mark.parametrize("kind", MAKE)
def test_copies_share_nothing_that_changes(kind: str, copied: Callable[[Any], Any]) -> None:
    if copied is moved and kind in ("a deque with slots", "a list with a list"):
        return  # where these stay the same
    if copied is separate and kind == "attributes that are not pickled":
        return  # workers of torch's do not send them
    value = MAKE[kind](torch.tensor([1.0, 2.0]))
    before = told(value)
    other = copied(value)
    assert type(other) is type(value)
    assert other is not value
    assert told(other) == before
    for tensor in tensors(value, of_any_object=True):
        tensor += 1
    assert told(other) == before


def branch(parent: Any, depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {"parent": parent, "x": torch.ones(1), "children": []}
    if depth:
        node["children"] = [branch(node, depth - 1) for _ in range(2)]
    return node


class Fixed(Headers):
    def __init__(self) -> None:
        self.pairs = (("x", torch.ones(1)),)  # type: ignore[assignment]

    def __setitem__(self, name: str, value: Any) -> None:
        raise TypeError("headers stay")

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("there is one of these")


def test_a_mapping_that_takes_no_other_tensors_cannot_be_moved() -> None:
    with pytest.raises(TypeError, match=r"a Fixed in a batch does not take other tensors .* return a dict"):
        move(Fixed(), torch.clone)
    fixed = move([Fixed()], lambda tensor: tensor)[0]
    assert type(fixed) is Fixed
    assert told(fixed) == told(Fixed())


@pytest.mark.parametrize("copied", [separate, moved])
def test_a_tree_whose_nodes_know_their_parent(copied: Callable[[Any], Any]) -> None:
    tree = branch(None, 3)
    other = copied(tree)
    assert other is not tree
    leaf, its_leaf = tree, other
    for _ in range(3):
        leaf, its_leaf = leaf["children"][1], its_leaf["children"][1]
        assert its_leaf is not leaf
        assert torch.equal(its_leaf["x"], leaf["x"])
    for _ in range(3):
        its_leaf = its_leaf["parent"]
    assert its_leaf is other


def test_what_holds_itself_keeps_its_shape() -> None:
    ring: list[Any] = [1]
    ring.append((ring, {"ring": ring}))
    for copied in (separate(ring), snapshot(ring)):
        assert copied is not ring
        assert copied[1][0] is copied
        assert copied[1][1]["ring"] is copied


@pytest.mark.parametrize("kind", [lambda value: [value], lambda value: {"x": value}], ids=["lists", "dicts"])
def test_what_is_nested_deeply_is_not_shared_with_the_dataset(kind: Any) -> None:
    samples: list[Any] = [torch.zeros(1) for _ in range(40)]
    for _ in range(400):
        samples = [kind(sample) for sample in samples]
    loader = fl.DataLoader(samples, 1, collate_fn=first, num_workers=2)  # type: ignore[arg-type]
    for _ in range(2):
        for value in loader:
            while not isinstance(value, torch.Tensor):
                value = value["x"] if isinstance(value, dict) else value[0]
            assert value.item() == 0
            value += 1


class Deep:
    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> Any:
        value: Any = torch.full((1,), index)
        for _ in range(3000):
            value = [value]
        return value


@pytest.mark.parametrize("options", [{}, {"seed": 0, "shuffle": False}, {"memory": "1GiB"}], ids=str)
def test_a_batch_that_is_nested_deeply(options: dict[str, Any]) -> None:
    dataset: Any = Deep()
    values = list(fl.DataLoader(dataset, 1, collate_fn=first, **options))
    for index, value in enumerate(values):
        for _ in range(3000):
            (value,) = value
        assert value.item() == index


class Box:
    """An object that is none of the known containers."""

    def __init__(self, content: Any) -> None:
        self.content = content


@pytest.mark.parametrize("kind", [kind for kind in MAKE if kind != "attributes that are not pickled"])
def test_beside_other_objects_too(kind: str) -> None:
    value = [Box(MAKE[kind](torch.ones(2))), MAKE[kind](torch.ones(2))]
    value.append(value[0])
    before = told(value)
    other = separate(value)
    assert told(other) == before
    assert other[0] is not value[0]
    assert other[2] is other[0]


def test_what_cannot_be_copied_stays_the_same() -> None:
    class Here(dict[str, Any]):  # of a class that pickle does not find
        def __setitem__(self, name: str, value: Any) -> None:
            raise TypeError("no")

    here = [Here(x=torch.ones(1)), object(), lambda: 1]
    other = separate(here)
    assert told(other[0]) == told(here[0])
    assert other[1] is here[1]
    assert other[2] is here[2]
