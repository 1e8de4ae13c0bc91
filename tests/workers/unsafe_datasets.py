"""Datasets that threads may not share, each for another reason."""

from __future__ import annotations

import io
import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

SIZE = 12
_CACHE: dict[int, int] = {}
_SCRATCH = np.zeros(4)


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


# A part of what each dataset is found to do, and the name of what it does it to.
UNSAFE: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "a file opened when needed": (LazyFile, "differ", "'file' is an open file"),
    "a file opened before": (Preopened, "differ", "'file' is an open file"),
    "a file in memory": (lambda _: Memory(), "differ", "'bytes'"),
    "a buffer": (lambda _: Scratch(), "differ (in values)", "writes to 'buffer'"),
    "a tensor as a buffer": (lambda _: ScratchTensor(), "differ", "writes to 'buffer'"),
    "a buffer that is returned": (lambda _: Reused(), "changed after a thread had loaded", "writes to 'buffer'"),
    "a buffer of the module": (lambda _: ModuleScratch(), "differ", "unsafe_datasets._SCRATCH'"),
    "a variable of the module": (lambda _: GlobalNumber(), "differ", "unsafe_datasets._present'"),
    "a cache of the module": (lambda _: ModuleCache(), "", "adds to 'tests.workers.unsafe_datasets._CACHE'"),
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
