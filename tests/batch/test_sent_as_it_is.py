"""Processes that were chosen, and caches, give back what a sample was, or do not take it."""

from __future__ import annotations

import datetime
import gc
import io
import pickle
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cachetools
import numpy as np
import pytest
import torch
from PIL import Image

import foreload as fl
from foreload.cache.serialize import flatten_exactly, restore
from foreload.nested import is_like, move
from foreload.tune import choose as tune_choose
from foreload.tune.choice import Choice
from foreload.workers import selection
from tests.batch.changed import (
    SPARSE,
    TABLE,
    Compressed,
    darkened,
    emptied,
    halved,
    part_of,
    rounded,
    same,
    seeded,
    shortened,
    sticker,
    turned,
)
from tests.batch.copying import first, moved
from tests.batch.odd import Left, Scaled, written


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def chosen(count: int) -> None:
        choice = Choice("processes" if count else "threads", count, "as the test says")
        monkeypatch.setattr(selection, "_chosen", {})
        monkeypatch.setattr(tune_choose, "choose_workers", lambda work: choice)

    return chosen


class Flags:
    """Is another one after it was pickled."""

    def __init__(self) -> None:
        self.is_ready, self.x = True, torch.full((2,), 0.3)

    def __getstate__(self) -> Any:
        return {"is_ready": False, "x": self.x.half().float()}


class Adds:
    """Writes to what it is made of."""

    def __init__(self, index: int) -> None:
        self.x = torch.full((2,), float(index))

    def __getstate__(self) -> Any:
        return {"x": self.x}

    def __setstate__(self, state: Any) -> None:
        self.x = state["x"]
        self.x.add_(100)


HELD = Flags()


def caught(index: int) -> Exception:
    try:
        raise KeyError(index)
    except KeyError as error:
        return error


class Pair(tuple[Any, ...]):
    pass


# What processes could send otherwise only, so that they are not chosen.
UNSENT: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "a flag": (lambda i: Flags(), lambda batch: (batch.is_ready, batch.x.tolist())),
    "what is written to in the end": (Adds, lambda batch: batch.x.tolist()),
    "a rounded table": (lambda i: Compressed(TABLE, rounded), part_of),
    "a shortened table": (lambda i: Compressed(TABLE, shortened), part_of),
    "a rounded sparse tensor": (lambda i: Compressed(SPARSE, halved), part_of),
    "a darkened image": (lambda i: Compressed(Image.new("L", (4, 4), 200), darkened), part_of),
    "emptied bytes": (lambda i: Compressed(io.BytesIO(b"a"), emptied), part_of),
    "a generator": (lambda i: Compressed(torch.Generator(), seeded), lambda batch: batch.part.initial_seed()),
    "a weak proxy": (lambda i: weakref.proxy(HELD), lambda batch: type(batch) in weakref.ProxyTypes),
    "a transparent palette": (sticker, lambda batch: batch.convert("RGBA").getpixel((0, 0))),
    "an attribute of an image": (
        lambda i: with_part("a", Image.new("L", (1, 1))),
        lambda batch: batch.part,
    ),
    "a sparse tensor with a gradient": (
        lambda i: torch.eye(3).to_sparse().requires_grad_(),
        lambda batch: batch.requires_grad,
    ),
    "the traceback of an error": (caught, lambda batch: batch.__traceback__ is not None),
    "a hard mask": (lambda i: np.ma.masked_array([1.0], [1], hard_mask=True), lambda batch: batch.hardmask),
    "in a set": (lambda i: {Left()}, lambda batch: next(iter(batch)).cache),
    "in an attribute of a tensor": (lambda i: with_part(Left()), lambda batch: batch.part.cache),
}

SENT: dict[str, Callable[[int], Any]] = {
    "bytes in memory": lambda i: io.BytesIO(b"a"),
    "a tuple": lambda i: Pair((i, i)),
    "an image": lambda i: Image.fromarray(np.zeros((4, 4, 3), np.uint8)).convert("L"),
    "an image that was turned": turned,
    "a masked array": lambda i: np.ma.masked_array([1.0, 2.0], [0, 1]),
    "a time": lambda i: datetime.datetime.now(),
    "a table": lambda i: Compressed(TABLE, same),
    "an image in an object": lambda i: Compressed(Image.new("L", (4, 4), 200), same),
    "a sparse tensor in an object": lambda i: Compressed(SPARSE, same),
}


def with_part(part: Any, value: Any = None) -> Any:
    value = torch.ones(2) if value is None else value
    value.part = part
    return value


@pytest.mark.parametrize("kind", UNSENT)
def test_processes_refuse_what_would_come_back_as_another(kind: str) -> None:
    make, look = UNSENT[kind]
    sample = make(3)
    before = look(sample)
    with pytest.raises(pickle.PicklingError):
        flatten_exactly([sample])
    assert look(sample) == before


@pytest.mark.parametrize("kind", SENT)
def test_processes_send_what_comes_back_as_it_was(kind: str) -> None:
    sample = SENT[kind](3)
    (other,) = restore([bytearray(part) for part in flatten_exactly([sample])])
    assert type(other) is type(sample)
    assert (
        repr(other) == repr(sample)
        or kind in ("bytes in memory", "an image", "an image that was turned")
        or part_of(other) == part_of(sample)
    )


@pytest.mark.parametrize("options", [{}, {"cache": "1MiB"}, {"num_workers": 0, "cache": "1MiB"}], ids=str)
def test_a_look_at_a_sample_does_not_change_it(options: dict[str, Any]) -> None:
    class Slow:
        def __len__(self) -> int:
            return 300

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.004)
            return Adds(index)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*cannot be cached", UserWarning)
        dataset: Any = Slow()
        values = [batch.x.tolist() for batch in fl.DataLoader(dataset, 1, collate_fn=first, **options)]
    assert values == [[index, index] for index in range(300)]


def test_a_rare_sample_that_cannot_be_sent_is_the_calling_threads(choose: Callable[[int], None]) -> None:
    class Rare:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            return (index, Left() if index == 17 else None)

    choose(2)
    dataset: Any = Rare()
    loader = fl.DataLoader(dataset, 4, collate_fn=list)
    for _ in range(2):
        samples = [sample for batch in loader for sample in batch]
        assert [index for index, _ in samples] == list(range(40))
        assert samples[17][1].cache == 2
    assert "pickling leaves out something of a Left" in loader.stats()["workers"]["why"]


def test_what_is_only_held_is_not_copied_to_see_what_it_is(tmp_path: Path) -> None:
    kept = written(tmp_path)

    class Slow:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.004)
            return {"x": index, "kept": kept}

    dataset: Any = Slow()
    assert sum(fl.DataLoader(dataset, 1, collate_fn=lambda samples: samples[0]["x"])) == sum(range(40))
    assert Path(kept.path).exists()


@pytest.mark.parametrize("kind", ["a file", "an image file"])
def test_what_ends_or_is_open_is_refused_too(kind: str, tmp_path: Path) -> None:
    Image.new("L", (4, 4)).save(tmp_path / "x.png")
    sample = written(tmp_path) if kind == "a file" else Image.open(tmp_path / "x.png")
    with pytest.raises(pickle.PicklingError):
        flatten_exactly([sample])
    assert (sample.path if kind == "a file" else sample.format) is not None


class Itself(Scaled):
    """Is its own copy."""

    def __copy__(self) -> Any:
        return self

    __deepcopy__ = None  # type: ignore[assignment]


def test_moving_leaves_a_mapping_that_is_its_own_copy_as_it_is() -> None:
    value = Itself()
    value["x"] = held = torch.ones(2)
    with pytest.raises(TypeError, match="does not take other tensors"):
        moved(value)
    assert value["x"] is held


class Owned(Scaled):
    def __init__(self, owner: Any = None) -> None:
        super().__init__()
        self.owner = owner


def test_moving_copies_only_what_a_mapping_keeps_its_items_in(tmp_path: Path) -> None:
    file = written(tmp_path)
    value = Owned(file)
    value["x"] = torch.ones(2)
    other = moved(value)
    assert other["x"] is not value["x"]
    assert other.owner is file
    del other
    gc.collect()
    assert Path(file.path).exists()


class Behind(Scaled):
    """Keeps its items two levels deep, and something else of its own."""

    def __init__(self) -> None:
        self.store = {"in": {"x": torch.ones(2)}}
        self.order = SimpleNamespace(names=["x"])

    @property
    def kept(self) -> Any:  # type: ignore[override]
        return self.store["in"]


def test_moving_writes_nothing_into_what_a_mapping_keeps() -> None:
    value = Behind()
    held = value["x"]
    other = move(value, lambda tensor: tensor.to("meta"))
    assert other["x"].device.type == "meta"
    assert value["x"] is held
    assert (value.order.names, other.order.names) == (["x"], ["x"])


@pytest.mark.parametrize("policy", ["LRUCache", "LFUCache", "FIFOCache", "RRCache"])
def test_moving_a_cache_leaves_it_as_it_was(policy: str) -> None:
    cache = getattr(cachetools, policy)(maxsize=3)
    cache["x"] = held = torch.ones(2)
    other = move(cache, lambda tensor: tensor.to("meta"))
    assert (type(other), other["x"].device.type) == (type(cache), "meta")
    assert cache["x"] is held


class Passes:
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.004)
        return {"x": torch.full((2,), float(index)), "meta": {"name": str(index)}}


@pytest.mark.parametrize("collate", [list, first, lambda samples: [sample["meta"] for sample in samples]])
def test_samples_that_are_passed_on_are_none_that_the_dataset_holds(collate: Callable[[Any], Any]) -> None:
    dataset: Any = Passes()
    loader = fl.DataLoader(dataset, 4, collate_fn=collate)
    loader.choose_workers()
    assert "goes on to hold" not in loader.stats()["workers"]["why"]


def test_a_nan_that_becomes_a_number_is_seen() -> None:
    assert not is_like(Told(x=float("nan")), Told(x=0.0))
    assert is_like(Told(x=float("nan")), Told(x=float("nan")))
    assert not is_like(Told(x={1}), Told(x={2}))
    assert not is_like(Told(x=bytearray(b"a")), Told(x=bytearray(b"b")))


class Told(SimpleNamespace):
    """Has attributes that are looked at."""
