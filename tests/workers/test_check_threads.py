"""``foreload.check_threads``: ordinary datasets that threads may share, and those that they may not.

Races are certain by construction: datasets that threads may not share sleep between steps that belong together.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import dataclasses
import io
import itertools
import logging
import multiprocessing
import os
import random
import sqlite3
import struct
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

import foreload as fl
from foreload.workers.thread_check.check import ThreadCheck
from foreload.workers.thread_check.fingerprint import fingerprint

SIZE = 12
_CACHE: dict[int, int] = {}
_SCRATCH = np.zeros(4)
_TABLE = {index: index * index for index in range(SIZE)}
_LOGGER = logging.getLogger("tests.check_threads")


def pause() -> None:
    time.sleep(0.002)


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return SIZE


class Computed(Samples):
    """Samples of a function of the index."""

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function

    def __getitem__(self, index: int) -> Any:
        return self.function(index)


class LazyFile(Samples):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: Any = None

    def __getitem__(self, index: int) -> bytes:
        if self.file is None:
            self.file = self.path.open("rb", buffering=0)
        self.file.seek(8 * index)
        pause()
        return self.file.read(8)


class Preopened(LazyFile):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.file = path.open("rb")


class Positionless(Samples):
    """``os.pread`` takes the position as an argument."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY)

    def __getitem__(self, index: int) -> bytes:
        return os.pread(self.fd, 8, 8 * index)


class PerThread(Samples):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.local = threading.local()

    def __getitem__(self, index: int) -> bytes:
        if not hasattr(self.local, "file"):
            self.local.file = self.path.open("rb")
        self.local.file.seek(8 * index)
        pause()
        return self.local.file.read(8)


class PerThreadId(PerThread):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: dict[int, Any] = {}

    def __getitem__(self, index: int) -> bytes:
        file = self.files.get(threading.get_ident())
        if file is None:
            file = self.files[threading.get_ident()] = self.path.open("rb")
        file.seek(8 * index)
        pause()
        return file.read(8)


class Locked(LazyFile):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lock = threading.RLock()

    def __getitem__(self, index: int) -> bytes:
        with self.lock, self.path.open("rb") as file:
            file.seek(8 * index)
            return file.read(8)


class Memory(Samples):
    """A file in memory has a position too."""

    def __init__(self) -> None:
        self.bytes = io.BytesIO(bytes(range(SIZE)))

    def __getitem__(self, index: int) -> bytes:
        self.bytes.seek(index)
        pause()
        return self.bytes.read(1)


class Scratch(Samples):
    def __init__(self) -> None:
        self.buffer = np.zeros(16)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.buffer[:] = index
        pause()
        return {"values": self.buffer.copy(), "index": index}


class ScratchTensor(Samples):
    def __init__(self) -> None:
        self.buffer = torch.zeros(16)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.buffer.fill_(index)
        pause()
        return self.buffer.clone()


class Reused(Samples):
    """It returns the buffer itself."""

    def __init__(self) -> None:
        self.buffer = torch.zeros(16)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.buffer.fill_(index)


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


class Mapped(Samples):
    def __init__(self, path: Path, *, lazy: bool) -> None:
        self.path = path
        self.rows = None if lazy else self.map()

    def map(self) -> Any:
        return np.memmap(self.path, np.uint8, "r", shape=(SIZE, 8))

    def __getitem__(self, index: int) -> Any:
        if self.rows is None:
            self.rows = self.map()
        return torch.from_numpy(self.rows[index].copy())


class Counter(Samples):
    def __init__(self) -> None:
        self.calls = 0

    def __getitem__(self, index: int) -> int:
        self.calls += 1
        return index


class Memo(Samples):
    def __init__(self) -> None:
        self.memo: dict[int, int] = {}

    def __getitem__(self, index: int) -> int:
        if index not in self.memo:
            self.memo[index] = index * index
        return self.memo[index]


class ModuleCache(Samples):
    def __getitem__(self, index: int) -> int:
        return cached_square(index)


def cached_square(index: int) -> int:
    if index not in _CACHE:
        _CACHE[index] = index * index
    return _CACHE[index]


class ModuleScratch(Samples):
    def __getitem__(self, index: int) -> Any:
        _SCRATCH[:] = index
        pause()
        return _SCRATCH.copy()


class GlobalNumber(Samples):
    def __getitem__(self, index: int) -> int:
        global _present
        _present = index
        pause()
        return _present


_present = -1


class Tokenizer:
    """It holds what it is at, as tokenizers and parsers in C do."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def encode(self, text: str) -> list[int]:
        self.tokens = []
        for letter in text:
            self.tokens.append(ord(letter))
            pause()
        return list(self.tokens)


class Tokenized(Samples):
    def __init__(self) -> None:
        self.tokenizer = Tokenizer()

    def __getitem__(self, index: int) -> list[int]:
        return self.tokenizer.encode(f"{index:02}")


class Borrowed(Samples):
    """It raises in threads only, as the tokenizers of Hugging Face do."""

    def __init__(self) -> None:
        self.is_borrowed = False

    def __getitem__(self, index: int) -> int:
        if self.is_borrowed:
            raise RuntimeError("Already borrowed")
        self.is_borrowed = True
        pause()
        self.is_borrowed = False
        return index


class Logging(Samples):
    def __init__(self) -> None:
        self.logger = logging.getLogger("tests.check_threads.dataset")
        self.logger.addHandler(logging.StreamHandler(io.StringIO()))
        self.logger.propagate = False

    def __getitem__(self, index: int) -> int:
        self.logger.warning("loading %d", index)
        _LOGGER.debug("loading %d", index)
        return index


class OwnRandom(Samples):
    def __init__(self, generator: Any, draw: Callable[[Any], Any]) -> None:
        self.rng = generator
        self.draw = draw

    def __getitem__(self, index: int) -> Any:
        return self.draw(self.rng)


class Stream(Samples):
    """It yields from a generator."""

    def __init__(self) -> None:
        self.squares: Any = None

    def __getitem__(self, index: int) -> int:
        if self.squares is None:
            self.squares = self.generate()
        return index + 0 * next(self.squares)

    def generate(self) -> Iterator[int]:
        for number in itertools.count():
            pause()
            yield number


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


class Augment:
    """A transform with a buffer."""

    def __init__(self) -> None:
        self.buffer = np.zeros(4)

    def __call__(self, value: Any) -> Any:
        self.buffer[:] = value
        pause()
        return self.buffer.copy()


class Unequal:
    """An object without a pickle."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.lock = threading.Lock()


@dataclasses.dataclass
class Record:
    name: str
    image: Any
    score: float
    tags: frozenset[str]


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


def records(index: int) -> Record:
    pixels = np.full((4, 4, 3), index, np.uint8)
    return Record(f"name {index}", Image.fromarray(pixels), float("nan"), frozenset("abc"))


def nested(index: int) -> Any:
    return {"x": [torch.full((2,), float("nan")), (np.float32(index), None)], "y": {"z": f"{index}", "w": b"\0"}}


SAFE: dict[str, Callable[[Path], Any]] = {
    "a list": lambda _: list(range(SIZE)),
    "an array": lambda _: np.arange(SIZE),
    "tensors": lambda _: TensorDataset(torch.randn(SIZE, 3), torch.arange(SIZE)),
    "a subset of several": lambda _: Subset(ConcatDataset([TensorDataset(torch.arange(9))] * 2), [3, 1, 17]),
    "a memmap": lambda rows: Mapped(rows, lazy=False),
    "a memmap opened when needed": lambda rows: Mapped(rows, lazy=True),
    "a file opened for each sample": Locked,
    "a file read by position": Positionless,
    "a file for each thread": PerThread,
    "a file for each thread's number": PerThreadId,
    "a logger": lambda _: Logging(),
    "dataclasses with images, NaNs and sets": lambda _: Computed(records),
    "nested samples": lambda _: Computed(nested),
    "samples without a pickle": lambda _: Computed(Unequal),
    "functions as samples": lambda _: Computed(lambda index: lambda: index),
    "sparse tensors": lambda _: Computed(lambda index: torch.eye(3).mul(index + 1).to_sparse()),
    "nested tensors": lambda _: Computed(lambda n: torch.nested.nested_tensor([torch.ones(n + 1), torch.ones(2)])),
    "a table of the module": lambda _: Computed(lambda index: _TABLE[index]),
    "one sample": lambda _: [torch.ones(3)],
    "slow samples": lambda _: Computed(lambda index: time.sleep(0.02) or index),
    "foreload's own": lambda _: fl.CachedDataset(torch.arange(SIZE)),
}

RANDOM: dict[str, tuple[Callable[[int], Any], str]] = {
    "Python": (lambda _: random.gauss(0, 1), "Python's"),
    "Python, several functions": (lambda _: (random.choice("abcdef"), random.sample(range(99), 9)), "Python's"),
    "NumPy": (lambda _: np.random.rand(3), "NumPy's"),
    "torch": (lambda _: torch.rand(3), "torch's"),
    "torch in place": (lambda _: torch.empty(3).uniform_(), "torch's"),
}

# A part of what each dataset is found to do, and the name of what it does it to.
UNSAFE: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "a file opened when needed": (LazyFile, "differ", "'file' is an open file"),
    "a file opened before": (Preopened, "differ", "'file' is an open file"),
    "a file in memory": (lambda _: Memory(), "differ", "'bytes'"),
    "a buffer": (lambda _: Scratch(), "differ (in values)", "writes to 'buffer'"),
    "a tensor as a buffer": (lambda _: ScratchTensor(), "differ", "writes to 'buffer'"),
    "a buffer that is returned": (lambda _: Reused(), "changed after a thread had loaded", "writes to 'buffer'"),
    "a buffer of the module": (lambda _: ModuleScratch(), "differ", "test_check_threads._SCRATCH'"),
    "a variable of the module": (lambda _: GlobalNumber(), "differ", "test_check_threads._present'"),
    "a cache of the module": (lambda _: ModuleCache(), "", "adds to 'tests.workers.test_check_threads._CACHE'"),
    "a tokenizer with a state": (lambda _: Tokenized(), "differ", "'tokenizer.tokens'"),
    "a counter": (lambda _: Counter(), "", "changes 'calls'"),
    "a memo": (lambda _: Memo(), "", "adds to 'memo'"),
    "Python's generator of its own": (lambda _: OwnRandom(random.Random(0), lambda g: g.random()), "", "'rng'"),
    "NumPy's generator of its own": (
        lambda _: OwnRandom(np.random.default_rng(0), lambda g: g.random()),
        "",
        "'rng'",
    ),
    "torch's generator of its own": (
        lambda _: OwnRandom(torch.Generator(), lambda g: torch.rand(2, generator=g)),
        "",
        "'rng'",
    ),
    "a generator": (lambda _: Stream(), "ValueError: generator already executing", "'squares' is a generator"),
    "what is borrowed": (lambda _: Borrowed(), "RuntimeError: Already borrowed", ""),
    "a variable of a function": (lambda _: Computed(with_closure()), "differ", "held"),
}


def with_closure() -> Callable[[int], int]:
    held = -1

    def load(index: int) -> int:
        nonlocal held
        held = index
        pause()
        return held

    return load


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SAFE)
def test_nothing_is_found_about_a_dataset_that_threads_may_share(name: str, rows: Path) -> None:
    dataset = SAFE[name](rows)
    found = check(dataset)
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
    found = check(Deadlock(), seconds=4)
    (finding,) = found.findings
    assert "did not come back" in finding
    assert "with second:" in finding
    assert finding.count("__getitem__") == 2
    assert mentions(found.notes, "'one' is a lock")


@pytest.mark.slow
def test_a_deadlock_that_holds_the_interpreter_ends_too() -> None:
    words = "did not answer any more", "test_check_threads.py", "__getitem__"
    for _ in range(3):  # a stack that is written down while another thread goes on may lack frames
        found = check(HoldsInterpreter(), seconds=4)
        if mentions(found.findings, *words):
            break
    assert mentions(found.findings, *words)


def test_a_crash_by_threads_is_found_where_it_is() -> None:
    found = check(Crash())
    assert mentions(found.findings, "SIGSEGV", "alone it did not", "string_at", "__getitem__")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("function", "words"), [
    (lambda _: ctypes.string_at(0), ("loading sample 0 alone ended the process", "SIGSEGV")),
    (lambda _: os._exit(3), ("loading sample 0 alone ended the process", "an exit")),
    (lambda _: time.sleep(600), ("loading sample 0 alone took longer than seconds=1", "test_check_threads.py")),
    (lambda index: [][index], ("no sample can be loaded, alone either", "IndexError")),
    (lambda _: sys.exit("no"), ("no sample can be loaded, alone either", "SystemExit: no")),
])  # fmt: skip
def test_what_goes_wrong_alone_is_said(function: Callable[[int], Any], words: tuple[str, ...]) -> None:
    found = check(Computed(function), seconds=1 if "took longer" in words[0] else 10)
    assert not found.ok
    assert found.samples == 0
    assert mentions(found.findings, "Nothing was tried", *words), found


def test_a_sample_that_fails_alone_too_is_no_matter_of_threads() -> None:
    found = check(Computed(lambda index: list(range(SIZE - 1))[index]))
    assert found.ok
    assert mentions(found.notes, f"Sample {SIZE - 1} cannot be loaded, alone either: IndexError")


def test_a_dataset_without_samples() -> None:
    found = check([])
    assert not found.ok
    assert found.findings == ["The dataset has no samples, so nothing was tried."]


def test_a_dataset_without_a_length_ends_with_an_index_error() -> None:
    class Endless(Dataset[int]):
        def __getitem__(self, index: int) -> int:
            return list(range(5))[index]

    assert check(Endless()).samples == 5


@pytest.mark.slow
def test_a_dataset_that_is_slow_is_tried_in_part() -> None:
    found = check(Computed(lambda index: time.sleep(0.5) or index), seconds=6)
    assert 0 < found.samples < SIZE
    assert mentions(found.notes, f"of {SIZE} samples were tried")


def test_an_iterable_dataset_is_refused() -> None:
    class Numbers(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(TypeError, match="dataset must be map-style, with __getitem__, got Numbers"):
        check(Numbers())
    with pytest.raises(TypeError, match="got int"):
        check(3)


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"samples": 0}, ValueError, "samples must be 1 or more, got 0"),
    ({"samples": 1.5}, TypeError, "samples must be an int, got 1.5"),
    ({"seconds": 0}, ValueError, "seconds must be above 0, got 0"),
    ({"seconds": "long"}, TypeError, "seconds must be a number, got 'long'"),
])  # fmt: skip
def test_arguments_are_checked(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check([1, 2, 3], **options)


def test_samples_are_from_all_over_the_dataset() -> None:
    found = check(Computed(lambda index: [].pop() if index == SIZE - 1 else index), samples=3)
    assert found.samples == 3
    assert mentions(found.notes, f"Sample {SIZE - 1} cannot be loaded")


@pytest.mark.slow
def test_transforms_and_collate_functions_are_tried_too() -> None:
    found = check(list(range(SIZE)), transform=Augment())
    assert mentions(found.findings, "differ")
    assert mentions(found.findings, "'transform.buffer'")
    augment = Augment()
    found = check(list(range(SIZE)), collate_fn=lambda samples: augment(samples[0]))
    assert mentions(found.findings, "differ")
    assert mentions(found.findings, "augment.buffer'")
    assert check(list(range(SIZE)), transform=float, collate_fn=torch.tensor).ok


def test_several_samples_at_once_are_loaded_as_a_loader_loads_them() -> None:
    class Whole(Samples):
        def __getitem__(self, index: int) -> Any:
            raise AssertionError

        def __getitems__(self, indices: list[int]) -> list[int]:
            return [index * index for index in indices]

    assert check(Whole()).ok


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


def test_without_forks_a_copy_is_tried_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    scratch, interval = Scratch(), sys.getswitchinterval()
    found = check(scratch)
    assert mentions(found.notes, "cannot fork", "pickled copy")
    assert mentions(found.findings, "differ (in values)")
    assert not scratch.buffer.any()
    assert sys.getswitchinterval() == interval
    assert mentions(check(Computed(lambda index: index)).findings, "Nothing was tried", "cannot be copied")


NAN = struct.unpack("d", struct.pack("q", 0x7FF8000000000001))[0]


@pytest.mark.parametrize(("one", "other", "fields"), [
    (1, True, []),
    (1, 1.0, []),
    (0.0, -0.0, []),
    (float("nan"), NAN, []),
    ("a", b"a", []),
    ([1], (1,), []),
    ((1, 2), (1, 3), ["1"]),
    ({"a": 1, "b": 2}, {"a": 1, "b": 3}, ["b"]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
    (Record("a", None, 1.0, frozenset()), Record("a", None, 1.0, frozenset("a")), ["tags"]),
    (torch.zeros(2), torch.zeros(2, 1), []),
    (torch.zeros(2), torch.zeros(2, dtype=torch.double), []),
    (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16), []),
    (torch.zeros(2), torch.zeros(2, requires_grad=True), []),
    (torch.eye(2).to_sparse(), torch.eye(2).to_sparse().requires_grad_(), []),
    (torch.eye(2).to_sparse(), (2 * torch.eye(2)).to_sparse(), []),
    (np.zeros(2, "<i4"), np.zeros(2, ">i4"), []),
    (np.array(["a", 1], object), np.array(["a", 2], object), []),
    (np.ma.masked_array([1, 2], [0, 1]), np.ma.masked_array([1, 2], [1, 0]), []),
    (np.float32(1), np.float64(1), []),
    (Image.new("L", (2, 2)), Image.new("L", (2, 2), 1), []),
    (Unequal(1), Unequal(2), []),
    ({"x": [{"y": {1, 2}}]}, {"x": [{"y": {1, 3}}]}, ["x"]),
    (Path("a"), Path("b"), []),
    (torch.float16, torch.float32, []),
])  # fmt: skip
def test_samples_are_equal_if_they_are_bit_for_bit(one: Any, other: Any, fields: list[str]) -> None:
    assert fingerprint(one).different(fingerprint(other)) == fields
    for sample in (one, other):
        same = Unequal(sample.index) if isinstance(sample, Unequal) else copy.deepcopy(sample)
        assert fingerprint(sample).different(fingerprint(same)) is None


def test_a_sample_that_holds_itself_is_compared() -> None:
    samples: list[Any] = []
    for _ in range(2):
        sample: list[Any] = [1]
        sample.append(sample)
        samples.append(sample)
    assert fingerprint(samples[0]) == fingerprint(samples[1])
    assert fingerprint(samples[0]).opaque == frozenset()


def test_what_is_found_is_shown_in_full() -> None:
    found = check(Scratch())
    assert repr(found) == str(found)
    assert str(found).startswith(f"Threads should not share this dataset ({SIZE} samples alone and by 8 threads")
    assert f"\n- {found.findings[0]}" in str(found)
