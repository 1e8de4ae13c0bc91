"""Processes that were chosen load what the calling thread would, also if a rare sample changes the dataset."""

from __future__ import annotations

import contextlib
import functools
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from tests.pairwise import pairwise
from tests.workers.followed import COUNTS, Squares, plain

RARE = 29  # the sample that changes something


class Rare(Squares):
    """Changes something with one of its samples; ``shown`` is that in all later ones."""

    count = 0
    places = np.zeros(3)

    @functools.lru_cache(maxsize=8)
    def kept(self, index: int) -> int:
        return index

    def __init__(self, change: str) -> None:
        self.change = change
        self.bad: list[int] = []
        self.table = {"a": 1}
        self.tensor = torch.zeros(4)
        self.large = torch.zeros(400_000)
        self.array = np.zeros(4)
        self.file: Any = None
        self.handles: list[Any] = [None, None]
        self.names: set[str] = set()
        self.random = random.Random(3)

    def shown(self) -> list[float]:
        tensors = float(self.tensor.sum()), float(self.large[RARE]), float(self.array.sum())
        others = float(self.places[0]), torch.get_default_dtype().itemsize, Rare.kept.cache_info().currsize > 0
        files = kept() if self.change in ("file", "file, quietly", "folder", "database") else ()
        return [len(self.bad), self.table["a"], *tensors, type(self).count, len(self.names), SEEN, *others, *files]

    def __getitem__(self, index: int) -> Any:
        if index == RARE:
            CHANGES[self.change](self, index)
        return torch.tensor([index, *self.shown()])


SEEN = 0


def see(dataset: Rare, index: int) -> None:
    globals()["SEEN"] += 1


def fail(dataset: Rare, index: int) -> None:
    dataset.bad.append(index)
    raise ValueError(index)


def add(dataset: Rare, index: int, among: list[int] = []) -> None:
    among.append(index)
    dataset.table["a"] = len(among)


CHANGES: dict[str, Callable[[Rare, int], Any]] = {
    "list": lambda dataset, index: dataset.bad.append(index),
    "item": lambda dataset, index: dataset.table.update(a=dataset.table["a"] + 1),
    "tensor": lambda dataset, index: dataset.tensor.add_(1),
    "large tensor": lambda dataset, index: dataset.large[index].add_(1),
    "array": lambda dataset, index: dataset.array.__iadd__(1),
    "class": lambda dataset, index: setattr(Rare, "count", Rare.count + 1),
    "set": lambda dataset, index: dataset.names.add(str(index)),
    "global": see,
    "default": add,
    "failure": fail,
    "generator": lambda dataset, index: dataset.table.update(a=dataset.random.random()),
    "class array": lambda dataset, index: dataset.places.__iadd__(1),
    "new number": lambda dataset, index: setattr(dataset, "late", dataset.bad.append(index)),
    "default dtype": lambda dataset, index: torch.set_default_dtype(torch.float64),
    "kept by a function": lambda dataset, index: [dataset.kept(each) for each in (index, -index)],
    "iterator": lambda dataset, index: setattr(dataset, "file", iter([1, 2])),
    "file": lambda dataset, index: KEPT.write_bytes(KEPT.read_bytes() + b"x"),
    "file, quietly": lambda dataset, index: append_if_it_may_be(KEPT),
    "folder": lambda dataset, index: (KEPT.parent / f"rare-{len(list(KEPT.parent.iterdir()))}").mkdir(),
    "database": lambda dataset, index: insert(KEPT.with_name("database")),
}
KEPT = Path()


def append_if_it_may_be(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.write_bytes(path.read_bytes() + b"x")


def insert(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as rows, rows:
        rows.execute("insert into t values (1)")


def kept() -> tuple[int, int, int]:
    """Return how much the files hold that rare samples change."""
    with contextlib.closing(sqlite3.connect(KEPT.with_name("database"))) as rows:
        count = rows.execute("select count(*) from t").fetchone()[0]
    return KEPT.stat().st_size, len(list(KEPT.parent.iterdir())), count


def reset() -> None:
    Rare.count = globals()["SEEN"] = 0
    Rare.places[:] = 0
    Rare.kept.cache_clear()
    torch.set_default_dtype(torch.float32)
    add.__defaults__[0].clear()  # type: ignore[index]
    shutil.rmtree(KEPT.parent, ignore_errors=True)
    KEPT.parent.mkdir()
    KEPT.touch()
    with contextlib.closing(sqlite3.connect(KEPT.with_name("database"))) as rows, rows:
        rows.execute("create table t (i int)")


@pytest.fixture(autouse=True)
def _as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(globals(), "KEPT", tmp_path / "kept" / "file")
    reset()
    yield
    reset()


def epochs(loader: Any, number: int = 3) -> list[Any]:
    found: list[Any] = []
    for _ in range(number):
        batches = iter(loader)
        while True:
            try:
                found.append(plain(next(batches)))
            except StopIteration:
                break
            except ValueError as error:
                found.append(str(error))
            found.append(loader.dataset.shown())
    return found


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("change", "options", "count"), pairwise(CHANGES, ["", "shuffle", "persistent_workers"], COUNTS)
)
def test_what_a_rare_sample_changes_stays(
    change: str, options: str, count: int, choose: Callable[[int], None]
) -> None:
    choose(count)
    found = []
    for kind in (TorchDataLoader, fl.DataLoader):
        reset()
        torch.manual_seed(3)
        given: Any = {options: True} if options else {}
        if kind is TorchDataLoader and options == "persistent_workers":
            given = {}
        found.append(epochs(kind(Rare(change), batch_size=4, **given)))
    assert found[1] == found[0]


@pytest.mark.slow
def test_what_is_made_when_it_is_first_needed_is_no_change(choose: Callable[..., None]) -> None:
    choose(2, is_measured=True)

    class Lazy(Rare):
        def __getitem__(self, index: int) -> Any:
            self.file = self.file or sqlite3.connect(":memory:")
            if index % 8 == 7:
                self.handles[index // 24] = self.handles[index // 24] or sqlite3.connect(":memory:")
            return super().__getitem__(index)

    loader = fl.DataLoader(Lazy("nothing"), batch_size=4, sampler=[i for i in range(48) if i != RARE])
    assert len(epochs(loader)) == 2 * 3 * 12
    assert loader.stats()["workers"]["count"] == 2
    assert loader.dataset.file is None


class Locked:
    """Cannot be pickled."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.lock = threading.Lock()


class OneWay(Locked):
    """Can be pickled, but nothing can be made of that."""

    def __reduce__(self) -> Any:
        return fail_to_unpickle, ()


def fail_to_unpickle() -> Any:
    raise TypeError("not in this process")


class Leaves(Squares):
    def __init__(self, kind: Callable[[int], Any]) -> None:
        self.kind = kind

    def __getitem__(self, index: int) -> Any:
        return self.kind(index) if index == RARE else index


def leave(index: int) -> Any:
    raise SystemExit(index)


class OwnError(Exception):
    def __init__(self, index: int, *, holds: Any) -> None:
        super().__init__(f"sample {index}")
        self.holds = holds


def raise_own(index: int) -> Any:
    raise OwnError(index, holds=threading.Lock()) from KeyError("cause")


KINDS: dict[str, Callable[[int], Any]] = {
    "lock": Locked,
    "one way": OneWay,
    "lambda": lambda index: lambda: index,
    "generator": lambda index: (each for each in [index]),
    "exit": leave,
    "error": raise_own,
}


def shown(batches: Any) -> list[Any]:
    """Return what batches are, or the errors in their place."""
    found: list[Any] = []
    while True:
        try:
            found += [each if isinstance(each, int) else type(each).__name__ for each in next(batches)]
        except StopIteration:
            return found
        except BaseException as error:
            found.append((type(error), str(error), hasattr(error, "holds"), repr(error.__cause__)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_rare_sample_may_be_anything(kind: str, count: int, choose: Callable[[int], None]) -> None:
    choose(count)
    found = []
    for loader in (TorchDataLoader, fl.DataLoader):
        each = loader(Leaves(KINDS[kind]), batch_size=4, collate_fn=list)
        found.append([shown(iter(each)) for _ in range(3)])
    assert found[1] == found[0]


class Damaged(Leaves):
    """Its rare sample cannot be loaded, and the one after it not be unpickled."""

    def __getitem__(self, index: int) -> Any:
        if index == RARE:
            raise ValueError("damaged")
        return self.kind(index) if index == RARE + 1 else index


@pytest.mark.parametrize("count", COUNTS)
def test_a_failure_in_a_batch_that_is_made_again_is_recorded_once(
    count: int, choose: Callable[[int], None]
) -> None:
    choose(count)
    loader = fl.DataLoader(Damaged(OneWay), batch_size=4, collate_fn=list, on_error="skip", max_errors=1)
    found = [each for batch in loader for each in batch]
    assert [each if isinstance(each, int) else each.value for each in found] == [
        *range(RARE),
        *range(RARE + 1, len(Squares())),
    ]
    assert [error.index for error in loader.errors] == [RARE]
