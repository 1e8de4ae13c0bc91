"""By default a batch is what collate_fn made of the samples: nothing of it is lost, copied or shared anew."""

from __future__ import annotations

import tempfile
import threading
import time
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

import foreload as fl
from tests.batch.copying import first
from tests.batch.odd import Left, Scaled, written


class Ids(list[Any]):
    def __new__(cls, *items: Any) -> Any:
        made = super().__new__(cls)
        made.lock = threading.Lock()
        return made


class Once(Scaled):
    def __getitem__(self, name: str) -> Any:
        return self.kept.pop(name)


class Words(Counter[str]):
    pass


class Node:
    def __init__(self, parent: Any = None) -> None:
        self.parent = None if parent is None else weakref.ref(parent)
        self.kids: list[Any] = []


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
    "a folder": (
        lambda i: tempfile.TemporaryDirectory(dir=Samples.folder),
        lambda batch: Path(batch.name).exists(),
    ),
    "a file": (lambda i: written(Samples.folder), lambda batch: Path(batch.path).exists()),
    "what its class leaves out": (lambda i: Left(), lambda batch: batch.cache),
    "an image file": (lambda i: Image.open(Samples.image), lambda batch: (batch.n_frames, type(batch))),
}


class Samples:
    image = folder = ""

    def __init__(self, kind: str) -> None:
        self.make = SEEN[kind][0]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


@pytest.fixture(scope="module", autouse=True)
def image(tmp_path_factory: pytest.TempPathFactory) -> None:
    frames = [Image.fromarray(np.full((8, 8), 40 * number, np.uint8)) for number in range(3)]
    Samples.folder = str(tmp_path_factory.mktemp("files"))
    Samples.image = f"{Samples.folder}/x.gif"
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


class Stream(IterableDataset[Any]):
    thread_safe = True

    def __iter__(self) -> Iterator[Any]:
        return (Left() for _ in range(9))


def test_objects_of_a_stream_that_is_read_ahead_are_those_that_it_yields() -> None:
    assert [batch.cache for batch in fl.DataLoader(Stream(), batch_size=None)] == [2] * 9


class Box:
    def __init__(self) -> None:
        self.x = torch.zeros(1)


class FilledAgain(IterableDataset[Any]):
    thread_safe = True

    def __iter__(self) -> Iterator[Any]:
        box = Box()
        for number in range(12):
            box.x[0] = number
            yield box


def test_a_stream_that_is_read_ahead_may_fill_one_object_again() -> None:
    seen = []
    for box in fl.DataLoader(FilledAgain(), batch_size=None):
        time.sleep(0.01)  # while which it is read ahead
        seen.append(int(box.x))
    assert seen == list(range(12))
