"""By default a batch is what collate_fn made of the samples: nothing of it is lost, copied or shared anew."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import threading
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from tests.batch.copying import first


class Ids(list[Any]):
    def __new__(cls, *items: Any) -> Any:
        made = super().__new__(cls)
        made.lock = threading.Lock()
        return made


class Scaled(MutableMapping[str, Any]):
    """Scales what its constructor is given, and cannot be copied."""

    def __init__(self, items: Any = (), unit: str = "m") -> None:
        self.kept = {name: value / 2 for name, value in dict(items).items()}
        self.unit, self.lock = unit, threading.Lock()

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


class Once(Scaled):
    def __getitem__(self, name: str) -> Any:
        return self.kept.pop(name)


class Words(Counter[str]):
    pass


class Node:
    def __init__(self, parent: Any = None) -> None:
        self.parent = None if parent is None else weakref.ref(parent)
        self.kids: list[Any] = []


@dataclasses.dataclass
class File:
    """Is gone with the object."""

    path: str

    def __del__(self) -> None:
        if os.path.exists(self.path):
            os.unlink(self.path)


class Left:
    def __init__(self) -> None:
        self.x, self.cache = 1, 2

    def __getstate__(self) -> Any:
        return {"x": 1}


def tree() -> Any:
    node = Node()
    node.kids = [Node(node)]
    return node


def ids(index: int) -> Any:
    made = Ids()
    made.extend([index, 6])
    return made


def tagged(value: Any) -> Any:
    value.tag = lambda: 1
    return value


class Tagged(np.ndarray):  # type: ignore[type-arg]
    pass


def words() -> Any:
    made = Words("ab")
    made.documents = 3  # type: ignore[attr-defined]
    return made


def written() -> Any:
    with tempfile.NamedTemporaryFile(delete=False) as file:
        return File(file.name)


MISSING = Node()

# How a sample is made, and what a loop sees of it.
SEEN: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "a list that holds a lock": (ids, list),
    "a mapping that scales": (lambda i: Scaled({"x": 8.0}, "km"), lambda batch: (batch["x"], batch.unit)),
    "items that can be taken once": (lambda i: Once({"x": 8.0}), lambda batch: batch["x"]),
    "attributes of a tensor": (lambda i: tagged(torch.ones(2)), lambda batch: batch.tag()),
    "attributes of an array": (lambda i: tagged(np.ones(2).view(Tagged)), lambda batch: batch.tag()),
    "a parameter": (lambda i: torch.nn.Parameter(torch.ones(2), requires_grad=False), type),
    "attributes of a counter": (lambda i: words(), lambda batch: batch.documents),
    "a tree of weak references": (lambda i: tree(), lambda batch: batch.kids[0].parent() is batch),
    "a rare object known by its identity": (
        lambda i: (i, MISSING if i % 7 == 3 else 1),
        lambda b: b[1] is MISSING,
    ),
    "in a deque": (lambda i: deque([MISSING]), lambda batch: batch[0] is MISSING),
    "a folder": (lambda i: tempfile.TemporaryDirectory(), lambda batch: Path(batch.name).exists()),
    "a file": (lambda i: written(), lambda batch: Path(batch.path).exists()),
    "what its class leaves out": (lambda i: Left(), lambda batch: batch.cache),
    "an image file": (lambda i: Image.open(Samples.image), lambda batch: (batch.n_frames, type(batch))),
}


class Samples:
    image = ""

    def __init__(self, kind: str) -> None:
        self.make = SEEN[kind][0]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


@pytest.fixture(scope="module", autouse=True)
def image(tmp_path_factory: pytest.TempPathFactory) -> None:
    frames = [Image.fromarray(np.full((8, 8), 40 * number, np.uint8)) for number in range(3)]
    Samples.image = str(tmp_path_factory.mktemp("images") / "x.gif")
    frames[0].save(Samples.image, save_all=True, append_images=frames[1:])


# What a cache gives again is another object; and it looks at what it keeps.
NOT_CACHED = ("a rare object known by its identity", "in a deque", "items that can be taken once")

OPTIONS: list[dict[str, Any]] = [{}, {"num_workers": 0}, {"cache": "1MiB"}, {"num_workers": 0, "cache": "1MiB"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", SEEN)
def test_the_loop_sees_what_it_sees_with_torch(kind: str, options: dict[str, Any]) -> None:
    dataset: Any = Samples(kind)
    look = SEEN[kind][1]
    if "cache" in options and kind in NOT_CACHED:
        return
    expected = [look(batch) for batch in TorchDataLoader(dataset, 1, collate_fn=first)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*cannot be cached", UserWarning)
        loader = fl.DataLoader(dataset, 1, collate_fn=first, **options)
        for _ in range(2):
            assert [look(batch) for batch in loader] == expected


def test_what_a_collate_function_shares_within_a_batch_stays_shared() -> None:
    def collate(samples: list[int]) -> Any:
        words = words_and_ids["words"] = Left()
        words.ids = numbers = list(samples)  # type: ignore[attr-defined]
        return numbers, words, threading.Lock()

    words_and_ids: dict[str, Any] = {}
    for numbers, words, _ in fl.DataLoader(list(range(64)), 4, collate_fn=collate):  # type: ignore[arg-type]
        assert words.ids is numbers


class Batches:
    """Yields indices of a class of its own."""

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[Any]:
        for number in range(10):
            indices = Ids()
            indices.extend([number, number])
            yield indices


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 2}], ids=str)
def test_indices_of_any_class_are_those_that_the_sampler_yields(options: dict[str, Any]) -> None:
    rows: Any = torch.arange(400).view(20, 20)
    loader = fl.DataLoader(rows, batch_sampler=Batches(), **options)
    assert [batch.tolist() for batch in loader] == [rows[[number, number]].tolist() for number in range(10)]
