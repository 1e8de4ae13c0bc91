"""``foreload.check_threads``: ordinary datasets that threads may share, and those that they may not.

Races are certain by construction: datasets that threads may not share sleep between steps that belong together.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import random
import sqlite3
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import foreload as fl
from foreload.workers.thread_check.check import ThreadCheck
from tests.workers.safe_datasets import SAFE
from tests.workers.unsafe_datasets import SIZE, UNSAFE, Computed, Counter, Preopened, Samples, pause


class Database(Samples):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.connection is None:
            self.connection = sqlite3.connect(self.path)
        return self.connection.execute("SELECT value FROM samples WHERE id = ?", (index,)).fetchone()


class OpenDatabase(Database):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.connection = sqlite3.connect(path)


class Hdf5(Samples):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = h5py.File(self.path)
        return self.file["data"][index]


class Zip(Samples):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.archive: Any = None

    def __getitem__(self, index: int) -> bytes:
        if self.archive is None:
            self.archive = zipfile.ZipFile(self.path)
        return self.archive.read(str(index))


class Tar(Samples):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.archive: Any = None

    def __getitem__(self, index: int) -> bytes:
        if self.archive is None:
            self.archive = tarfile.TarFile(self.path)
        member = self.archive.extractfile(str(index))
        return member.read()


class Deadlock(Samples):
    """Two locks, taken in one order or the other."""

    def __init__(self) -> None:
        self.one, self.two = threading.Lock(), threading.Lock()

    def __getitem__(self, index: int) -> int:
        first, second = (self.one, self.two) if index % 2 else (self.two, self.one)
        with first:
            pause()
            with second:
                return index


class Crash(Samples):
    """A library that crashes if two threads are in it."""

    def __init__(self) -> None:
        self.inside = False

    def __getitem__(self, index: int) -> int:
        if self.inside:
            ctypes.string_at(0)
        self.inside = True
        pause()
        self.inside = False
        return index


class HoldsInterpreter(Samples):
    """A library that waits for ever with the interpreter's lock held, if two threads are in it."""

    def __init__(self) -> None:
        self.inside = False

    def __getitem__(self, index: int) -> int:
        if self.inside:
            ctypes.PyDLL(None).pause()
        self.inside = True
        pause()
        self.inside = False
        return index


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows"
    path.write_bytes(np.repeat(np.arange(SIZE, dtype=np.uint8), 8).tobytes())
    return path


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "samples.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, value TEXT)")
        connection.executemany("INSERT INTO samples VALUES (?, ?)", [(n, f"value {n}") for n in range(SIZE)])
    return path


def check(dataset: Any, **options: Any) -> ThreadCheck:
    return fl.check_threads(dataset, **options)


def mentions(texts: list[str], *words: str) -> bool:
    return any(all(word in text for word in words) for text in texts)


RANDOM: dict[str, tuple[Callable[[int], Any], str]] = {
    "Python": (lambda _: random.gauss(0, 1), "Python's"),
    "Python, several functions": (lambda _: (random.choice("abcdef"), random.sample(range(99), 9)), "Python's"),
    "NumPy": (lambda _: np.random.rand(3), "NumPy's"),
    "torch": (lambda _: torch.rand(3), "torch's"),
    "torch in place": (lambda _: torch.empty(3).uniform_(), "torch's"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SAFE)
def test_nothing_is_found_about_a_dataset_that_threads_may_share(name: str, rows: Path) -> None:
    dataset = SAFE[name](rows)
    found = check(dataset, seconds=100)  # for all samples, on a machine with much else to do
    assert found.findings == []
    assert found.ok
    assert found.samples == len(dataset)
    assert "no proof" in str(found)
    assert not mentions(found.notes, "differ")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", UNSAFE)
def test_what_threads_may_not_share_is_found_by_name(name: str, rows: Path) -> None:
    make, happened, sign = UNSAFE[name]
    found = check(make(rows))
    assert not found.ok
    assert mentions(found.findings, happened), found
    assert mentions(found.findings, sign), found
    assert all(finding in str(found).replace("\n  ", "\n") for finding in found.findings)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RANDOM)
def test_a_random_dataset_is_not_wrong_for_that(name: str) -> None:
    function, generator = RANDOM[name]
    states = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    found = check(Computed(function))
    assert found.ok, found
    assert mentions(found.notes, f"draw from {generator} global generator")
    assert not mentions(found.notes, "differ")
    assert states == (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist())


@pytest.mark.slow
def test_random_numbers_that_threads_draw_from_the_loops_generator_are_found() -> None:
    found = check(Computed(lambda _: torch.nn.functional.dropout(torch.ones(50))))
    assert mentions(found.findings, "torch's global generator", "training loop's own")
    assert not mentions(found.findings, "Python's")
    assert not mentions(found.notes, "of its own")


@pytest.mark.slow
def test_seeding_the_loops_generator_is_found() -> None:
    found = check(Computed(lambda index: (torch.default_generator.manual_seed(index).initial_seed(), index)))
    assert mentions(found.findings, "torch's global generator", "or seed it")
    assert check(Computed(lambda index: (random.seed(index), random.random()))).ok
    assert check(Computed(lambda index: (torch.manual_seed(index).initial_seed(), torch.rand(2)))).ok


def test_samples_that_differ_each_time_cannot_be_compared() -> None:
    found = check(Computed(lambda index: (index, os.urandom(8))))
    assert found.ok, found
    assert mentions(found.notes, "differ each time", "cannot be compared")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Database, OpenDatabase])
def test_exceptions_of_sqlite_name_a_sample(kind: Any, database: Path) -> None:
    dataset = kind(database)
    found = check(dataset)
    assert mentions(found.findings, "Sample", "ProgrammingError", "can only be used in that same thread")
    assert mentions(found.findings, "'connection' is a connection to SQLite")
    if dataset.connection is not None:
        assert dataset[3] == ("value 3",)
        dataset.connection.close()


@pytest.mark.slow
def test_open_archives_and_hdf5_files_are_signs(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file["data"] = np.arange(SIZE)
    with zipfile.ZipFile(tmp_path / "file.zip", "w") as archive, tarfile.open(tmp_path / "file.tar", "w") as tar:
        for index in range(SIZE):
            archive.writestr(str(index), f"sample {index}")
            member = tarfile.TarInfo(str(index))
            member.size = 2
            tar.addfile(member, io.BytesIO(f"{index:02}".encode()))
    assert mentions(check(Hdf5(tmp_path / "file.h5")).findings, "'file' is part of an open HDF5 file")
    assert mentions(check(Zip(tmp_path / "file.zip")).findings, "'archive' is an open zip file")
    assert mentions(check(Tar(tmp_path / "file.tar")).findings, "'archive' is an open tar file")


@pytest.mark.slow
def test_a_deadlock_ends_with_the_stacks_of_those_that_wait() -> None:
    for _ in range(12):  # on a busy machine the threads may miss each other, or one may only be late
        found = check(Deadlock(), seconds=4)
        if found.findings and found.findings[0].count("__getitem__") == 2:
            break
    (finding,) = found.findings
    assert "did not come back" in finding
    assert "with second:" in finding
    assert finding.count("__getitem__") == 2
    assert mentions(found.notes, "'one' is a lock")


@pytest.mark.slow
def test_a_deadlock_that_holds_the_interpreter_ends_too() -> None:
    found = check(HoldsInterpreter(), seconds=4)
    assert mentions(found.findings, "did not answer any more", "test_check_threads.py", "__getitem__")


def test_a_crash_by_threads_is_found_where_it_is() -> None:
    found = check(Crash())
    assert mentions(found.findings, "SIGSEGV", "alone it did not", "string_at", "__getitem__")


@pytest.mark.slow
def test_the_dataset_and_the_process_stay_as_they_are(rows: Path) -> None:
    dataset = Preopened(rows)
    dataset.file.seek(5)
    counter = Counter()
    threads, interval, function = set(threading.enumerate()), sys.getswitchinterval(), random.random
    check(dataset)
    check(counter)
    assert os.lseek(dataset.file.fileno(), 0, os.SEEK_CUR) in (5, SIZE * 8)  # as far as was read ahead
    assert dataset.file.tell() == 5
    assert dataset.file.read(3) == bytes([0, 0, 0])
    assert counter.calls == 0
    assert set(threading.enumerate()) == threads
    assert sys.getswitchinterval() == interval
    assert random.random == function
    dataset.file.close()
