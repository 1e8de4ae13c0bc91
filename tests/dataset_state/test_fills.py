"""Values that a dataset makes when they are first needed may be made by its copies if they are always the same."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import sqlite3
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.handles import is_written
from foreload.dataset_state.probes.fills import contents_of, may_fill, opens
from foreload.dataset_state.probes.path import ValuePath

PLACE = 0, "made", 0


class Reads:
    """A dataset with whatever attributes a test wants."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Lazy(Dataset[Any]):
    """Makes something when the first sample is loaded, which takes some time."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make, self.made = make, None

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Any:
        if self.made is None:
            self.made = self.make(index)
        torch.sin(torch.ones(200_000))
        return index, str(self.made) if isinstance(self.made, str) else float(torch.as_tensor(self.made).sum())


def _chosen(dataset: Any) -> tuple[list[Any], str]:
    loader = fl.DataLoader(dataset, batch_size=8, collate_fn=list)
    return list(loader), loader.stats()["workers"]["why"]


MADE_BY_THE_FIRST: dict[str, Callable[[int], Any]] = {
    "a tensor": lambda index: torch.full((2,), float(index)),
    "an array": lambda index: np.full(2, index),
    "a number of NumPy": np.float32,
    "a text": lambda index: f"first {index}",
    "a tuple": lambda index: (index, 0),
    "a list": lambda index: [index, 1],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE_BY_THE_FIRST)
def test_what_the_first_sample_makes_is_that_of_the_first_sample(name: str) -> None:
    make = MADE_BY_THE_FIRST[name]
    batches, why = _chosen(Lazy(make))
    assert batches == list(TorchDataLoader(Lazy(make), batch_size=8, collate_fn=list))
    assert ("sets 'made'" in why and "with the sample that is the first" in why) or "an epoch" in why


@pytest.mark.slow
def test_what_any_sample_makes_may_be_made_in_each_process() -> None:
    make = lambda index: torch.arange(5.0)
    batches, why = _chosen(Lazy(make))
    assert batches == list(TorchDataLoader(Lazy(make), batch_size=8, collate_fn=list))
    assert "is needed" not in why
    assert "is first needed" not in why


UNKNOWN: dict[str, Callable[[], Any]] = {
    "a match": lambda: re.match("a", "a"),
    "an iterator": lambda: iter([1]),
    "a random generator": lambda: np.random.default_rng(0),
    "a function's frame": lambda: (each for each in [1]),
    "a hash within": lambda: [hashlib.sha256()],
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_nothing_is_known_of_is_like_nothing_else(name: str) -> None:
    make = UNKNOWN[name]
    one, other = contents_of([(PLACE, make())]), contents_of([(PLACE, make())])
    assert one != other


SAME: dict[str, Callable[[int], Any]] = {
    "a view of a dict": lambda number: MappingProxyType({"a": number}),
    "a view of bytes": lambda number: memoryview(bytes([number])),
    "a set": lambda number: {"a", "b", number},
    "objects in a set": lambda number: {SimpleHash(number), SimpleHash(7)},
    "a lock": lambda number: [threading.Lock(), number],
    "a tensor": lambda number: torch.tensor([number, 1]),
    "a tensor that NumPy lacks": lambda number: torch.tensor([number, 1], dtype=torch.bfloat16),
    "an array of objects": lambda number: np.array([number, "a"], object),
    "numbers of a column": lambda number: np.array([[number, 1], [2, 3]])[:, 0],
}


class SimpleHash:
    """An object without a text of its own."""

    def __init__(self, number: int) -> None:
        self.number = number


@pytest.mark.parametrize("name", SAME)
def test_what_is_made_is_compared_by_its_content(name: str) -> None:
    make = SAME[name]
    assert contents_of([(PLACE, make(1))]) == contents_of([(PLACE, make(1))])
    assert contents_of([(PLACE, make(1))]) != contents_of([(PLACE, make(2))])


def test_a_file_that_is_mapped_is_not_read(tmp_path: Path) -> None:
    np.lib.format.open_memmap(tmp_path / "zeros.npy", "w+", np.uint8, (1 << 26,)).flush()
    opened = np.load(tmp_path / "zeros.npy", mmap_mode="r")
    tracemalloc.start()
    try:
        whole, half = contents_of([(PLACE, opened)]), contents_of([(PLACE, opened[: 1 << 25])])
        assert contents_of([(PLACE, np.asarray(opened))])
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    assert whole != half


def test_places_of_one_name_are_told_apart() -> None:
    dataset = Reads(parts=[Reads(first=None), Reads(first=None)], held=[None, None])
    state = CopiedState(dataset)
    dataset.parts[0].first, dataset.parts[1].first, dataset.held[1] = (0, 1), (1, 0), (2, 3)
    fills = state.made()
    for first, second, held, is_known in (
        ((0, 1), (1, 0), [None, (2, 3)], True),
        ((1, 0), (0, 1), [None, (2, 3)], False),
        ((0, 1), (1, 0), [(2, 3), None], False),
    ):
        dataset = Reads(parts=[Reads(first=None), Reads(first=None)], held=[None, None])
        state = CopiedState(dataset, fills=fills)
        dataset.parts[0].first, dataset.parts[1].first, dataset.held[:] = first, second, held
        assert (state.changed_by_loading() is None) is is_known


class Sized(Dataset[Any]):
    """Takes its size from the first sample that it loads; one sample is of another size than all others."""

    size: int | None = None

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Any:
        if self.size is None:
            self.size = 7 if index == 40 else 5
        torch.sin(torch.ones(200_000))
        return index, self.size


@pytest.mark.slow
def test_the_calling_thread_goes_on_with_what_the_first_sample_makes() -> None:
    """Worker processes make it anew, and one of them by the odd sample."""
    batches, _ = _chosen(Sized())
    assert batches == list(TorchDataLoader(Sized(), batch_size=8, collate_fn=list))


def test_a_worker_may_not_make_what_it_cannot_watch() -> None:
    dataset = Reads(made=None)
    state = CopiedState(dataset)
    dataset.made = [SimpleNamespace() for _ in range(12_000)]
    fills = state.made()
    dataset = Reads(made=None)
    state = CopiedState(dataset, fills=fills)
    dataset.made = [SimpleNamespace() for _ in range(12_000)]
    assert "more than 10,000 objects" in str(state.changed_by_loading())


def test_a_worker_may_only_make_what_is_known() -> None:
    known = CopiedState(dataset := Reads(made=None))
    dataset.made = torch.arange(3)
    fills = known.made()
    for value, is_known in ((torch.arange(3), True), (torch.arange(1, 4), False), (3, False), (open, False)):
        dataset = Reads(made=None)
        state = CopiedState(dataset, fills=fills)
        dataset.made = value
        assert (state.changed_by_loading() is None) is is_known


def test_a_worker_may_only_open_where_that_is_known() -> None:
    with open(__file__) as file:
        for value in (file, os.getpid()):  # which tells a process that it has to open files of its own
            known = CopiedState(dataset := Reads(made=None))
            dataset.made = value
            fills = known.made()
            for some, is_known in ((fills, True), ({}, False)):
                dataset = Reads(made=None)
                state = CopiedState(dataset, fills=some)
                dataset.made = value
                assert (state.changed_by_loading() is None) is is_known
                dataset.made = None
                assert state.changed_by_loading() is not None


class ReadsOn(Dataset[Any]):
    """Opens something when the first sample is loaded, and reads on in it with each sample."""

    def __init__(self, open_it: Callable[[], Any], read: Callable[[Any, int], Any]) -> None:
        self.open_it, self.read, self.opened = open_it, read, None

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Any:
        if self.opened is None:
            self.opened = self.open_it()
        torch.sin(torch.ones(200_000))
        return index, self.read(self.opened, index)


def _hash() -> Any:
    xxhash = pytest.importorskip("xxhash")
    return xxhash.xxh64()


def _hashed(known: Any, index: int) -> int:
    known.update(str(index).encode())
    return int(known.intdigest() % 1000)


def _rows() -> Any:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE numbers (number INTEGER)")
    database.executemany("INSERT INTO numbers VALUES (?)", [(number,) for number in range(200)])
    return database.execute("SELECT number FROM numbers ORDER BY number")


class Never(str):
    """A text with a number that is another each time."""

    def __new__(cls, text: str) -> Never:
        made = super().__new__(cls, text)
        made.number = os.urandom(8)
        return made

    number: bytes


OPENED: dict[str, tuple[Callable[[], Any], Callable[[Any, int], Any], bool]] = {
    "lines of a file": (lambda: open(__file__), lambda file, index: file.readline(), False),  # noqa: SIM115
    "lines of a file, of some samples": (
        lambda: open(__file__),  # noqa: SIM115
        lambda file, index: file.readline() if index % 10 == 9 else "",
        False,
    ),
    "a cursor": (_rows, lambda cursor, index: cursor.fetchone(), False),
    "a hash": (_hash, _hashed, False),
    "lines of a file, and what is another each time": (
        lambda: open(__file__),  # noqa: SIM115
        lambda file, index: Never(file.readline()),
        False,
    ),
    "places of a file": (
        lambda: open(__file__),  # noqa: SIM115
        lambda file, index: (file.seek(index), file.read(3)),
        True,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", OPENED)
def test_what_is_opened_first_may_not_be_read_on(what: str) -> None:
    open_it, read, is_right = OPENED[what]
    batches, why = _chosen(ReadsOn(open_it, read))
    assert batches == list(TorchDataLoader(ReadsOn(open_it, read), batch_size=8, collate_fn=list))
    assert is_right != ("samples may depend on those before" in why)


@pytest.mark.parametrize("mode", ["w", "a", "r+", "xb"])
def test_a_file_that_loading_writes_to_is_not_each_processs_own(mode: str, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("lines")

    def write(index: int) -> Any:
        path = tmp_path / ("there" if mode == "r+" else f"{mode}-{os.getpid()}")
        return SimpleNamespace(log=open(path, mode)) if mode == "a" else open(path, mode)

    class Writes(Dataset[int]):
        log: Any = None

        def __len__(self) -> int:
            return 96

        def __getitem__(self, index: int) -> int:
            if self.log is None:
                self.log = write(index)
            torch.sin(torch.ones(400_000))
            return index

    dataset = Writes()
    loader = fl.DataLoader(dataset, batch_size=8)
    assert [index for batch in loader for index in batch.tolist()] == list(range(96))
    assert dataset.log is not None  # the calling thread has loaded
    getattr(dataset.log, "log", dataset.log).close()


def test_what_may_fill_a_slot_beside_a_file_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    place = ValuePath((("slots", 0),), "Contents", "slots", 2)
    with open(tmp_path / "file") as file:
        fills = contents_of([(place, file)])
        assert may_fill(place._replace(number=3), file, fills)
        assert not may_fill(place._replace(number=3), hashlib.sha256(), fills)
        assert not may_fill(place._replace(name="others"), file, fills)


def test_files_that_keep_what_is_written_are_told_from_others(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"")
    read, write = os.pipe()
    with (
        open(os.devnull, "w") as nowhere,
        os.fdopen(write, "w") as pipe,
        gzip.open(tmp_path / "packed", "wb") as packed,
        open(tmp_path / "there", "rb") as there,
    ):
        files = (nowhere, pipe, sys.__stdout__, packed, there)
        assert [is_written(file) for file in files] == [False, False, False, True, False]
    os.close(read)


def test_what_keeps_its_place_in_memory_of_a_library_counts_as_open() -> None:
    memory = pytest.importorskip("cffi").FFI().new("int*")
    assert opens(contents_of([(ValuePath((("slots", 0),), "Value", "reader", 0), SimpleNamespace(memory=memory))]))
